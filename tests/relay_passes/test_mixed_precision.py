"""Before and after IR, numbers and refusals of MixedPrecision."""

import ml_dtypes
import numpy as np
import pytest
import tvm
from conv_modules import module
from side_by_side import Rewrite, assert_all_same
from tvm import relax
from tvm_ffi import structural_equal

from tvm_ext.configs.errors import TargetError
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.mixed_precision import MixedPrecision
from tvm_ext.relay_passes.spans import bindings_of

op, nn = relax.op, relax.op.nn
MACHINE = resolve_target("avx512-amx").with_threads(1).with_precision("bfloat16")
VECTORS = CpuDescription(
    **MACHINE.model_dump() | {"mattr": ("-amx-int8", "-amx-bf16", "-amx-tile")}
)
RANDOM = np.random.default_rng(0)


def rewrite(mod, machine=MACHINE):
    with compiling_for(machine):
        new = MixedPrecision()(mod)
        assert structural_equal(MixedPrecision()(new), new)
    assert relax.analysis.check_well_formed(new)
    return new


def normal(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def matmul(weights, rows=512):
    def body(emit, x):
        return [emit(op.matmul(x, relax.const(weights)))]

    return module((rows, weights.shape[-2]), body)


def convolution(weights, groups=1, channels_last=True, sides=20):
    """``weights``: HWIO with channels last, else OIHW."""
    layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"} if channels_last else {}
    inputs = groups * weights.shape[2 if channels_last else 1]

    def body(emit, x):
        return [emit(nn.conv2d(x, relax.const(weights), padding=1, groups=groups, **layouts))]

    return module((1, sides, sides, inputs) if channels_last else (1, inputs, sides, sides), body)


def operators_and_types(mod):
    """Operators with the types of their results."""
    return [
        (str(binding.value.op.name).removeprefix("relax."), str(binding.var.ty.dtype))
        for binding in bindings_of(mod["main"])
        if isinstance(binding.value, relax.Call)
    ]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("mod", "name", "shape"),
    [
        (matmul(normal(256, 512)), "matmul", (512, 256)),
        (convolution(normal(3, 3, 64, 128)), "nn.conv2d", (1, 20, 20, 64)),
    ],
)
def test_operands_are_rounded_and_sums_are_not(mod, name, shape) -> None:
    new = rewrite(mod)
    assert operators_and_types(new)[:2] == [("astype", "bfloat16"), (name, "float32")]
    # Numbers of 8 bits: both programs multiply the same, whose sums differ by their order.
    exact = RANDOM.integers(-127, 128, shape).astype(np.float32)
    rounded = structural_weights(mod, new)
    assert_all_same({name: Rewrite(rounded, new, [[exact]])}, rtol=1e-4, atol=1e-2)


def structural_weights(mod, new):
    """``mod`` with the weights that ``new`` has, as float32."""
    stored = next(
        arg
        for binding in bindings_of(new["main"])
        if isinstance(binding.value, relax.Call)
        for arg in binding.value.args
        if isinstance(arg, tvm.ir.GenericConst)
    )
    weights = stored.value.numpy().astype(np.float32)
    return matmul(weights) if weights.ndim == 2 else convolution(weights)


@pytest.mark.parametrize(
    ("mod", "reason"),
    [
        (convolution(normal(3, 3, 4, 64)), "few channels"),
        (convolution(normal(3, 3, 32, 64), groups=2), "in groups"),
        (convolution(normal(64, 32, 3, 3), channels_last=False), "no neighbours"),
        (matmul(normal(256, 4)), "rounding takes longer"),
        (matmul(np.full((256, 512), 3.4e38, np.float32)), "no number of bfloat16"),
    ],
)
def test_what_stays_in_float32(mod, reason) -> None:
    with recording() as decisions:
        assert structural_equal(rewrite(mod), mod)
    assert reason in decisions[0].reason


@pytest.mark.parametrize(
    ("mod", "reason"),
    [
        (convolution(normal(3, 3, 64, 64), sides=56), "Winograd's algorithm takes less time"),
        (matmul(normal(255, 512)), "no whole number of instructions"),
    ],
)
def test_what_stays_in_float32_where_vectors_of_bfloat16_are_twice_as_fast(mod, reason) -> None:
    with recording() as decisions:
        assert structural_equal(rewrite(mod, VECTORS), mod)
    assert reason in decisions[0].reason
    even = rewrite(matmul(normal(256, 512)), VECTORS)
    assert operators_and_types(even)[0] == ("astype", "bfloat16")


def of_bfloat16(weights, groups=1):
    """As a model of bfloat16 is read: operands cast to float32."""

    def body(emit, x):
        wide = emit(op.astype(emit(op.astype(x, "bfloat16")), "float32"))
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        if weights.ndim == 2:
            return [emit(op.matmul(wide, relax.const(weights)))]
        return [emit(nn.conv2d(wide, relax.const(weights), padding=1, groups=groups, **layouts))]

    inputs = weights.shape[0] if weights.ndim == 2 else groups * weights.shape[2]
    return module((512, inputs) if weights.ndim == 2 else (1, 56, 56, inputs), body)


def bfloat16_numbers(*shape):
    return normal(*shape).astype(ml_dtypes.bfloat16).astype(np.float32)


@pytest.mark.parametrize("target", ["avx512-amx", "vectors"])
def test_what_is_bfloat16_in_the_model_is_multiplied_as_it_is(target) -> None:
    machine = VECTORS if target == "vectors" else MACHINE
    machine = machine.model_copy(update={"products": "float32"})
    new = rewrite(of_bfloat16(bfloat16_numbers(256, 512)), machine)
    assert operators_and_types(new)[-1] == ("matmul", "float32")
    operands = {str(arg.ty.dtype) for arg in bindings_of(new["main"])[-1].value.args}
    assert operands == {"bfloat16"}
    for mod in (
        of_bfloat16(normal(256, 512)),
        of_bfloat16(bfloat16_numbers(3, 3, 16, 64), groups=2),
        of_bfloat16(bfloat16_numbers(3, 3, 3, 64)),
    ):
        assert structural_equal(rewrite(mod, machine), mod)


def test_products_that_share_weights_share_the_narrow_ones() -> None:
    weights = relax.const(normal(256, 256))

    def body(emit, x):
        return [emit(op.matmul(emit(op.matmul(x, weights)), weights))]

    new = rewrite(module((512, 256), body))
    calls = [b.value for b in bindings_of(new["main"]) if isinstance(b.value, relax.Call)]
    first, second = (call.args[1] for call in calls if call.op.name == "relax.matmul")
    assert first.same_as(second)


def test_nothing_changes_where_nobody_asked() -> None:
    mod = matmul(normal(256, 512))
    assert structural_equal(rewrite(mod, resolve_target("avx512-amx")), mod)


@pytest.mark.parametrize(
    ("target", "precision", "message"),
    [
        ("avx2", "bfloat16", "no instruction for its products"),
        ("avx512-amx", "float8", "'float8' is not known"),
        ("nvidia-h200", "bfloat16", "has only 'model'"),
    ],
)
def test_precisions_that_a_target_does_not_have(target, precision, message) -> None:
    machine = resolve_target(target)
    assert machine.with_precision("model") is machine
    with pytest.raises(TargetError, match=message):
        machine.with_precision(precision)

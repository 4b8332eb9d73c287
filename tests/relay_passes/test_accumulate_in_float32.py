"""Before and after IR, numbers, and refusals of AccumulateInFloat32."""

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import relax
from unoptimised import LLVM

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.accumulate_in_float32 import AccumulateInFloat32

WEIGHTS = np.linspace(-1, 1, 16 * 8).astype("float16").astype("float32").reshape(16, 8)
Expression = Callable[[relax.Var], relax.Expr]


def module_of(expression: Expression, dtype: str = "float16", *shape: int) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(list(shape or (4, 16)), dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(expression(x)))
        builder.emit_func_output(result)
    return builder.get()


def narrowed(mod: tvm.IRModule, target: str = "nvidia-h100") -> tvm.IRModule:
    with compiling_for(resolve_target(target)):
        result = tvm.transform.Sequential(
            [
                relax.transform.CanonicalizeBindings(),
                AccumulateInFloat32(),
                relax.transform.DeadCodeElimination(),
            ]
        )(mod)
    relax.analysis.well_formed(result)
    return result


def wide(x: relax.Expr) -> relax.Expr:
    return relax.op.astype(x, "float32")


def product(x: relax.Var) -> relax.Expr:
    return relax.op.astype(relax.op.matmul(wide(x), relax.const(WEIGHTS)), "float16")


def test_weights_that_were_cast_are_float16_again():
    text = narrowed(module_of(product)).script()
    assert 'out_dtype="float32"' in text
    assert text.count("R.astype") == 1


def test_two_casts_and_a_bfloat16():
    def scores(x: relax.Var) -> relax.Expr:
        return relax.op.matmul(wide(x), relax.op.permute_dims(wide(x)))

    assert "R.astype" in narrowed(module_of(scores)).script()  # the transpose is in float32

    def own(x: relax.Var) -> relax.Expr:
        return relax.op.matmul(wide(x), wide(relax.op.permute_dims(x)))

    assert "R.astype" not in narrowed(module_of(own, "bfloat16")).script()


def test_convolutions_keep_their_attributes():
    weights = np.ones((8, 3, 3, 3), "float32")

    def convolution(x: relax.Var) -> relax.Expr:
        return relax.op.nn.conv2d(wide(x), relax.const(weights), strides=2, padding=1)

    text = narrowed(module_of(convolution, "float16", 1, 3, 16, 16)).script()
    assert "R.astype" not in text
    assert "strides=[2, 2], padding=[1, 1, 1, 1]" in text
    assert 'out_dtype="float32"' in text


def test_numbers_are_the_same():
    x = np.linspace(-2, 2, 64).astype("float16").reshape(4, 16)
    results = []
    for mod in (module_of(product), narrowed(module_of(product))):
        program = relax.VirtualMachine(tvm.compile(mod, target=LLVM), tvm.cpu())
        results.append(program["main"](tvm.runtime.tensor(x)).numpy())
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize(
    ("mod", "target"),
    [
        (module_of(product), "avx512"),
        (module_of(lambda x: relax.op.matmul(wide(x), relax.const(WEIGHTS / 3))), "nvidia-h100"),
        (module_of(lambda x: relax.op.matmul(x, relax.const(WEIGHTS)), "float32"), "nvidia-h100"),
    ],
    ids=["a CPU", "weights that would be rounded", "float32"],
)
def test_others_are_left_alone(mod: tvm.IRModule, target: str) -> None:
    before = mod.script()
    assert "out_dtype=None" in narrowed(mod, target).script()
    assert mod.script() == before

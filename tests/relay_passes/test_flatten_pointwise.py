"""Before and after IR, equal numbers, and refusals of FlattenPointwise."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, tirx
from tvm_ffi import structural_equal
from unoptimised import LLVM

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.flatten_pointwise import FlattenPointwise
from tvm_ext.relay_passes.graph_pass import recording

AVX512 = resolve_target("avx512")


def conv_module(sides, taps=1, constant=True, channels=3, **attrs):
    random = np.random.default_rng(0)
    x = relax.Var("x", relax.TensorType((2, channels, *sides), "float32"))
    weight_shape = (6, channels // attrs.get("groups", 1), *[taps] * len(sides))
    w = relax.Var("w", relax.TensorType(weight_shape, "float32"))
    params = [x, w]
    if constant:
        w = relax.const(random.normal(size=weight_shape).astype("float32"))
        params = [x]
    conv = relax.op.nn.conv2d if len(sides) == 2 else relax.op.nn.conv3d
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.relu(builder.emit(conv(x, w, **attrs))))
        builder.emit_func_output(result)
    return builder.get()


def flattened(mod):
    with compiling_for(AVX512):
        return tvm.transform.Sequential([FlattenPointwise()])(mod)


def run(mod, *arrays):
    lowered = relax.transform.LegalizeOps()(mod)
    vm = relax.VirtualMachine(tvm.compile(lowered, target=LLVM), tvm.cpu())
    return vm["main"](*[tvm.runtime.tensor(array) for array in arrays]).numpy()


def operators(mod):
    bindings = mod["main"].body.blocks[0].bindings
    return [str(binding.value.op.name) for binding in bindings]


def test_operators_and_log():
    with recording() as decisions:
        once = flattened(conv_module((14, 14)))
    assert operators(once) == ["relax.reshape", "relax.nn.conv1d", "relax.reshape", "relax.nn.relu"]
    conv = once["main"].body.blocks[0].bindings[1].var.ty
    assert [int(extent) for extent in conv.shape] == [2, 6, 196]
    assert decisions[0].reason == (
        "14 rows of 14 columns computed as one of 196: 94 % of the vector lanes useful, 88 % before"
    )
    assert relax.analysis.check_well_formed(once)
    assert structural_equal(flattened(once), once)


def test_rows_of_a_large_image_are_one_although_each_fills_whole_vectors():
    once = flattened(conv_module((64, 64), channels=128))
    assert operators(once) == ["relax.reshape", "relax.nn.conv1d", "relax.reshape", "relax.nn.relu"]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 19), min_size=2, max_size=3), st.booleans())
def test_same_numbers(sides, constant):
    mod = conv_module(sides, constant=constant)
    random = np.random.default_rng(1)
    shapes = [[int(size) for size in param.ty.shape] for param in mod["main"].params]
    arrays = [random.normal(size=shape).astype("float32") for shape in shapes]
    before, after = (run(m, *arrays) for m in (mod, flattened(mod)))
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "mod",
    [
        conv_module((8, 16)),
        conv_module((14, 14), taps=3),
        conv_module((14, 14), strides=2),
        conv_module((14, 14), padding=1),
        conv_module((14, 14), groups=3),
        conv_module((3, 14), channels=3, out_layout="NHWC"),
    ],
    ids=["whole vectors", "taps", "stride", "padding", "groups", "other layout"],
)
def test_left_alone(mod):
    assert structural_equal(flattened(mod), mod)


def test_symbolic_width_is_refused():
    x = relax.Var("x", relax.TensorType((1, 3, 5, tirx.Var("w", "int64")), "float32"))
    w = relax.const(np.ones((6, 3, 1, 1), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.conv2d(x, w))
        builder.emit_func_output(result)
    mod = builder.get()
    with recording() as decisions:
        assert structural_equal(flattened(mod), mod)
    assert decisions[0].reason == "its shape is symbolic"

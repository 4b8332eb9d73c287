"""Before and after IR, equal numbers, and refusals of FlattenPointwise."""

import numpy as np
import pytest
import tvm
from conv_modules import AVX512, assert_same_numbers, conv_relu, operators
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import DRAWS
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.hardware.targets import compiling_for
from tvm_ext.relay_passes.flatten_pointwise import FlattenPointwise
from tvm_ext.relay_passes.graph_pass import recording


def conv_module(sides, taps=1, constant=True, channels=3, **attrs):
    random = np.random.default_rng(0)
    weight_shape = (6, channels // attrs.get("groups", 1), *[taps] * len(sides))
    weight = random.normal(size=weight_shape).astype("float32")
    conv = relax.op.nn.conv2d if len(sides) == 2 else relax.op.nn.conv3d
    return conv_relu(conv, (2, channels, *sides), weight, constant, **attrs)


def flattened(mod):
    with compiling_for(AVX512):
        return tvm.transform.Sequential([FlattenPointwise()])(mod)


def test_operators_and_log():
    with recording() as decisions:
        once = flattened(conv_module((14, 14)))
    assert operators(once) == ["reshape", "nn.conv1d", "reshape", "nn.relu"]
    conv = once["main"].body.blocks[0].bindings[1].var.ty
    assert [int(extent) for extent in conv.shape] == [2, 6, 196]
    assert decisions[0].reason == (
        "14 rows of 14 columns computed as one of 196: 94 % of the vector lanes useful, 88 % before"
    )
    assert relax.analysis.check_well_formed(once)
    assert structural_equal(flattened(once), once)


def test_rows_of_a_large_image_are_one_although_each_fills_whole_vectors():
    once = flattened(conv_module((64, 64), channels=128))
    assert operators(once) == ["reshape", "nn.conv1d", "reshape", "nn.relu"]


def test_rows_of_an_odd_number_of_vectors_are_one_row_of_pairs():
    once = flattened(conv_module((8, 48)))
    assert operators(once) == ["reshape", "nn.conv1d", "reshape", "nn.relu"]


@pytest.mark.extended
@settings(max_examples=6 * DRAWS, deadline=None)
@given(st.lists(st.integers(1, 19), min_size=2, max_size=3), st.booleans())
def test_same_numbers(sides, constant):
    mod = conv_module(sides, constant=constant)
    assert_same_numbers(flattened(mod), mod)


@pytest.mark.parametrize(
    "mod",
    [
        conv_module((8, 32)),
        conv_module((14, 14), taps=3),
        conv_module((14, 14), strides=2),
        conv_module((14, 14), padding=1),
        conv_module((14, 14), groups=3),
        conv_module((3, 14), channels=3, out_layout="NHWC"),
    ],
    ids=["pairs of vectors", "taps", "stride", "padding", "groups", "other layout"],
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

"""Before and after IR, equal numbers, and refusals of PadOutputWidth."""

import numpy as np
import pytest
import tvm
from conv_modules import AVX512, assert_same_numbers, conv_relu
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import DRAWS
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.relay_passes.graph_pass import recording
from tvm_ext.relay_passes.pad_output_width import PadOutputWidth


def conv_module(width, taps=(3, 1), **attrs):
    random = np.random.default_rng(0)
    one = isinstance(taps, int)
    shape = (2, 3, width) if one else (2, 3, 5, width)
    groups = attrs.get("groups", 1)
    kernel = (taps,) if one else taps
    weight = random.normal(size=(6, 3 // groups, *kernel)).astype("float32")
    conv = relax.op.nn.conv1d if one else relax.op.nn.conv2d
    return conv_relu(conv, shape, weight, **attrs)


def padded(mod):
    with compiling_for(AVX512):
        return tvm.transform.Sequential([PadOutputWidth()])(mod)


def test_kernel_and_log():
    mod = conv_module(62)
    with recording() as decisions:
        once = padded(mod)
    names = [str(g.name_hint) for g, f in once.functions.items() if isinstance(f, tirx.PrimFunc)]
    assert names == ["conv2d_padded"]
    assert "62 output columns computed as 64" in decisions[0].reason
    assert relax.analysis.check_well_formed(once)
    assert structural_equal(padded(once), once)


@pytest.mark.extended
@settings(max_examples=6 * DRAWS, deadline=None)
@given(
    st.integers(5, 70),
    st.sampled_from([(3, 1), (1, 3), (3, 3), 3, 4]),
    st.integers(0, 2),
    st.integers(1, 2),
)
def test_same_numbers(width, taps, padding, dilation):
    last = taps if isinstance(taps, int) else taps[1]
    first = 1 if isinstance(taps, int) else taps[0]
    if width + 2 * padding <= (last - 1) * dilation or 5 + 2 * padding <= (first - 1) * dilation:
        return
    mod = conv_module(width, taps, padding=padding, dilation=dilation)
    assert_same_numbers(padded(mod), mod)


@pytest.mark.parametrize(
    "mod",
    [
        conv_module(64),
        conv_module(61, strides=2),
        conv_module(62, groups=3),
    ],
    ids=["whole vectors", "stride", "groups"],
)
def test_left_alone(mod):
    assert structural_equal(padded(mod), mod)


def test_symbolic_width_is_refused():
    width = tirx.Var("w", "int64")
    x = relax.Var("x", relax.TensorType((1, 3, 5, width), "float32"))
    w = relax.const(np.ones((6, 3, 1, 1), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(relax.op.nn.conv2d(x, w))
        builder.emit_func_output(result)
    mod = builder.get()
    with recording() as decisions:
        assert structural_equal(padded(mod), mod)
    assert "symbolic" in decisions[0].reason


def test_pairs_of_vectors_where_they_cost_little():
    """With 8 lanes, 196 columns are 25 vectors: an odd one would make all tiles one vector wide."""
    with compiling_for(resolve_target("avx2")), recording() as decisions:
        tvm.transform.Sequential([PadOutputWidth()])(conv_module(196, 1))
    assert "196 output columns computed as 208" in decisions[0].reason

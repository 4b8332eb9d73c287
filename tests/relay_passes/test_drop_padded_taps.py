"""Before and after IR, equal numbers, and refusals of DropPaddedTaps."""

import numpy as np
import pytest
from conv_modules import assert_same_numbers, conv_relu, operators
from hypothesis import given, settings
from hypothesis import strategies as st
from thoroughness import DRAWS
from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.relay_passes.drop_padded_taps import DropPaddedTaps
from tvm_ext.relay_passes.graph_pass import recording

CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


def conv_module(sides, taps, last=False, constant=True, groups=1, **attrs):
    """A convolution with channels first, or last."""
    weight_shape = (4, 6 // groups, *taps)
    letters = "DHW"[3 - len(sides) :]
    layouts = {"data_layout": f"N{letters}C", "kernel_layout": f"O{letters}I"} if last else {}
    data_shape = (2, *sides, 6) if last else (2, 6, *sides)
    weights = np.random.default_rng(0).normal(size=weight_shape).astype("float32")
    if last:
        weights = np.moveaxis(weights, 1, -1)
    attrs |= {"groups": groups, **layouts}
    return conv_relu(CONVOLUTIONS[len(sides)], data_shape, weights, constant, **attrs)


def test_a_window_wider_than_the_image_becomes_one_pixel():
    mod = conv_module((6, 6), (3, 3), padding=12, dilation=12)
    with recording() as decisions:
        after = DropPaddedTaps()(mod)
    assert operators(after) == ["nn.conv2d", "nn.relu"]
    call = after["main"].body.blocks[0].bindings[0].value
    assert [int(n) for n in call.args[1].ty.shape] == [4, 6, 1, 1]
    assert [int(n) for n in (*call.attrs.padding, *call.attrs.dilation)] == [0, 0, 0, 0, 1, 1]
    assert decisions[0].reason == "taps that see the input: 1 of 3, 1 of 3"
    assert_same_numbers(after, mod)
    assert structural_equal(DropPaddedTaps()(after), after)


def test_some_taps_of_a_large_kernel_are_left():
    mod = conv_module((3, 2), (9, 5), padding=(4, 2), constant=False)
    after = DropPaddedTaps()(mod)
    assert operators(after) == ["strided_slice", "nn.conv2d", "nn.relu"]
    call = after["main"].body.blocks[0].bindings[1].value
    assert [int(n) for n in call.args[1].ty.shape] == [4, 6, 5, 3]
    assert_same_numbers(after, mod)


def test_input_that_no_tap_is_left_for_is_cut_off():
    mod = conv_module((2, 30), (1, 3), padding=(0, 0, 0, 40), dilation=(1, 28))
    after = DropPaddedTaps()(mod)
    assert_same_numbers(after, mod)


@pytest.mark.extended
@settings(max_examples=8 * DRAWS, deadline=None)
@given(st.data())
def test_same_numbers(data):
    rank = data.draw(st.integers(1, 3))
    sides = [data.draw(st.integers(1, 7)) for _ in range(rank)]
    taps = [data.draw(st.integers(1, 4)) for _ in range(rank)]
    dilation = [data.draw(st.integers(1, 9)) for _ in range(rank)]
    # At least as much padding as leaves a result.
    least = [max(d * (k - 1) + 1 - n, 0) for n, k, d in zip(sides, taps, dilation, strict=True)]
    before = [data.draw(st.integers(0, most + 2)) for most in least]
    after = [most - b + data.draw(st.integers(0, 3)) for most, b in zip(least, before, strict=True)]
    mod = conv_module(
        sides,
        taps,
        last=data.draw(st.booleans()),
        constant=data.draw(st.booleans()),
        groups=data.draw(st.sampled_from([1, 2])),
        strides=[data.draw(st.integers(1, 3)) for _ in range(rank)],
        padding=[*before, *(max(n, 0) for n in after)],
        dilation=dilation,
    )
    dropped = DropPaddedTaps()(mod)
    relax.analysis.well_formed(dropped)
    assert_same_numbers(dropped, mod)


@pytest.mark.parametrize(
    "mod",
    [
        conv_module((6, 6), (3, 3), padding=1),
        conv_module((6, 6), (3, 3), padding=5, dilation=5),
        conv_module((6, 6), (1, 1)),
        conv_module((tirx.Var("h", "int64"), 6), (3, 3), padding=12, dilation=12),
    ],
    ids=["usual", "its corner sees the image", "one tap", "symbolic"],
)
def test_left_alone(mod):
    assert structural_equal(DropPaddedTaps()(mod), mod)


def test_nothing_but_padding_is_refused():
    mod = conv_module((3,), (2,), padding=(7, 7), dilation=5, strides=12)
    with recording() as decisions:
        assert structural_equal(DropPaddedTaps()(mod), mod)
    assert decisions[0].reason == "all of its taps see padding only"

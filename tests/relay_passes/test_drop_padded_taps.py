"""Before and after IR, equal numbers, and refusals of DropPaddedTaps."""

import numpy as np
import pytest
import tvm
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import relax, tirx
from tvm_ffi import structural_equal
from unoptimised import LLVM

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
    x = relax.Var("x", relax.TensorType(data_shape, "float32"))
    w = relax.Var("w", relax.TensorType(weights.shape, "float32"))
    params = [x] if constant else [x, w]
    weight = relax.const(weights) if constant else w
    conv = CONVOLUTIONS[len(sides)]
    builder = relax.BlockBuilder()
    with builder.function("main", params):
        with builder.dataflow():
            made = builder.emit(conv(x, weight, groups=groups, **layouts, **attrs))
            result = builder.emit_output(relax.op.nn.relu(made))
        builder.emit_func_output(result)
    return builder.get()


def operators(mod):
    bindings = mod["main"].body.blocks[0].bindings
    return [str(binding.value.op.name) for binding in bindings]


def run(mod):
    lowered = relax.transform.LegalizeOps()(mod)
    vm = relax.VirtualMachine(tvm.compile(lowered, target=LLVM), tvm.cpu())
    shapes = [[int(size) for size in param.ty.shape] for param in mod["main"].params]
    random = np.random.default_rng(1)
    arrays = [random.normal(size=shape).astype("float32") for shape in shapes]
    return vm["main"](*[tvm.runtime.tensor(array) for array in arrays]).numpy()


def test_a_window_wider_than_the_image_becomes_one_pixel():
    mod = conv_module((6, 6), (3, 3), padding=12, dilation=12)
    with recording() as decisions:
        after = DropPaddedTaps()(mod)
    assert operators(after) == ["relax.nn.conv2d", "relax.nn.relu"]
    call = after["main"].body.blocks[0].bindings[0].value
    assert [int(n) for n in call.args[1].ty.shape] == [4, 6, 1, 1]
    assert [int(n) for n in (*call.attrs.padding, *call.attrs.dilation)] == [0, 0, 0, 0, 1, 1]
    assert decisions[0].reason == "taps that see the input: 1 of 3, 1 of 3"
    np.testing.assert_allclose(run(after), run(mod), rtol=1e-5, atol=1e-5)
    assert structural_equal(DropPaddedTaps()(after), after)


def test_some_taps_of_a_large_kernel_are_left():
    mod = conv_module((3, 2), (9, 5), padding=(4, 2), constant=False)
    after = DropPaddedTaps()(mod)
    assert operators(after) == ["relax.strided_slice", "relax.nn.conv2d", "relax.nn.relu"]
    call = after["main"].body.blocks[0].bindings[1].value
    assert [int(n) for n in call.args[1].ty.shape] == [4, 6, 5, 3]
    np.testing.assert_allclose(run(after), run(mod), rtol=1e-5, atol=1e-5)


def test_input_that_no_tap_is_left_for_is_cut_off():
    mod = conv_module((2, 30), (1, 3), padding=(0, 0, 0, 40), dilation=(1, 28))
    after = DropPaddedTaps()(mod)
    np.testing.assert_allclose(run(after), run(mod), rtol=1e-5, atol=1e-5)


@settings(max_examples=25, deadline=None)
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
    np.testing.assert_allclose(run(dropped), run(mod), rtol=1e-5, atol=1e-5)


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

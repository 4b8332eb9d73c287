"""Which weight meets which input, and the two ways to compute all phases."""

import numpy as np
import pytest
import tvm
from conv_modules import conv_transpose, draw
from hypothesis import given, settings
from hypothesis import strategies as st
from tvm import te
from unoptimised import built

from tvm_ext.relay_passes.conv_transpose_to_conv import (
    InterleavedKernel,
    StackedConvolution,
    UpsampledAxis,
)


@st.composite
def axes(draw_one: st.DrawFn) -> UpsampledAxis:
    length, kernel = draw_one(st.integers(1, 6)), draw_one(st.integers(1, 6))
    stride, dilation = draw_one(st.integers(1, 4)), draw_one(st.integers(1, 3))
    full = (length - 1) * stride + (kernel - 1) * dilation + 1
    before = draw_one(st.integers(0, min(full - 1, 7)))
    outputs = draw_one(st.integers(1, full - before + stride))
    return UpsampledAxis(length, outputs, kernel, stride, dilation, before)


def definition(axis: UpsampledAxis, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    out = np.zeros(axis.outputs)
    for i in range(axis.length):
        for j in range(axis.kernel):
            o = i * axis.stride + j * axis.dilation - axis.before
            if 0 <= o < axis.outputs:
                out[o] += x[i] * w[j]
    return out


def by_phase(axis: UpsampledAxis, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """What the attributes of ``axis`` promise: one window for all phases."""
    padded = np.pad(x, axis.padding)
    table = axis.weight_table()
    weights = np.where(table >= 0, w[np.maximum(table, 0)], 0)
    windows = [
        padded[m + axis.skipped : m + axis.skipped + axis.taps] for m in range(axis.positions)
    ]
    return np.array([weights @ window for window in windows]).reshape(-1)[: axis.outputs]


@given(axes())
@settings(max_examples=60, deadline=None)
def test_phases_together_are_the_transposed_convolution(axis):
    x, w = draw(axis.length, seed=1), draw(axis.kernel, seed=2)
    np.testing.assert_allclose(by_phase(axis, x, w), definition(axis, x, w), atol=1e-6)
    aligned, cut = axis.aligned()
    np.testing.assert_allclose(by_phase(aligned, x, w)[cut:], definition(axis, x, w), atol=1e-6)
    assert aligned.taps <= axis.taps


@given(axes())
@settings(max_examples=30, deadline=None)
def test_conditions_hold_where_there_is_a_weight(axis):
    analyzer = tvm.sym.Analyzer()
    table = axis.weight_table()
    for phase, tap in np.ndindex(*table.shape):
        variables = [tvm.tirx.IntImm("int32", int(v)) for v in (phase, tap)]
        conditions = axis.has_weight(*variables)
        holds = all(bool(int(analyzer.simplify(c))) for c in conditions)
        assert holds == (table[phase, tap] >= 0)


def test_a_kernel_as_long_as_the_stride_has_one_tap():
    axis = UpsampledAxis(length=5, outputs=10, kernel=2, stride=2, dilation=1, before=0)
    assert (axis.taps, axis.positions, axis.is_dense, axis.padding) == (1, 5, True, (0, 0))


def test_padding_costs_a_tap_that_alignment_saves():
    axis = UpsampledAxis(length=5, outputs=10, kernel=4, stride=2, dilation=1, before=1)
    assert (axis.taps, axis.useful_taps) == (3, 4)
    aligned, cut = axis.aligned()
    assert (aligned.taps, cut) == (2, 1)


CASES = {
    "1d": ((2, 4, 5), (4, 3, 4), (2,), 1),
    "stride 3": ((1, 4, 5), (4, 3, 5), (3,), 1),
    "groups": ((1, 4, 3, 5), (4, 2, 3, 3), (2, 3), 2),
    "depthwise": ((1, 4, 3, 5), (4, 1, 4, 4), (2, 2), 4),
    "3d": ((1, 2, 2, 3, 2), (2, 3, 3, 1, 2), (2, 2, 1), 1),
}


@pytest.mark.extended
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dilated", [1, 2])
@pytest.mark.parametrize("joined", [False, True])
def test_interleaved_kernel(case, dilated, joined):
    x_shape, w_shape, strides, groups = CASES[case]
    joined = joined and groups == 1
    x, w, all_axes, wanted = problem(x_shape, w_shape, strides, groups, dilated)
    kernel = InterleavedKernel(all_axes, groups, joined, "float32")
    got = evaluate(kernel, np.moveaxis(x, 1, -1), kernel.pack(w))
    image = got.reshape(x.shape[0], *kernel.output_spatial, -1)
    np.testing.assert_allclose(cropped(np.moveaxis(image, -1, 1), wanted), wanted, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dilated", [1, 2])
def test_stacked_convolution(case, dilated):
    x_shape, w_shape, strides, groups = CASES[case]
    x, w, all_axes, wanted = problem(x_shape, w_shape, strides, groups, dilated)
    stacked = StackedConvolution.of(all_axes, groups)
    packed = stacked.pack(w)
    assert list(packed.shape) == stacked.weight_shape(w.shape)
    rank = len(strides)
    padding = stacked.padding
    widths = [(0, 0), (0, 0), *((padding[n], padding[rank + n]) for n in range(rank))]
    made = correlate(np.pad(x, widths), packed, groups)
    apart = made.reshape(stacked.split_shape(made.shape)).transpose(stacked.interleaving)
    sides = [side * axis.stride for side, axis in zip(made.shape[2:], stacked.axes, strict=True)]
    image = apart.reshape(x.shape[0], -1, *sides)
    got = cropped(image, wanted, stacked.begin)
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def problem(x_shape, w_shape, strides, groups, dilated):
    rank = len(strides)
    x, w = draw(*x_shape), draw(*w_shape, seed=1)
    padding, extra, dilation = [1] + [0] * (2 * rank - 1), [0] * rank, [dilated] * rank
    wanted = conv_transpose(x, w, strides, padding, extra, dilation, groups)
    all_axes = tuple(
        UpsampledAxis(
            x_shape[2 + n], wanted.shape[2 + n], w_shape[2 + n], strides[n], dilated, padding[n]
        )
        for n in range(rank)
    )
    return x, w, all_axes, wanted


def cropped(image, wanted, begin=None):
    begin = begin or [0] * (wanted.ndim - 2)
    spatial = zip(begin, wanted.shape[2:], strict=True)
    return image[(slice(None), slice(None), *(slice(b, b + size) for b, size in spatial))]


def correlate(x, weight, groups):
    """A plain convolution without padding, channels first, in NumPy."""
    inputs, outputs = weight.shape[1], weight.shape[0] // groups
    kernel = weight.shape[2:]
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, tuple(range(2, x.ndim)))
    parts = []
    for group in range(groups):
        data = windows[:, group * inputs : (group + 1) * inputs]
        mine = weight[group * outputs : (group + 1) * outputs]
        axes_of_data = (1, *range(x.ndim, windows.ndim))
        part = np.tensordot(data, mine, (axes_of_data, tuple(range(1, mine.ndim))))
        parts.append(np.moveaxis(part, -1, 1))
    return np.concatenate(parts, axis=1)


def evaluate(kernel, x, weight):
    placeholders = [te.placeholder(a.shape, name=n) for a, n in ((x, "x"), (weight, "w"))]
    result = kernel.compute(*placeholders)
    library = built({"main": te.create_prim_func([*placeholders, result])})
    out = tvm.runtime.tensor(np.zeros([int(n) for n in result.shape], "float32"))
    arrays = [tvm.runtime.tensor(np.ascontiguousarray(a)) for a in (x, weight)]
    library["main"](*arrays, out)
    return out.numpy()

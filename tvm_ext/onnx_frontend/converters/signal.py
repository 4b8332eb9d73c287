"""DFT, STFT, the windows Hann, Hamming and Blackman, and MelWeightMatrix."""

import math
from typing import Any

import numpy as np
import onnx
import tvm_ffi
from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import (
    Size,
    constant_array,
    size_argument,
    sizes_of,
)
from tvm_ext.onnx_frontend.converters.fourier import DIRECT_POINTS, Transform, transformed
from tvm_ext.onnx_frontend.converters.runtime_sizes import (
    computed_dimensions,
    wide,
)
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter, onnx_type_name

_NARROW = ("float16", "bfloat16")


class DFT(OnnxOpConverter):
    """Forward and inverse transform along one axis of a real or complex tensor.

    Length and axis may be computed in the run.
    """

    @classmethod
    def _impl_v17(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _dft(bb, inputs, attr, params, attr.get("axis", 1))

    @classmethod
    def _impl_v20(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        if inputs[2] is None:
            return _dft(bb, inputs, attr, params, -2)
        axis = constant_array(inputs[2], params)
        if axis is None:
            return _dft_of_any_axis(bb, inputs, attr, params)
        return _dft(bb, inputs, attr, params, int(axis.item()))


def _dft(bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any, axis: int) -> relax.Expr:
    x = inputs[0]
    shape = sizes_of(x)
    if not -len(shape) <= axis < len(shape) or axis % len(shape) == len(shape) - 1:
        raise FormError(f"its axis {axis} is no axis of the signal, of rank {len(shape)}")
    axis %= len(shape)
    return _spectrum(bb, x, _transform(bb, inputs, attr, params, shape[axis]), axis)


def _spectrum(bb: relax.BlockBuilder, x: relax.Expr, form: Transform, axis: int) -> relax.Expr:
    last = len(sizes_of(x)) - 1
    order = [*(a for a in range(last) if a != axis), axis, last]
    return _narrowed(bb, _along_axis(bb, x, form, order), str(x.ty.dtype))


def _dft_of_any_axis(bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
    """The transform along each axis, of which the run's is taken; NaN where that is none."""
    sizes, dtype = sizes_of(inputs[0]), str(inputs[0].ty.dtype)
    rank = len(sizes)
    forms = [_transform(bb, inputs, attr, params, size) for size in sizes[:-1]]
    # A spectrum of one bin, as of an axis for a batch, has no one-sided inverse.
    every = {
        axis: _spectrum(bb, inputs[0], form, axis)
        for axis, form in enumerate(forms)
        if not _same(form.points, 0)
    }
    if not every:
        raise FormError("no axis of its input has a transform; expected more than one bin")
    shapes = [sizes_of(spectrum) for spectrum in every.values()]
    given: list[Size] = shapes[0]
    if any(not _same(a, b) for shape in shapes for a, b in zip(shape, given, strict=True)):
        axes = list(every)
        bins = computed_dimensions(
            bb,
            [f"bins_{place}" for place in range(rank - 1)],
            lambda axis, whole, *taken: [
                tirx.Select(_is(axis, place, rank), wide(taken[axes.index(place)]), wide(size))
                if place in axes
                else wide(size)
                for place, size in enumerate(whole)
            ],
            inputs[2],
            sizes[:-1],
            *(shape[axis] for axis, shape in zip(axes, shapes, strict=True)),
        )
        given = [*bins, given[-1]]

    def pick(axis: te.Tensor, shape: list[Any], *spectra: te.Tensor) -> te.Tensor:
        def read(*index: tirx.Var) -> tirx.Expr:
            value = tirx.const(float("nan"), dtype)
            for place, spectrum in zip(every, spectra, strict=True):
                value = tirx.if_then_else(_is(axis, place, rank), spectrum(*index), value)
            return value

        return te.compute(shape, read, name="along_axis")

    return bb.emit_te(pick, inputs[2], given, *every.values())


def _is(axis: te.Tensor, place: int, rank: int) -> tirx.Expr:
    value = axis(*[0] * len(axis.shape))
    return tirx.any(value == place, value == place - rank)


def _transform(
    bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any, size: Size
) -> Transform:
    """The transform of an axis of ``size`` elements that a DFT node describes."""
    channels = _channels(sizes_of(inputs[0]))
    inverse, onesided = bool(attr.get("inverse", 0)), bool(attr.get("onesided", 0))
    if inputs[1] is not None:
        points = size_argument(bb, inputs[1], params, "dft_length")
    else:
        points = 2 * (size - 1) if inverse and onesided else size
    return Transform(points, channels, inverse, onesided)


def _along_axis(
    bb: relax.BlockBuilder, x: relax.Expr, form: Transform, order: list[int]
) -> relax.Expr:
    """The transform along the axis that ``order`` puts next to last."""
    x = _widened(bb, _permuted(bb, x, order))
    if not _same(form.taken, sizes_of(x)[-2]):
        x = bb.emit_te(_fitted, x, form.taken)
    spectrum = transformed(bb, x, form)
    return _permuted(bb, spectrum, list(np.argsort(order)))


class STFT(OnnxOpConverter):
    """Frames times the window, transformed.

    Step, length and window may be computed in the run. Where they are stored, window and transform
    are one matrix that the frames are multiplied with.
    """

    @classmethod
    def _impl_v17(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        signal, window = inputs[0], inputs[2]
        dtype = str(signal.ty.dtype)
        if len(sizes_of(signal)) == 2:
            signal = bb.emit(relax.op.expand_dims(signal, -1))
        shape = sizes_of(signal)
        if len(shape) != 3:
            raise FormError(f"its signal has rank {len(shape)}, expected batch, time and parts")
        channels = _channels(shape)
        step = size_argument(bb, inputs[1], params, "frame_step")
        length = _frame_length(bb, inputs, params, shape)
        _require_frames(shape[1], length, step)
        onesided = bool(attr.get("onesided", 1))
        if onesided and channels == 2:
            raise FormError("its signal is complex; expected onesided=0 for a complex signal")
        form = Transform(length, channels, onesided=onesided)
        stored = constant_array(window, params)
        in_table = stored is not None and isinstance(length, int) and length <= DIRECT_POINTS
        factors = [] if window is None or in_table else [_widened(bb, window)]
        frames = bb.emit_te(_frames, _widened(bb, signal), length, step, *factors)
        spectrum = transformed(bb, frames, form, stored if in_table else None)
        return _narrowed(bb, spectrum, dtype)


def _frame_length(bb: relax.BlockBuilder, inputs: Any, params: Any, shape: list[Size]) -> Size:
    window = inputs[2]
    width = sizes_of(window)[0] if window is not None else None
    if inputs[3] is None:
        return shape[1] if width is None else width
    length = size_argument(bb, inputs[3], params, "frame_length")
    if width is not None and isinstance(width, int) and isinstance(length, int):
        if width != length:
            raise FormError(f"its window has {width} elements, expected frame_length, {length}")
        return width
    return length if width is None else width


def _require_frames(samples: Size, length: Size, step: Size) -> None:
    if isinstance(step, int) and step < 1:
        raise FormError(f"its frame_step is {step}, expected at least one")
    if isinstance(samples, int) and isinstance(length, int) and not 0 < length <= samples:
        raise FormError(f"its frames of {length} samples do not fit into a signal of {samples}")


def _channels(shape: list[Size]) -> int:
    if len(shape) < 2 or shape[-1] not in (1, 2):
        last = shape[-1] if shape else "nothing"
        raise FormError(f"the last axis of its input is {last}, expected 1 (real) or 2 (complex)")
    return int(shape[-1])


def _same(size: Size, other: Size) -> bool:
    if isinstance(size, int) or isinstance(other, int):
        return isinstance(size, int) and isinstance(other, int) and size == other
    return tvm_ffi.structural_equal(size, other)


def _widened(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """Float16 and bfloat16 as float32."""
    return bb.emit(relax.op.astype(x, "float32")) if str(x.ty.dtype) in _NARROW else x


def _narrowed(bb: relax.BlockBuilder, x: relax.Expr, dtype: str) -> relax.Expr:
    return bb.emit(relax.op.astype(x, dtype)) if str(x.ty.dtype) != dtype else x


def _permuted(bb: relax.BlockBuilder, x: relax.Expr, order: list[int]) -> relax.Expr:
    if order == sorted(order):
        return x
    return bb.emit(relax.op.permute_dims(x, [int(axis) for axis in order]))


def _fitted(x: te.Tensor, size: Size) -> te.Tensor:
    """The next to last axis cut to ``size``, or filled with zeros."""
    given = x.shape[-2]

    def entry(*index: Any) -> tirx.Expr:
        return tirx.if_then_else(index[-2] < given, x(*index), tirx.const(0, x.dtype))

    return te.compute((*x.shape[:-2], size, x.shape[-1]), entry, name="fitted")


def _frames(x: te.Tensor, length: Size, step: Size, *window: te.Tensor) -> te.Tensor:
    """``(batch, time, parts)`` as ``(batch, frames, length, parts)``, times the window."""
    batch, samples, channels = x.shape
    count = (samples - length) // step + 1

    def entry(b: Any, t: Any, n: Any, part: Any) -> tirx.Expr:
        sample = x(b, t * step + n, part)
        return sample * window[0](n) if window else sample

    return te.compute((batch, count, length, channels), entry, name="frames")


# HannWindow, HammingWindow, BlackmanWindow and MelWeightMatrix.
#
# TVM's importer has no converters for them. Constant folding computes them where their sizes are
# stored; these are for sizes that only the run knows.


_FLOAT = onnx.TensorProto.FLOAT


class _CosineWindow(OnnxOpConverter):
    """``c0 - c1 cos(2 pi n / N) + c2 cos(4 pi n / N)`` as in the ONNX operators' function bodies.

    N is the size for a periodic window and one less for a symmetric one.
    """

    coefficients: tuple[float, float, float]

    @classmethod
    def _impl_v17(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        dtype = str(onnx_type_name(attr.get("output_datatype", _FLOAT)))
        size = size_argument(bb, inputs[0], params, "window_size")
        period = size if attr.get("periodic", 1) else size - 1
        return bb.emit_te(_window, size, period, cls.coefficients, dtype)


class HannWindow(_CosineWindow):
    """``sin(pi n / N)^2``."""

    coefficients = (0.5, 0.5, 0.0)


class HammingWindow(_CosineWindow):
    """With the coefficients 25/46 and 21/46 of the specification."""

    coefficients = (25.0 / 46.0, 21.0 / 46.0, 0.0)


class BlackmanWindow(_CosineWindow):
    """With the coefficients 0.42, 0.5 and 0.08."""

    coefficients = (0.42, 0.5, 0.08)


def _window(
    size: Size, period: Size, coefficients: tuple[float, float, float], dtype: str
) -> te.Tensor:
    constant, first, second = coefficients

    def entry(n: tirx.Var) -> tirx.Expr:
        turns = tirx.Cast("float64", n) / tirx.Cast("float64", period)
        angle = turns * tirx.const(2 * math.pi, "float64")
        value = constant - first * tirx.cos(angle) + second * tirx.cos(angle * 2.0)
        return tirx.Cast(dtype, value)

    return te.compute((size,), entry, name="window")


class MelWeightMatrix(OnnxOpConverter):
    """Triangular filters on the mel scale, of shape ``(dft_length // 2 + 1, num_mel_bins)``."""

    @classmethod
    def _impl_v17(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        dtype = str(onnx_type_name(attr.get("output_datatype", _FLOAT)))
        names = ("num_mel_bins", "dft_length", "sample_rate")
        bins, points, rate = (
            size_argument(bb, value, params, name)
            for value, name in zip(inputs[:3], names, strict=True)
        )
        return bb.emit_te(_mel_filters, bins, points, rate, *inputs[3:5], dtype)


def _mel_filters(
    bins: Size, points: Size, rate: Size, low: te.Tensor, high: te.Tensor, dtype: str
) -> te.Tensor:
    """Filter i rises from the i-th to the next of ``bins + 2`` frequencies and falls to the third.

    A frequency f is 2595 log10(1 + f / 700) mel; the frequencies are equally far apart in mel.
    """

    def edge(i: tirx.Expr) -> tirx.Expr:
        start, end = (_mel(tirx.Cast("float64", f(*[0] * len(f.shape)))) for f in (low, high))
        step = (end - start) / tirx.Cast("float64", bins + 2)
        mel = start + tirx.Cast("float64", i) * step
        hertz = 700.0 * (tirx.exp(mel * (math.log(10.0) / 2595.0)) - 1.0)
        place = tirx.Cast("float64", points + 1) * hertz / tirx.Cast("float64", rate)
        return tirx.Cast("int64", tirx.floor(place))

    edges = te.compute((bins + 2,), edge, name="mel_edges")

    def weight(j: tirx.Var, i: tirx.Var) -> tirx.Expr:
        left, centre, right = edges(i), edges(i + 1), edges(i + 2)
        falling = _ratio(right - j, right - centre)
        rising = _ratio(j - left, centre - left)
        zero = tirx.const(0.0, "float64")
        below = tirx.Select(tirx.all(left < centre, left <= j, j <= centre), rising, zero)
        single = tirx.all(left == centre, j == centre)
        below = tirx.Select(single, tirx.const(1.0, "float64"), below)
        value = tirx.Select(tirx.all(centre <= j, j < right), falling, below)
        return tirx.Cast(dtype, value)

    return te.compute((points // 2 + 1, bins), weight, name="mel_filters")


def _mel(hertz: tirx.Expr) -> tirx.Expr:
    return tirx.log(1.0 + hertz / 700.0) * (2595.0 / math.log(10.0))


def _ratio(above: tirx.Expr, below: tirx.Expr) -> tirx.Expr:
    """A quotient of integers; where a selection drops it, the divisor may be zero."""
    divisor = tirx.max(below, tirx.const(1, "int64"))
    return tirx.Cast("float64", above) / tirx.Cast("float64", divisor)

"""HannWindow, HammingWindow, BlackmanWindow and MelWeightMatrix.

TVM's importer has no converters for them. Constant folding computes them where their sizes are
stored; these are for sizes that only the run knows.
"""

import math
from typing import Any

import onnx
from tvm import relax, te, tirx

from tvm_ext.hardware.tvm_compat import OnnxOpConverter, onnx_type_name
from tvm_ext.onnx_frontend.converters.arguments import Size, size_argument

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

"""Discrete Fourier transforms as matmuls with a table of cosines and sines.

The product runs in the templates for matrices, and for the lengths of audio front ends it is
faster than a fast Fourier transform of scalar butterflies. Long transforms are split into two
shorter ones with a product by twiddle factors between them (Cooley and Tukey, "An Algorithm for
the Machine Calculation of Complex Fourier Series", Math. Comp. 19, 1965), and those of a prime
length are written as a convolution with a chirp, of a length that can be split (Bluestein, "A
Linear Filtering Approach to the Computation of Discrete Fourier Transform", IEEE Trans. Audio
Electroacoust. 18, 1970).

Tables are computed in float64 from angles that were reduced as integers, and stored in the type of
the computation.
"""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of

# Points of the longest transform by one table: 4 MiB for a real signal and half of the spectrum.
DIRECT_POINTS = 1024
# Longer than any signal that a model transforms at once; tables of twice as many numbers are made.
MOST_POINTS = 1 << 24


@dataclass(frozen=True)
class Transform:
    """What to compute along the next to last axis of a tensor of shape ``(..., n, channels)``.

    Attributes
    ----------
    points : int or tirx.Expr
        Length of the transform.
    channels : int
        1 for real input, 2 for real and imaginary part.
    inverse, onesided : bool
        As the attributes of ONNX's DFT: a one-sided transform gives ``points // 2 + 1`` bins, a
        one-sided inverse takes as many and gives real numbers.
    """

    points: Size
    channels: int
    inverse: bool = False
    onesided: bool = False

    @property
    def to_real(self) -> bool:
        return self.inverse and self.onesided

    @property
    def taken(self) -> Size:
        return self.points // 2 + 1 if self.to_real else self.points

    @property
    def given(self) -> Size:
        return self.points // 2 + 1 if self.onesided and not self.inverse else self.points

    @property
    def parts(self) -> int:
        return 1 if self.to_real else 2


def transformed(
    bb: relax.BlockBuilder, x: relax.Expr, form: Transform, window: np.ndarray | None = None
) -> relax.Expr:
    """The transform of ``x``, of shape ``(..., form.given, form.parts)``.

    Parameters
    ----------
    x : relax.Expr
        Shape ``(..., form.taken, form.channels)``, float32 or float64.
    window : numpy.ndarray, optional
        Shape ``(form.taken,)``: factors of the input, for a length of at most ``DIRECT_POINTS``.

    Raises
    ------
    FormError
        The length is out of bounds.
    """
    dtype = str(x.ty.dtype)
    if not isinstance(form.points, int):
        table = bb.emit_te(lambda points: _run_time_table(points, form, dtype), form.points)
        return _multiplied(bb, x, table, form)
    if form.points < 1:
        raise FormError(f"its length is {form.points}, expected at least one point")
    if form.points > MOST_POINTS:
        raise FormError(f"its length is {form.points}, expected at most {MOST_POINTS}")
    if form.points > DIRECT_POINTS:
        return _split(bb, x, form)
    table = basis(form)
    if window is not None:
        table = table * window.astype(np.float64)[:, None, None, None]
    matrix = table.reshape(math.prod(table.shape[:2]), -1).astype(dtype)
    return _multiplied(bb, x, relax.const(matrix, dtype), form)


def basis(form: Transform) -> np.ndarray:
    """Float64 table ``(taken, channels, given, parts)`` that the input is multiplied with."""
    points = form.points
    steps = np.outer(np.arange(form.taken), np.arange(form.given)) % points
    angle = steps * ((1 if form.inverse else -1) * 2 * math.pi / points)
    cosine, sine = np.cos(angle), np.sin(angle)
    table = np.empty((form.taken, form.channels, form.given, form.parts))
    table[:, 0, :, 0] = cosine
    if form.channels == 2:
        table[:, 1, :, 0] = -sine
    if form.parts == 2:
        table[:, 0, :, 1] = sine
        if form.channels == 2:
            table[:, 1, :, 1] = cosine
    if form.to_real:
        # Every bin but the first and, of an even length, the last stands for two.
        table[1 : (points + 1) // 2] *= 2
    return table / points if form.inverse else table


def _run_time_table(points: tirx.Expr, form: Transform, dtype: str) -> te.Tensor:
    """``basis`` as a matrix for a length that only the run knows."""
    form = dataclasses.replace(form, points=points)

    def entry(row: tirx.Var, column: tirx.Var) -> tirx.Expr:
        n, channel = row // form.channels, row % form.channels
        k, part = column // form.parts, column % form.parts
        steps = tirx.Cast("float64", n * k % points)
        angle = steps * tirx.const(2 * math.pi, "float64") / tirx.Cast("float64", points)
        sine = tirx.sin(angle) * (1.0 if form.inverse else -1.0)
        cross = tirx.Select(part == 1, sine, -sine)
        value = tirx.Select(channel == part, tirx.cos(angle), cross)
        if form.to_real:
            alone = tirx.any(n == 0, n * 2 == points)
            one, two = tirx.const(1.0, "float64"), tirx.const(2.0, "float64")
            value = value * tirx.Select(alone, one, two)
        if form.inverse:
            value = value / tirx.Cast("float64", points)
        return tirx.Cast(dtype, value)

    shape = (form.taken * form.channels, form.given * form.parts)
    return te.compute(shape, entry, name="fourier_table")


def _multiplied(
    bb: relax.BlockBuilder, x: relax.Expr, matrix: relax.Expr, form: Transform
) -> relax.Expr:
    lead = sizes_of(x)[:-2]
    rows = bb.emit(relax.op.reshape(x, (*lead, form.taken * form.channels)))
    spectrum = bb.emit(relax.op.matmul(rows, matrix))
    return bb.emit(relax.op.reshape(spectrum, (*lead, form.given, form.parts)))


def _split(bb: relax.BlockBuilder, x: relax.Expr, form: Transform) -> relax.Expr:
    """With ``n = n2 * N1 + n1`` and ``k = k1 * N2 + k2``: N1 transforms, twiddles, N2 transforms.

    ``X[k1 N2 + k2] = sum_n1 w^(n1 k2) (sum_n2 x[n2 N1 + n1] w2^(n2 k2)) w1^(n1 k1)``, where ``w``,
    ``w1`` and ``w2`` are the roots of unity of N, N1 and N2.
    """
    if form.to_real:
        x = bb.emit_te(_mirrored, x, form.points)
        form = Transform(form.points, 2, inverse=True)
        whole = _split(bb, x, form)
        return bb.emit_te(_first_of, whole, form.points, 1)
    first = _factor(form.points)
    if first == 1:
        return _chirped(bb, x, form)
    second = form.points // first
    lead = sizes_of(x)[:-2]
    rank = len(lead)
    x = bb.emit(relax.op.reshape(x, (*lead, second, first, form.channels)))
    order = [*range(rank), rank + 1, rank, rank + 2]
    x = bb.emit(relax.op.permute_dims(x, order))
    inner = transformed(bb, x, Transform(second, form.channels, form.inverse))
    turned = bb.emit_te(_twiddled, inner, _twiddles(form, first, second, str(x.ty.dtype)))
    outer = transformed(bb, turned, Transform(first, 2, form.inverse))
    spectrum = bb.emit(relax.op.permute_dims(outer, order))
    spectrum = bb.emit(relax.op.reshape(spectrum, (*lead, form.points, 2)))
    return bb.emit_te(_first_of, spectrum, form.given, 2) if form.onesided else spectrum


def _factor(points: int) -> int:
    """The largest divisor up to the square root; 1 of a prime."""
    return next(d for d in range(math.isqrt(points), 0, -1) if points % d == 0)


def _chirped(bb: relax.BlockBuilder, x: relax.Expr, form: Transform) -> relax.Expr:
    """With ``c[n] = w^(n^2 / 2)`` and since ``nk = (n^2 + k^2 - (k - n)^2) / 2``:

    ``X[k] = c[k] sum_n (x[n] c[n]) / c[k - n]``, a convolution, by transforms of a power of two.
    """
    points, dtype = form.points, str(x.ty.dtype)
    length = 1 << (2 * points - 2).bit_length()
    turns = np.array([n * n % (2 * points) for n in range(points)])
    chirp = np.exp((1j if form.inverse else -1j) * math.pi / points * turns)
    filtered = np.zeros(length, np.complex128)
    filtered[:points] = chirp.conj()
    filtered[length - points + 1 :] = chirp.conj()[:0:-1]
    spectrum = np.fft.fft(filtered)
    scaled = chirp / points if form.inverse else chirp
    signal = bb.emit_te(_turned, x, _pairs(chirp, dtype), length)
    bins = transformed(bb, signal, Transform(length, 2))
    product = bb.emit_te(_turned, bins, _pairs(spectrum, dtype), length)
    back = transformed(bb, product, Transform(length, 2, inverse=True))
    return bb.emit_te(_turned, back, _pairs(scaled[: form.given], dtype), form.given)


def _pairs(numbers: np.ndarray, dtype: str) -> relax.Expr:
    return relax.const(np.stack([numbers.real, numbers.imag], -1).astype(dtype), dtype)


def _turned(x: te.Tensor, factors: te.Tensor, count: int) -> te.Tensor:
    """``(..., n, channels)`` times complex factors, as ``(..., count, 2)``, zero behind these."""
    *lead, _, channels = x.shape
    given, zero = factors.shape[0], tirx.const(0, x.dtype)

    def entry(*index: Any) -> tirx.Expr:
        *place, n, part = index
        cosine, sine = factors(n, 0), factors(n, 1)
        real = x(*place, n, 0)
        value = tirx.Select(part == 0, real * cosine, real * sine)
        if channels == 2:
            imaginary = x(*place, n, 1)
            value += tirx.Select(part == 0, -imaginary * sine, imaginary * cosine)
        return tirx.if_then_else(n < given, value, zero)

    return te.compute((*lead, count, 2), entry, name="turned")


def _twiddles(form: Transform, first: int, second: int, dtype: str) -> relax.Expr:
    steps = np.outer(np.arange(first), np.arange(second)) % form.points
    angle = steps * ((1 if form.inverse else -1) * 2 * math.pi / form.points)
    return relax.const(np.stack([np.cos(angle), np.sin(angle)], -1).astype(dtype), dtype)


def _twiddled(x: te.Tensor, factors: te.Tensor) -> te.Tensor:
    """``(..., N1, N2, 2)`` times the factors ``(N1, N2, 2)``, as ``(..., N2, N1, 2)``."""
    *lead, first, second, _ = x.shape

    def entry(*index: Any) -> tirx.Expr:
        *place, k, n, part = index
        real, imaginary = x(*place, n, k, 0), x(*place, n, k, 1)
        cosine, sine = factors(n, k, 0), factors(n, k, 1)
        return tirx.Select(
            part == 0, real * cosine - imaginary * sine, real * sine + imaginary * cosine
        )

    return te.compute((*lead, second, first, 2), entry, name="twiddled")


def _mirrored(x: te.Tensor, points: int) -> te.Tensor:
    """All bins of a real signal from the first half: the others are their conjugates."""
    *lead, bins, channels = x.shape
    zero = tirx.const(0, x.dtype)

    def entry(*index: Any) -> tirx.Expr:
        *place, k, part = index
        if channels == 1:
            imaginary = zero
        else:
            sign = tirx.Select(k < bins, tirx.const(1, x.dtype), tirx.const(-1, x.dtype))
            # The first bin and the one in the middle are real.
            alone = tirx.any(k == 0, k * 2 == points)
            imaginary = tirx.Select(alone, zero, sign * x(*place, _folded(k, bins, points), 1))
        return tirx.Select(part == 0, x(*place, _folded(k, bins, points), 0), imaginary)

    return te.compute((*lead, points, 2), entry, name="mirrored")


def _folded(k: tirx.Expr, bins: tirx.Expr, points: int) -> tirx.Expr:
    return tirx.Select(k < bins, k, points - k)


def _first_of(x: te.Tensor, count: Size, parts: int) -> te.Tensor:
    """The first ``count`` bins and ``parts`` parts."""
    return te.compute((*x.shape[:-2], count, parts), lambda *i: x(*i), name="first_of")

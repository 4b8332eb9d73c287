"""sin, cos and tan.

The argument is reduced to ``abs(r) <= pi / 4`` by subtracting ``n * pi / 2`` in float64, with pi/2
in two parts of which the first has 27 bits: ``n`` times it is exact up to ``abs(x) = 1e8``, with
fused multiply-add or without. Beyond, neighbouring floats are more than a full turn apart; results
stay between -1 and 1 but say nothing.
"""

import math

from tvm import tirx

from tvm_ext.tir_schedules.cpu.vector_math.expression import (
    ROUNDER64,
    SIGN_BIT,
    Let,
    at_least,
    at_most,
    bits_of,
    from_bits,
    magnitude,
    number,
    number64,
    polynomial,
    select,
    unsigned,
    with_sign_of,
)

PI_HALF_HIGH64 = float.fromhex("0x1.921fb54p0")
PI_HALF_LOW64 = 9.920935796805404e-10

# (sin(r) / r - 1) / r**2 and (cos(r) - 1 + r**2 / 2) / r**4 in r**2; errors 2**-27.9 of sin(r) and
# 2**-33 of cos(r). Minimax fits, rounded to float32 one coefficient after the other.
SIN_TAIL = (-0.16666655242443085, 0.008332187309861183, -0.000195179003640078)
COS_TAIL = (0.04166664555668831, -0.0013887309469282627, 2.4432327336398885e-05)


def _reduce(let: Let, x: tirx.Expr) -> tuple[tirx.Var, tirx.Var]:
    """``r`` with ``x = n * pi / 2 + r``, and ``n`` modulo 2**32."""
    wide = let(x.astype("float64"))
    shifted = let(wide * number64(2.0 / math.pi) + number64(ROUNDER64))
    n = let(shifted - number64(ROUNDER64))
    rest = (wide - n * number64(PI_HALF_HIGH64)) - n * number64(PI_HALF_LOW64)
    r = let(rest.astype("float32"))
    # Far beyond 1e8 the difference is anything; for infinite x it is NaN, and stays so.
    r = let(at_least(let(at_most(r, 0.7854)), -0.7854))
    return r, let(tirx.reinterpret("uint64", shifted).astype("uint32"))


def _sin_and_cos(let: Let, r: tirx.Var) -> tuple[tirx.Var, tirx.Var]:
    square = let(r * r)
    sine = r + (r * square) * polynomial(square, SIN_TAIL)
    tail = (square * square) * polynomial(square, COS_TAIL)
    cosine = number(1.0) + (tail - number(0.5) * square)
    return let(sine), let(cosine)


def _is_odd(n: tirx.Expr) -> tirx.Expr:
    return (n & unsigned(1)).equal(unsigned(1))


def _negated_where(value: tirx.Expr, sign: tirx.Expr) -> tirx.Expr:
    """``value``, negated where the highest bit of ``sign`` is set."""
    return from_bits(bits_of(value) ^ (sign & unsigned(SIGN_BIT)))


def sin(let: Let, x: tirx.Var) -> tirx.Expr:
    """The sine of ``x`` radians."""
    r, n = _reduce(let, magnitude(x))
    sine, cosine = _sin_and_cos(let, r)
    value = select(_is_odd(n), cosine, sine)
    return _negated_where(value, (n << unsigned(30)) ^ bits_of(x))


def cos(let: Let, x: tirx.Var) -> tirx.Expr:
    """The cosine of ``x`` radians."""
    r, n = _reduce(let, x)
    sine, cosine = _sin_and_cos(let, r)
    next_quarter = let(n + unsigned(1))
    value = select(_is_odd(n), sine, cosine)
    return _negated_where(value, next_quarter << unsigned(30))


def tan(let: Let, x: tirx.Var) -> tirx.Expr:
    """The tangent of ``x`` radians."""
    r, n = _reduce(let, magnitude(x))
    sine, cosine = _sin_and_cos(let, r)
    odd = _is_odd(n)
    value = select(odd, cosine, sine) / select(odd, sine, cosine)
    return _negated_where(value, (n << unsigned(31)) ^ bits_of(x))


# asin, acos and atan.
#
# Polynomials are minimax fits of the relative error, made for this file; their coefficients were
# rounded to float32 one after the other, and the rest fitted again after each.


# pi/2 in two parts.
PI_HALF_HIGH = 1.5707963705062866
PI_HALF_LOW = math.pi / 2 - PI_HALF_HIGH

# (asin(s) / s - 1) / s**2 in s**2 up to 1/4; error 2**-27.6 of asin(s).
ASIN_TAIL = (
    0.16666752099990845,
    0.07495306432247162,
    0.045469772070646286,
    0.02418077550828457,
    0.04216640442609787,
)

# (atan(t) / t - 1) / t**2 in t**2 up to 1; error 2**-25.8 of atan(t).
ATAN_TAIL = (
    -0.33333152532577515,
    0.19993767142295837,
    -0.14211003482341766,
    0.10665785521268845,
    -0.07551723718643188,
    0.043205857276916504,
    -0.01636413298547268,
    0.0029197228141129017,
)


def _asin_parts(let: Let, a: tirx.Var) -> tuple[tirx.Expr, tirx.Var, tirx.Var]:
    """Whether ``a`` is above 1/2, and ``s`` and ``asin(s) - s``.

    ``s`` is ``a`` itself, or ``sqrt((1 - a) / 2)`` where ``a`` is above 1/2: then
    ``asin(a) = pi / 2 - 2 * asin(s)``. Above 1 it is NaN.
    """
    large = a > number(0.5)
    square = let(select(large, number(0.5) - number(0.5) * a, a * a))
    s = let(select(large, tirx.sqrt(square), a))
    return large, s, let((s * square) * polynomial(square, ASIN_TAIL))


def asin(let: Let, x: tirx.Var) -> tirx.Expr:
    """The arc sine, between -pi/2 and pi/2; NaN beyond 1."""
    large, s, tail = _asin_parts(let, let(magnitude(x)))
    beyond = (number(PI_HALF_HIGH) - (s + s)) - (tail + tail - number(PI_HALF_LOW))
    return with_sign_of(select(large, beyond, s + tail), x)


def acos(let: Let, x: tirx.Var) -> tirx.Expr:
    """The arc cosine, between 0 and pi; NaN beyond 1."""
    large, s, tail = _asin_parts(let, let(magnitude(x)))
    part = let(s + tail)
    middle = number(PI_HALF_HIGH) - (let(with_sign_of(part, x)) - number(PI_HALF_LOW))
    twice = let(part + part)
    left = number(2 * PI_HALF_HIGH) - (twice - number(2 * PI_HALF_LOW))
    return select(large, select(x < number(0.0), left, twice), middle)


def atan(let: Let, x: tirx.Var) -> tirx.Expr:
    """The arc tangent, between -pi/2 and pi/2."""
    a = let(magnitude(x))
    large = a > number(1.0)
    t = let(select(large, number(1.0), a) / select(large, a, number(1.0)))
    square = let(t * t)
    part = let(t + (t * square) * polynomial(square, ATAN_TAIL))
    beyond = number(PI_HALF_HIGH) - (part - number(PI_HALF_LOW))
    return with_sign_of(select(large, beyond, part), x)

"""asin, acos and atan.

Polynomials are minimax fits of the relative error, made for this file; their coefficients were
rounded to float32 one after the other, and the rest fitted again after each.
"""

import math

from tvm import tirx

from tvm_ext.tir_schedules.llvm.vector_math.expression import (
    Let,
    magnitude,
    number,
    polynomial,
    select,
    with_sign_of,
)

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

"""exp, exp2, exp10 and what is built on them: sigmoid, tanh, sinh, cosh.

``exp(x) = 2**n * exp(r)`` with ``n`` the integer next to ``x / ln 2`` and ``abs(r) <= ln(2) / 2``
(W. J. Cody, W. Waite, Software Manual for the Elementary Functions, 1980, chapter 6).
Polynomials are minimax fits of the relative error, made for this file; their coefficients were
rounded to float32 one after the other, and the rest fitted again after each.
"""

import math

from tvm import tirx

from tvm_ext.tir_schedules.cpu.vector_math.expression import (
    ROUNDER,
    ROUNDER_BITS,
    Let,
    at_least,
    at_most,
    bits_of,
    from_bits,
    ldexp,
    magnitude,
    number,
    polynomial,
    select,
    unsigned,
    with_sign_of,
)

LOG2_E = math.log2(math.e)
# ln(2) and log10(2) in two parts. The first has so few bits that its product with n is exact.
LN2_HIGH = float.fromhex("0x1.62e4p-1")
LN2_LOW = math.log(2.0) - LN2_HIGH
LOG10_2_HIGH = float.fromhex("0x1.344p-2")
LOG10_2_LOW = math.log10(2.0) - LOG10_2_HIGH

# (exp(r) - 1 - r) / r**2 for abs(r) <= ln(2) / 2; error 2**-28.2 of exp(r).
EXP_TAIL = (
    0.4999999403953552,
    0.1666652113199234,
    0.04166826605796814,
    0.008368677459657192,
    0.001382073387503624,
)

# (sinh(x) / x - 1) / x**2 in x**2 for abs(x) <= 1; error 2**-31 of sinh(x).
SINH_TAIL = (
    0.1666666716337204,
    0.00833331048488617,
    0.00019842895562760532,
    2.7822131869470468e-06,
)

# Added to n, it makes its bits, shifted into place, the float 2**n; twice it, that of 2**(n / 2).
BIAS = 127


def rounded(let: Let, scaled: tirx.Expr, offset: int) -> tuple[tirx.Var, tirx.Var]:
    """The integer next to ``scaled``: as float, and plus ``offset`` in the low bits of a uint32."""
    shifted = let(scaled + number(ROUNDER + offset))
    return let(shifted - number(ROUNDER + offset)), let(bits_of(shifted))


def _exp_of(r: tirx.Var) -> tirx.Expr:
    """``exp(r)`` for ``abs(r) <= ln(2) / 2``."""
    return polynomial(r, (1.0, 1.0, *EXP_TAIL))


def _times_power(let: Let, value: tirx.Expr, shifted: tirx.Var) -> tirx.Expr:
    """``value * 2**n`` for all results, infinite and denormal ones too; ``shifted`` has two biases.

    Without an instruction for it in two steps, since 2**n itself can be too large or too small for
    a float: by 2**floor(n / 2) and by what remains.
    """
    if let.has_ldexp:
        return ldexp(value, shifted - unsigned(ROUNDER_BITS + 2 * BIAS))
    half = let((shifted >> unsigned(1)) << unsigned(23))
    rest = (shifted << unsigned(23)) - half
    return value * from_bits(half) * from_bits(rest)


def expm1_of(let: Let, r: tirx.Var, shifted: tirx.Var) -> tirx.Expr:
    """``2**n * exp(r) - 1`` without cancellation, for ``2**n`` a normal float; one bias."""
    power = let(from_bits(shifted << unsigned(23)))
    less_one = r + (r * r) * polynomial(r, EXP_TAIL)
    return less_one * power + (power - number(1.0))


def _rest(let: Let, x: tirx.Expr, n: tirx.Var) -> tirx.Var:
    """``x - n * ln(2)``."""
    return let((x - n * number(LN2_HIGH)) - n * number(LN2_LOW))


def _exp_in_range(let: Let, x: tirx.Var, halved: bool = False) -> tirx.Expr:
    """``exp(x)``, or half of it, for ``abs(x) < 110``."""
    n, shifted = rounded(let, x * number(LOG2_E), 2 * BIAS - halved)
    return _times_power(let, _exp_of(_rest(let, x, n)), shifted)


def exp(let: Let, x: tirx.Var) -> tirx.Expr:
    """``e**x``."""
    return _exp_in_range(let, let(at_least(let(at_most(x, 89.0)), -104.0)))


def exp_of_negative(let: Let, x: tirx.Var) -> tirx.Expr:
    """``e**x`` for ``x`` that is not above zero; zero where that is no normal float.

    At the least exponent the bits of the power are those of zero.
    """
    if let.has_ldexp:
        return _exp_in_range(let, let(at_least(x, -104.0)))
    x = let(at_least(x, _LEAST_EXPONENT))
    n, shifted = rounded(let, x * number(LOG2_E), BIAS)
    return _exp_of(_rest(let, x, n)) * from_bits(shifted << unsigned(23))


# Rounds to ``-BIAS`` times the logarithm of two.
_LEAST_EXPONENT = -88.03


def exp2(let: Let, x: tirx.Var) -> tirx.Expr:
    """``2**x``."""
    x = let(at_least(let(at_most(x, 129.0)), -151.0))
    n, shifted = rounded(let, x, 2 * BIAS)
    return _times_power(let, _exp_of(let((x - n) * number(math.log(2.0)))), shifted)


def exp10(let: Let, x: tirx.Var) -> tirx.Expr:
    """``10**x``."""
    x = let(at_least(let(at_most(x, 39.0)), -46.0))
    n, shifted = rounded(let, x * number(math.log2(10.0)), 2 * BIAS)
    rest = (x - n * number(LOG10_2_HIGH)) - n * number(LOG10_2_LOW)
    return _times_power(let, _exp_of(let(rest * number(math.log(10.0)))), shifted)


def sigmoid(let: Let, x: tirx.Var) -> tirx.Expr:
    """``1 / (1 + exp(-x))``, for negative ``x`` as ``exp(x) / (1 + exp(x))``."""
    e = let(_exp_in_range(let, let(at_least(let(-magnitude(x)), -104.0))))
    return select(x < number(0.0), e, number(1.0)) / (e + number(1.0))


def tanh(let: Let, x: tirx.Var) -> tirx.Expr:
    """``E / (E + 2)`` with ``E = exp(2 * abs(x)) - 1``, and the sign of ``x``."""
    # From here on the result rounds to 1.
    a = let(at_most(let(magnitude(x)), 10.0))
    n, shifted = rounded(let, a * number(2.0 * LOG2_E), BIAS)
    e = let(expm1_of(let, _rest(let, a + a, n), shifted))
    return with_sign_of(e / (e + number(2.0)), x)


def cosh(let: Let, x: tirx.Var) -> tirx.Expr:
    """``(exp(abs(x)) + exp(-abs(x))) / 2``."""
    half = let(_exp_in_range(let, let(at_most(let(magnitude(x)), 91.0)), halved=True))
    return half + number(0.25) / half


def sinh(let: Let, x: tirx.Var) -> tirx.Expr:
    """A polynomial up to 1, beyond it ``(exp(abs(x)) - exp(-abs(x))) / 2``; the sign of ``x``."""
    a = let(at_most(let(magnitude(x)), 91.0))
    half = let(_exp_in_range(let, a, halved=True))
    square = let(a * a)
    small = a + (a * square) * polynomial(square, SINH_TAIL)
    large = half - number(0.25) / half
    return with_sign_of(select(a < number(1.0), small, large), x)


# erf, the error function.
#
# ``erf(a) = 1 - exp(q(a))`` with ``q`` a polynomial for the logarithm of ``1 - erf(a)``. It is a
# minimax fit of the error relative to erf, made for this file; its coefficients were rounded to
# float32 one after the other, and the rest fitted again after each.


# From here on erf rounds to 1.
MOST = 3.95

# log(1 - erf(a)) / a + 1; error 2**-24.6 of erf(a).
LOG_TAIL = (
    -0.1283792108297348,
    -0.6366162300109863,
    -0.10281726717948914,
    0.01933247596025467,
    -0.00022394821280613542,
    -0.0012366960290819407,
    0.00037512611015699804,
    -3.984534851042554e-05,
)


def erf(let: Let, x: tirx.Var) -> tirx.Expr:
    """``2 / sqrt(pi)`` times the integral of ``exp(-t**2)`` from 0 to ``x``."""
    a = let(at_most(let(magnitude(x)), MOST))
    q = let(a * polynomial(a, LOG_TAIL) - a)
    n, shifted = rounded(let, q * number(LOG2_E), BIAS)
    # In one step: where n is large, exp(q) is small beside 1.
    r = let(q - n * number(math.log(2.0)))
    return with_sign_of(expm1_of(let, r, shifted), x)

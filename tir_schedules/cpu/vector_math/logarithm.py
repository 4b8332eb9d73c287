"""log, log2, log10, log1p and what is built on them: asinh, acosh, atanh.

``log(x) = e * ln(2) + log(1 + f)`` with ``x = 2**e * (1 + f)`` and ``1 + f`` between ``sqrt(1/2)``
and ``sqrt(2)``. The polynomial is a minimax fit of the relative error, made for this file; its
coefficients were rounded to float32 one after the other, and the rest fitted again after each.
"""

import math
from collections.abc import Callable

from tvm import tirx

from tvm_ext.tir_schedules.cpu.vector_math.exponential import (
    EXP_TAIL,
    LN2_HIGH,
    LN2_LOW,
    LOG10_2_HIGH,
    LOG10_2_LOW,
)
from tvm_ext.tir_schedules.cpu.vector_math.expression import (
    INFINITY,
    NAN,
    ONE_BITS,
    ROUNDER64,
    SMALLEST_NORMAL,
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

SQRT_HALF_BITS = 0x3F3504F3
EXPONENT_MASK = 0xFF800000

# (log(1 + f) - f + f**2 / 2) / f**3; error 2**-27.3 of log(1 + f).
LOG_TAIL = (
    0.3333333134651184,
    -0.2500081956386566,
    0.2000124156475067,
    -0.166234090924263,
    0.14201581478118896,
    -0.1315961331129074,
    0.12762199342250824,
    -0.07636399567127228,
)

# Beyond it a + sqrt(a**2 + 1) and a + sqrt(a**2 - 1) are 2 * a.
LARGE = 2.0**28


def _split(let: Let, x: tirx.Expr) -> tuple[tirx.Var, tirx.Var]:
    """``(127 + e) << 23 | ...`` and the bits of ``1 + f``, for a positive normal ``x``."""
    bits = let(bits_of(x))
    shifted = let(bits + unsigned(ONE_BITS - SQRT_HALF_BITS))
    mantissa = (bits - (shifted & unsigned(EXPONENT_MASK))) + unsigned(ONE_BITS)
    return shifted, let(mantissa)


def _exponent(shifted: tirx.Expr) -> tirx.Expr:
    """``127 + e`` as a float."""
    return (shifted >> unsigned(23)).astype("int32").astype("float32")


def _tail(f: tirx.Var, square: tirx.Var) -> tirx.Expr:
    """``log(1 + f) - f + f**2 / 2``."""
    return (square * f) * polynomial(f, LOG_TAIL)


def _log_parts(let: Let, x: tirx.Var) -> tuple[tirx.Var, tirx.Var, tirx.Var]:
    """``e``, ``f`` and ``log(1 + f) - f``; a denormal ``x`` is made normal first."""
    tiny = x < number(SMALLEST_NORMAL)
    shifted, mantissa = _split(let, let(select(tiny, x * number(2.0**23), x)))
    e = let(_exponent(shifted) - select(tiny, number(127.0 + 23.0), number(127.0)))
    f = let(from_bits(mantissa) - number(1.0))
    square = let(f * f)
    return e, f, let(_tail(f, square) - number(0.5) * square)


def _with_limits(x: tirx.Var, logarithm: tirx.Expr, zero: float) -> tirx.Expr:
    """``logarithm`` for finite ``x`` above ``zero``, where it is -inf; NaN below."""
    end = select(x.equal(number(zero)), number(-INFINITY), number(NAN))
    return select(x > number(zero), select(x < number(INFINITY), logarithm, x), end)


def log(let: Let, x: tirx.Var) -> tirx.Expr:
    """The natural logarithm."""
    e, f, rest = _log_parts(let, x)
    result = e * number(LN2_HIGH) + (f + (rest + e * number(LN2_LOW)))
    return _with_limits(x, result, 0.0)


def log2(let: Let, x: tirx.Var) -> tirx.Expr:
    """The logarithm to base 2."""
    e, f, rest = _log_parts(let, x)
    # log2(e) = 1 + 0.44...: f itself goes in exactly.
    more = math.log2(math.e) - 1.0
    result = e + (f + (rest + (f + rest) * number(more)))
    return _with_limits(x, result, 0.0)


def log10(let: Let, x: tirx.Var) -> tirx.Expr:
    """The logarithm to base 10."""
    e, f, rest = _log_parts(let, x)
    low = rest * number(math.log10(math.e)) + e * number(LOG10_2_LOW)
    result = e * number(LOG10_2_HIGH) + (f * number(math.log10(math.e)) + low)
    return _with_limits(x, result, 0.0)


def _log1p_in_range(let: Let, x: tirx.Var) -> tirx.Expr:
    """``log(1 + x)`` for finite ``x`` above -1, where ``x = -0`` may become 0.

    ``e`` is that of the rounded sum; ``f = x / 2**e + (1 / 2**e - 1)`` is then rounded once.
    """
    shifted, _ = _split(let, x + number(1.0))
    exponent = let((shifted & unsigned(EXPONENT_MASK)) - unsigned(ONE_BITS))
    # Beyond 2**25, 1 / 2**e is nothing beside x / 2**e, and soon not a number that a float holds.
    inverse = select(x < number(2.0**25), from_bits(unsigned(ONE_BITS) - exponent), number(0.0))
    f = let(from_bits(bits_of(x) - exponent) + (inverse - number(1.0)))
    square = let(f * f)
    e = let(_exponent(shifted) - number(127.0))
    rest = _tail(f, square) - number(0.5) * square
    return e * number(LN2_HIGH) + (f + (rest + e * number(LN2_LOW)))


def log1p(let: Let, x: tirx.Var) -> tirx.Expr:
    """``log(1 + x)``, without the rounding of ``1 + x``."""
    result = _with_limits(x, _log1p_in_range(let, x), -1.0)
    return select(x.equal(number(0.0)), x, result)


def _log1p_or_log2x(let: Let, a: tirx.Var, argument: tirx.Expr) -> tirx.Expr:
    """``log(1 + argument)``; for large ``a``, ``log(2 * a)`` instead."""
    large = a > number(LARGE)
    logarithm = _log1p_in_range(let, let(select(large, a, argument)))
    return logarithm + select(large, number(math.log(2.0)), number(0.0))


def asinh(let: Let, x: tirx.Var) -> tirx.Expr:
    """``log(a + sqrt(a**2 + 1))`` with ``a = abs(x)``, and the sign of ``x``."""
    a = let(magnitude(x))
    square = let(a * a)
    argument = a + square / (tirx.sqrt(square + number(1.0)) + number(1.0))
    result = _log1p_or_log2x(let, a, argument)
    return with_sign_of(select(a < number(INFINITY), result, a), x)


def acosh(let: Let, x: tirx.Var) -> tirx.Expr:
    """``log(x + sqrt(x**2 - 1))``, NaN below 1."""
    above = let(x - number(1.0))
    argument = above + tirx.sqrt(above * above + (above + above))
    result = select(x < number(INFINITY), _log1p_or_log2x(let, x, argument), x)
    return select(x < number(1.0), number(NAN), result)


def atanh(let: Let, x: tirx.Var) -> tirx.Expr:
    """``log((1 + a) / (1 - a)) / 2`` with ``a = abs(x)``, and the sign of ``x``."""
    a = let(magnitude(x))
    argument = let((a + a) / (number(1.0) - a))
    result = _with_limits(argument, _log1p_in_range(let, argument), -1.0)
    return with_sign_of(result * number(0.5), x)


# pow with any exponent, in float64: ``exp2(y * log2(x))`` needs more bits than float32 has.
#
# Constant exponents that a few multiplications or square roots reach do without.


Unary = Callable[[Let, tirx.Var], tirx.Expr]

SQRT_HALF_BITS64 = 0x3FE6A09E667F3BCD
ONE_BITS64 = 0x3FF0000000000000
MANTISSA_BITS = 52
# An integer in the low bits of this float64 is added to 2**52.
INTEGER_BITS = 0x4330000000000000
EXPONENT_OFFSET = 2.0**52 + 1023.0

# log2(1 + f) / f for 1 + f between sqrt(1/2) and sqrt(2); error 2**-33 of log2(1 + f).
LOG2_TAIL = (
    1.442695040939346,
    -0.7213475252132104,
    0.4808983207293223,
    -0.3606728005471798,
    0.2885406435629819,
    -0.2405041741048733,
    0.20609625626660613,
    -0.1790469526212951,
    0.15900149645916828,
    -0.1569822592663714,
    0.15485753391764323,
    -0.0863460021002317,
)


def _bits(value: tirx.Expr) -> tirx.Expr:
    return tirx.reinterpret("uint64", value)


def _unsigned(value: int) -> tirx.Expr:
    return tirx.const(value, "uint64")


def _wide(bits: tirx.Expr) -> tirx.Expr:
    return tirx.reinterpret("float64", bits)


def _log2(let: Let, x: tirx.Var) -> tirx.Expr:
    """``log2(x)`` of a float32 that is not negative, as float64, where none is denormal."""
    wide = let(x.astype("float64"))
    bits = let(_bits(wide))
    exponent = let((bits + _unsigned(ONE_BITS64 - SQRT_HALF_BITS64)) >> _unsigned(MANTISSA_BITS))
    mantissa = bits - (exponent << _unsigned(MANTISSA_BITS)) + _unsigned(ONE_BITS64)
    f = let(_wide(mantissa) - number64(1.0))
    e = _wide(exponent | _unsigned(INTEGER_BITS)) - number64(EXPONENT_OFFSET)
    finite = select(wide < number64(INFINITY), e + f * polynomial(f, LOG2_TAIL), wide)
    return select(wide.equal(number64(0.0)), number64(-INFINITY), finite)


def _exp2(let: Let, x: tirx.Var) -> tirx.Expr:
    """``2**x`` of a float64; zero or infinite where a float32 would be."""
    x = let(select(x > number64(200.0), number64(200.0), x))
    x = let(select(x < number64(-200.0), number64(-200.0), x))
    shifted = let(x + number64(ROUNDER64 + 1023.0))
    rest = let((x - (shifted - number64(ROUNDER64 + 1023.0))) * number64(math.log(2.0)))
    power = _wide(_bits(shifted) << _unsigned(MANTISSA_BITS))
    return polynomial(rest, (1.0, 1.0, *EXP_TAIL)) * power


def power(let: Let, x: tirx.Var, y: tirx.Var) -> tirx.Expr:
    """``x**y`` with the special cases of IEEE 754."""
    # Beyond 2**31 results are 0, 1 or infinite; an infinite exponent would give inf * 0.
    clamped = let(at_least(let(at_most(y, 2.0**31)), -(2.0**31)))
    wide = let(clamped.astype("float64"))
    rounded = let(wide + number64(ROUNDER64))
    logarithm = _log2(let, let(magnitude(x)))
    value = let(_exp2(let, let(wide * logarithm)).astype("float32"))
    # An odd integer keeps the sign, that of -0 too. Negative numbers have no other powers.
    sign = (_bits(rounded).astype("uint32") << unsigned(31)) & bits_of(x)
    kept = from_bits(bits_of(value) ^ sign)
    finite_negative = select(x > number(-INFINITY), number(NAN), value)
    broken = select(x < number(0.0), finite_negative, value)
    result = select((rounded - number64(ROUNDER64)).equal(wide), kept, broken)
    result = select(y.equal(number(0.0)), number(1.0), result)
    return select(x.equal(number(1.0)), number(1.0), result)


def _root(x: tirx.Var) -> tirx.Expr:
    """``x**0.5``: unlike the square root, 0 for -0 and infinite for -inf."""
    return magnitude(tirx.sqrt(select(x.equal(number(-INFINITY)), number(INFINITY), x)))


def _with_root(steps: Callable[[Let, tirx.Var, tirx.Var], tirx.Expr]) -> Unary:
    return lambda let, x: steps(let, x, let(_root(x)))


def _inverse(function: Unary) -> Unary:
    return lambda let, x: number(1.0) / function(let, x)


def _square(let: Let, x: tirx.Var) -> tirx.Expr:
    return x * x


def _cube(let: Let, x: tirx.Var) -> tirx.Expr:
    return x * x * x


def _fourth(let: Let, x: tirx.Var) -> tirx.Expr:
    square = let(x * x)
    return square * square


_half = _with_root(lambda let, x, root: root)
_quarter = _with_root(lambda let, x, root: tirx.sqrt(root))
_three_quarters = _with_root(lambda let, x, root: root * tirx.sqrt(root))

# Powers that need no logarithm, by exponent. Inverses are taken where nothing overflows.
CONSTANT_POWERS: dict[float, Unary] = {
    0.0: lambda let, x: number(1.0),
    0.25: _quarter,
    0.5: _half,
    0.75: _three_quarters,
    1.0: lambda let, x: x,
    1.5: _with_root(lambda let, x, root: magnitude(x) * root),
    2.0: _square,
    3.0: _cube,
    4.0: _fourth,
    -0.25: _inverse(_quarter),
    -0.5: _inverse(_half),
    -1.0: lambda let, x: number(1.0) / x,
    -2.0: lambda let, x: _square(let, let(number(1.0) / x)),
}

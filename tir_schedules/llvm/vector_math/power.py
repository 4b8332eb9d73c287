"""pow with any exponent, in float64: ``exp2(y * log2(x))`` needs more bits than float32 has.

Constant exponents that a few multiplications or square roots reach do without.
"""

import math
from collections.abc import Callable

from tvm import tirx

from tvm_ext.tir_schedules.llvm.vector_math.exponential import EXP_TAIL
from tvm_ext.tir_schedules.llvm.vector_math.expression import (
    INFINITY,
    NAN,
    ROUNDER64,
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
)

Unary = Callable[[Let, tirx.Var], tirx.Expr]

SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
ONE_BITS = 0x3FF0000000000000
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
    exponent = let((bits + _unsigned(ONE_BITS - SQRT_HALF_BITS)) >> _unsigned(MANTISSA_BITS))
    mantissa = bits - (exponent << _unsigned(MANTISSA_BITS)) + _unsigned(ONE_BITS)
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

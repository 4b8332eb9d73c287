"""Rules of arithmetic: neutral operands, powers, repeated operators, constants collected.

``x + 0.0`` is +0.0 for the negative zero, and ``x * 0`` is NaN for infinities: such rules are
FINITE. ``x - 0.0`` and ``x + (-0.0)`` are x itself, bit for bit.
"""

import math

import ml_dtypes
import numpy as np

from tvm_ext.relay_passes.expressions import numpy_dtype
from tvm_ext.relay_passes.rewrite_rules.expression import (
    OPERATORS,
    Apply,
    Constant,
    Expression,
    Variable,
)
from tvm_ext.relay_passes.rewrite_rules.rule import (
    FINITE,
    FLOATS,
    INTEGERS,
    ROUNDING,
    SIGNED,
    Match,
    Rule,
    output_shape,
)

x, y = Variable("x"), Variable("y")
a, b, c, d = Constant("a"), Constant("b"), Constant("c"), Constant("d")

op = OPERATORS
absolute, negative, relu = op["abs"], op["negative"], op["relu"]
maximum, minimum = op["maximum"], op["minimum"]
clip, full, sqrt, exp, log, sign = (
    op[name] for name in ("clip", "full", "sqrt", "exp", "log", "sign")
)


def _is_reciprocal_normal(match: Match) -> bool:
    """Whether 1/c is neither an infinity nor so small that it has fewer bits."""
    with np.errstate(all="ignore"):
        inverse = np.abs(1 / match.constants["c"].astype(np.float64))
    limits = _limits(match.dtype("c"))
    return bool(np.all((inverse >= limits[0]) & (inverse <= limits[1])))


def _is_power_of_two(match: Match) -> bool:
    mantissa, _ = np.frexp(np.abs(match.constants["c"].astype(np.float64)))
    return bool(np.all(mantissa == 0.5)) and _is_reciprocal_normal(match)


def _is_no_power_of_two(match: Match) -> bool:
    return _is_reciprocal_normal(match) and not _is_power_of_two(match)


def _limits(dtype: str) -> tuple[float, float]:
    """The smallest normal and the largest number of a floating-point type."""
    info = ml_dtypes.finfo(numpy_dtype(dtype))
    return float(info.smallest_normal), float(info.max)


def _lowest(dtype: str) -> float:
    return -math.inf if dtype in FLOATS else int(np.iinfo(dtype).min)


def _highest(dtype: str) -> float:
    return math.inf if dtype in FLOATS else int(np.iinfo(dtype).max)


def _no_lower_bound(match: Match) -> bool:
    return bool(np.all(match.constants["a"] == _lowest(match.dtype("x"))))


def _no_upper_bound(match: Match) -> bool:
    return bool(np.all(match.constants["b"] == _highest(match.dtype("x"))))


def _no_bounds(match: Match) -> bool:
    return _no_lower_bound(match) and _no_upper_bound(match)


NEUTRAL = (
    Rule("x * 1 -> x", x * 1, x),
    Rule("x / 1 -> x", x / 1, x, FLOATS),
    Rule("x - 0 -> x", x - 0, x),
    Rule("x + (-0.0) -> x", x + (-0.0), x, FLOATS),
    Rule("x + 0 -> x", x + 0, x, INTEGERS),
    Rule("x + 0.0 -> x", x + 0.0, x, FLOATS, FINITE),
    Rule("x - (-0.0) -> x", x - (-0.0), x, FLOATS, FINITE),
    Rule("0 - x -> -x", 0 - x, -x, SIGNED),
    Rule("-0.0 - x -> -x", -0.0 - x, -x, FLOATS),
    Rule("0.0 - x -> -x", 0.0 - x, -x, FLOATS, FINITE),
    Rule("x * 0 -> 0", x * 0, full(0, shape=output_shape), INTEGERS),
    Rule("x * 0.0 -> 0.0", x * 0.0, full(0.0, shape=output_shape), FLOATS, FINITE),
    Rule("x - x -> 0", x - x, full(0, shape=output_shape), INTEGERS),
    Rule("x - x -> 0.0", x - x, full(0.0, shape=output_shape), FLOATS, FINITE),
    Rule("x / x -> 1", x / x, full(1, shape=output_shape), FLOATS, FINITE),
    # Operators that give the same for both zeros do not care which of them an addition leaves.
    *(
        Rule(f"{f.name}(x + 0.0) -> {f.name}(x)", f(x + 0.0), f(x), FLOATS)
        for f in (absolute, exp, op["square"], op["cos"], op["sigmoid"])
    ),
)

SIGNS = (
    Rule("-(-x) -> x", negative(negative(x)), x, FLOATS | SIGNED),
    Rule("x - (-y) -> x + y", x - (-y), x + y, FLOATS | SIGNED),
    Rule("x + (-y) -> x - y", x + (-y), x - y, FLOATS | SIGNED),
    Rule("(-x) * (-y) -> x * y", (-x) * (-y), x * y, FLOATS | SIGNED),
    Rule("(-x) / (-y) -> x / y", (-x) / (-y), x / y, FLOATS),
    Rule("-(x - y) -> y - x", -(x - y), y - x, SIGNED),
    Rule("-(x - y) -> y - x", -(x - y), y - x, FLOATS, FINITE),
    Rule("x * (-1) -> -x", x * -1, -x, FLOATS | SIGNED),
    Rule("x / (-1) -> -x", x / -1, -x, FLOATS),
    Rule("abs(-x) -> abs(x)", absolute(-x), absolute(x), FLOATS | SIGNED),
)

# Where a value is not below zero, a square root has the special values that a power has.
_NOT_NEGATIVE = (absolute(x), exp(x), op["sigmoid"](x))

POWERS = (
    Rule("x ** 1 -> x", x**1, x, FLOATS),
    Rule("x ** 0 -> 1", x**0, full(1, shape=output_shape), FLOATS),
    Rule("x ** 2 -> x * x", x**2, x * x, FLOATS, ROUNDING, ulps=2),
    Rule("x ** 3 -> x * x * x", x**3, (x * x) * x, FLOATS, ROUNDING, ulps=3),
    Rule("x ** -1 -> 1 / x", x**-1, 1 / x, FLOATS, ROUNDING, ulps=2),
    Rule("x ** 0.5 -> sqrt(x)", x**0.5, sqrt(x), FLOATS, FINITE, ulps=2),
    Rule("x ** -0.5 -> 1 / sqrt(x)", x**-0.5, 1 / sqrt(x), FLOATS, FINITE, ulps=3),
    *(
        Rule(
            f"{f.operator.name}(x) ** 0.5 -> sqrt({f.operator.name}(x))",
            f**0.5,
            sqrt(f),
            FLOATS,
            ROUNDING,
            ulps=2,
        )
        for f in _NOT_NEGATIVE
    ),
    Rule("(x * x) ** 0.5 -> abs(x)", (x * x) ** 0.5, absolute(x), FLOATS, FINITE, ulps=2),
    Rule("sqrt(x * x) -> abs(x)", sqrt(x * x), absolute(x), FLOATS, FINITE, ulps=2),
    Rule("square(abs(x)) -> square(x)", op["square"](absolute(x)), op["square"](x), FLOATS),
    Rule("exp(log(x)) -> x", exp(log(x)), x, FLOATS, FINITE, ulps=1024),
    Rule("log(exp(x)) -> x", log(exp(x)), x, FLOATS, FINITE, ulps=2, of_largest=True),
)

DIVISION = (
    Rule(
        "x / c -> x * (1 / c) for a power of two",
        x / c,
        x * (1 / c),
        FLOATS,
        condition=_is_power_of_two,
    ),
    Rule(
        "x / c -> x * (1 / c)",
        x / c,
        x * (1 / c),
        FLOATS,
        ROUNDING,
        condition=_is_no_power_of_two,
        ulps=2,
    ),
)

# What happens to be so already: operators whose result a second one leaves as it is.
_IDEMPOTENT = ("abs", "relu", "floor", "ceil", "round", "trunc", "sign")
_WHOLE = ("floor", "ceil", "round", "trunc")
_AT_LEAST_ZERO = ("abs", "exp", "sigmoid", "sqrt", "square")

REPEATED = (
    *(Rule(f"{n}({n}(x)) -> {n}(x)", op[n](op[n](x)), op[n](x), FLOATS) for n in _IDEMPOTENT),
    *(
        Rule(f"{f}({g}(x)) -> {g}(x)", op[f](op[g](x)), op[g](x), FLOATS)
        for f in _WHOLE
        for g in _WHOLE
        if f != g
    ),
    *(Rule(f"relu({n}(x)) -> {n}(x)", relu(op[n](x)), op[n](x), FLOATS) for n in _AT_LEAST_ZERO),
    *(
        Rule(f"abs({n}(x)) -> {n}(x)", absolute(op[n](x)), op[n](x), FLOATS)
        for n in ("exp", "sigmoid", "square")
    ),
)

EXTREMES = (
    Rule("maximum(x, x) -> x", maximum(x, x), x),
    Rule("minimum(x, x) -> x", minimum(x, x), x),
    Rule("no lower bound", maximum(a, x), x, condition=_no_lower_bound, implied=a <= x),
    Rule("no upper bound", minimum(b, x), x, condition=_no_upper_bound, implied=x <= b),
    Rule("no bounds", clip(x, a, b), x, condition=_no_bounds, implied=(a <= x) & (x <= b)),
    Rule("maximum of maximum", maximum(c, maximum(a, x)), maximum(maximum(c, a), x)),
    Rule("minimum of minimum", minimum(d, minimum(b, x)), minimum(minimum(d, b), x)),
    Rule(
        "maximum of minimum of maximum",
        maximum(c, minimum(b, maximum(a, x))),
        minimum(maximum(c, b), maximum(maximum(c, a), x)),
    ),
    Rule(
        "minimum of maximum of minimum",
        minimum(d, maximum(a, minimum(b, x))),
        maximum(minimum(d, a), minimum(minimum(d, b), x)),
    ),
    Rule(
        "clip of clip",
        clip(clip(x, a, b), c, d),
        clip(x, maximum(c, a), minimum(d, b)),
        given=(a <= b) & (c <= d) & (a <= d) & (c <= b),
    ),
    Rule(
        "clip of relu",
        clip(relu(x), a, b),
        clip(x, maximum(a, 0), b),
        FLOATS,
        given=(a <= b) & (b >= 0),
    ),
    Rule(
        "relu of clip",
        relu(clip(x, a, b)),
        clip(x, maximum(0, a), b),
        FLOATS,
        given=(a <= b) & (b >= 0),
    ),
    Rule("relu of maximum", relu(maximum(a, x)), maximum(maximum(0, a), x), FLOATS),
    Rule("maximum of relu", maximum(a, relu(x)), maximum(maximum(a, 0), x), FLOATS),
)


def _collected(
    name: str, pattern: Apply, result: Apply, same_sign: Expression
) -> tuple[Rule, Rule]:
    """The rule for integers, which wrap around alike, and for floating-point numbers.

    Of constants with other signs the inner sum may round digits away on purpose: adding 1.5 * 2^23
    and taking it off again rounds a float32 to integers.
    """
    return (
        Rule(name, pattern, result, INTEGERS),
        Rule(name, pattern, result, FLOATS, ROUNDING, same_sign, ulps=2, of_largest=True),
    )


# Either both enlarge or both reduce: else the inner product may overflow, or lose digits of small
# numbers, where the other order does not.
_BOTH_ENLARGE = (absolute(a) >= 1) & (absolute(c) >= 1)
_BOTH_REDUCE = (absolute(a) <= 1) & (absolute(c) <= 1)
_SAME_SIGN = ((a >= 0) & (c >= 0)) | ((a <= 0) & (c <= 0))
_OTHER_SIGN = ((a >= 0) & (c <= 0)) | ((a <= 0) & (c >= 0))

COLLECTED = (
    *_collected("(x + a) + c -> x + (a + c)", (x + a) + c, x + (a + c), _SAME_SIGN),
    *_collected("(x + a) - c -> x + (a - c)", (x + a) - c, x + (a - c), _OTHER_SIGN),
    *_collected("(x - a) + c -> x + (c - a)", (x - a) + c, x + (c - a), _OTHER_SIGN),
    *_collected("(x - a) - c -> x - (a + c)", (x - a) - c, x - (a + c), _SAME_SIGN),
    Rule("(x * a) * c -> x * (a * c)", (x * a) * c, x * (a * c), INTEGERS),
    Rule(
        "(x * a) * c -> x * (a * c)",
        (x * a) * c,
        x * (a * c),
        FLOATS,
        ROUNDING,
        given=_BOTH_ENLARGE | _BOTH_REDUCE,
        ulps=2,
    ),
    Rule("(-x) * a -> x * (-a)", (-x) * a, x * (-a), FLOATS | SIGNED),
)

RULES = (*NEUTRAL, *SIGNS, *POWERS, *DIVISION, *REPEATED, *EXTREMES, *COLLECTED)

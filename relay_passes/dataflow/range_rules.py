"""Rules for value ranges: what operators make of the ranges of their operands."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.relay_passes.dataflow import interval
from tvm_ext.relay_passes.dataflow.interval import (
    FUNCTION_ULPS,
    ValueRange,
    element_type,
    join,
    join_all,
)
from tvm_ext.relay_passes.dataflow.range_operands import Operands, Rule, anything
from tvm_ext.relay_passes.dataflow.range_rules_of_sums import SUM_RULES

# Rules for operators on elements.


def _unary(function: Callable[[Any], Any], low: float = -math.inf, high: float = math.inf) -> Rule:
    """Of a function that never falls; its results lie between ``low`` and ``high``."""

    def clamped(value: float) -> float:
        with np.errstate(all="ignore"):
            return min(max(float(function(np.float64(value))), low), high)

    return lambda given: given.function(interval.monotone(given[0], clamped))


def _rounding(function: Callable[[float], float]) -> Rule:
    def whole(value: float) -> float:
        return value if math.isinf(value) else function(value)

    def rule(given: Operands) -> ValueRange:
        one = given[0]
        found = interval.monotone(one, whole, is_integral=True)
        zero = one.may_be_negative_zero or (
            one.low < 0 and found.has_zero() and not one.is_integral
        )
        return given.fit(_with_zero(found, zero), exact=True)

    return rule


def _with_zero(found: ValueRange, may_be_negative_zero: bool) -> ValueRange:
    return ValueRange(
        found.low, found.high, found.may_be_nan, may_be_negative_zero, found.is_integral
    )


def _binary(function: Callable[[ValueRange, ValueRange], ValueRange], exact: bool = False) -> Rule:
    return lambda given: given.fit(function(given[0], given[1]), exact)


def _multiply(given: Operands) -> ValueRange:
    first, second = given.call.args
    if isinstance(first, relax.Var) and hash(first) == hash(second):
        return given.fit(interval.square(given[0]))
    return given.fit(interval.multiply(given[0], given[1]))


def _divide(given: Operands) -> ValueRange:
    return (
        given.fit(interval.divide(given[0], given[1])) if given.type.is_float else anything(given)
    )


def _sqrt(given: Operands) -> ValueRange:
    one = given[0]
    found = ValueRange(
        math.sqrt(max(one.low, 0)),
        math.sqrt(max(one.high, 0)),
        one.may_be_nan or one.low < 0,
        one.may_be_negative_zero,
    )
    return given.function(found)


def _rsqrt(given: Operands) -> ValueRange:
    one = given[0]
    low = 1 / math.sqrt(one.high) if one.high > 0 else 0.0
    high = 1 / math.sqrt(one.low) if one.low > 0 else math.inf
    unsure = one.may_be_nan or one.low < 0 or one.may_be_infinite
    # Of -0 it is minus infinity.
    least = -math.inf if one.may_be_negative_zero or one.low < 0 else low
    return given.function(ValueRange(least, high, unsure))


def _log(given: Operands) -> ValueRange:
    one = given[0]
    low, high = (math.log(n) if n > 0 else -math.inf for n in (one.low, one.high))
    found = ValueRange(low, high, one.may_be_nan or one.low < 0, one.has_zero() or low <= 0 <= high)
    return given.function(found)


def _periodic(given: Operands) -> ValueRange:
    """sin and cos."""
    one = given[0]
    unsure = one.may_be_nan or one.may_be_infinite
    return given.function(ValueRange(-1.0, 1.0, unsure, True))


def _relu(given: Operands) -> ValueRange:
    one = given[0]
    return given.fit(interval.monotone(one, lambda n: max(n, 0), one.is_integral), exact=True)


def _leaky_relu(given: Operands) -> ValueRange:
    one, slope = given[0], float(given.attrs.alpha)
    if not 0 <= slope <= 1:
        return anything(given)
    found = interval.monotone(one, lambda n: n if n >= 0 else n * slope if slope else 0.0)
    unsure = one.may_be_nan or (slope == 0 and one.low == -math.inf)
    nan = ValueRange(found.low, found.high, unsure, one.low < 0 or one.may_be_negative_zero)
    return given.fit(nan)


def _gated(least: float) -> Rule:
    """x times a share from 0 to 1 that grows with x: GELU, SiLU, with their least value."""

    def rule(given: Operands) -> ValueRange:
        one = given[0]
        low = max(least, min(one.low, 0)) if one.low < 0 else 0.0
        # Minus infinity times zero.
        unsure = one.may_be_nan or one.low == -math.inf
        found = ValueRange(low, max(one.high, 0.0), unsure, one.low < 0 or one.may_be_negative_zero)
        return given.function(found, 4 * FUNCTION_ULPS)

    return rule


def _clip(given: Operands) -> ValueRange:
    one, least, most = given[0], given[1], given[2]
    if least.high > most.low or least.may_be_nan or most.may_be_nan:
        return given.fit(join_all([one, least, most]), exact=True)
    found = ValueRange(
        min(max(one.low, least.low), most.low),
        max(min(one.high, most.high), least.high),
        one.may_be_nan,
        (one.may_be_negative_zero and least.low <= 0 <= most.high)
        or least.may_be_negative_zero
        or most.may_be_negative_zero,
        one.is_integral and least.is_integral and most.is_integral,
    )
    return given.fit(found, exact=True)


def _sign(given: Operands) -> ValueRange:
    one = given[0]
    low, high = (float(np.sign(n)) for n in (one.low, one.high))
    return given.fit(
        ValueRange(low, high, one.may_be_nan, one.may_be_negative_zero, True), exact=True
    )


def _power(given: Operands) -> ValueRange:
    one, exponent = given[0], given[1]
    if not given.type.is_float or exponent.low != exponent.high or exponent.may_be_nan:
        return anything(given)
    number = float(exponent.low)
    if one.low < 0 and number.is_integer() and number > 0 and number % 2 == 0:
        least, most = (0.0, one.magnitude) if one.has_zero() else _ends(interval.absolute(one))
    elif one.low >= 0 and number > 0:
        least, most = one.low, one.high
    else:
        return anything(given)
    with np.errstate(all="ignore"):
        low, high = (float(np.float64(n) ** number) for n in (least, most))
    return given.function(ValueRange(low, high, one.may_be_nan, one.may_be_negative_zero))


def _ends(one: ValueRange) -> tuple[float, float]:
    return one.low, one.high


def _cast(given: Operands) -> ValueRange:
    one, kind = given[0], given.type
    if kind.name == "bool":
        is_true = one.low > 0 or one.high < 0
        is_false = one.low == one.high == 0 and not one.may_be_nan
        return ValueRange(int(is_true), int(not is_false), is_integral=True)
    if kind.is_float:
        return kind.fit(one)
    # What a kernel makes of NaN and of numbers beyond the type is not defined.
    if one.may_be_nan or one.may_be_infinite:
        return anything(given)
    return kind.fit(ValueRange(math.trunc(one.low), math.trunc(one.high)))


# Rules for conditions.


def _truth(is_true: bool, is_false: bool) -> ValueRange:
    return ValueRange(int(is_true), int(not is_false), is_integral=True)


def _less(strict: bool, swapped: bool) -> Rule:
    def rule(given: Operands) -> ValueRange:
        one, other = (given[1], given[0]) if swapped else (given[0], given[1])
        numbers = not (one.may_be_nan or other.may_be_nan)
        if strict:
            return _truth(numbers and one.high < other.low, one.low >= other.high)
        return _truth(numbers and one.high <= other.low, one.low > other.high)

    return rule


def _equal(negated: bool) -> Rule:
    def rule(given: Operands) -> ValueRange:
        one, other = given[0], given[1]
        numbers = not (one.may_be_nan or other.may_be_nan)
        same = numbers and one.low == one.high == other.low == other.high
        apart = one.high < other.low or other.high < one.low
        return _truth(apart, same) if negated else _truth(same, apart)

    return rule


def _logical_and(given: Operands) -> ValueRange:
    low, high = min(given[0].low, given[1].low), min(given[0].high, given[1].high)
    return ValueRange(low, high, is_integral=True)


def _logical_or(given: Operands) -> ValueRange:
    low, high = max(given[0].low, given[1].low), max(given[0].high, given[1].high)
    return ValueRange(low, high, is_integral=True)


def _logical_not(given: Operands) -> ValueRange:
    return ValueRange(1 - given[0].high, 1 - given[0].low, is_integral=True)


def _where(given: Operands) -> ValueRange:
    taken = given.analysis.taken(given[0])
    if taken is not None:
        return given.fit(given[1] if taken else given[2], exact=True)
    return given.fit(join(given[1], given[2]), exact=True)


def _is_nan(given: Operands) -> ValueRange:
    return _truth(False, not given[0].may_be_nan)


def _is_inf(given: Operands) -> ValueRange:
    return _truth(False, not given[0].may_be_infinite)


def _is_finite(given: Operands) -> ValueRange:
    return _truth(given[0].is_number, False)


# Rules for what moves elements, and for what joins some.


def _moved(given: Operands) -> ValueRange:
    return given.fit(given[0], exact=True)


def _taken(given: Operands) -> ValueRange:
    return _moved(given) if str(given.attrs.mode) in ("fast", "clip", "wrap") else anything(given)


def _joined(*places: int) -> Rule:
    return lambda given: given.fit(join_all(given[place] for place in places), exact=True)


def _with_zeros(given: Operands) -> ValueRange:
    return given.fit(join(given[0], ValueRange(0, 0, is_integral=True)), exact=True)


def _scatter(given: Operands) -> ValueRange:
    return _joined(0, 2)(given) if str(given.attrs.reduction) == "update" else anything(given)


def _pad(given: Operands) -> ValueRange:
    if str(given.attrs.pad_mode) != "constant":
        return _moved(given)
    number = float(given.attrs.pad_value)
    return given.fit(join(given[0], ValueRange(number, number, False, False, number.is_integer())))


def _split(given: Operands) -> ValueRange:
    return given.fit(given[0], exact=True)


def _batch_norm(given: Operands) -> list[ValueRange]:
    """``(x - mean) / sqrt(var + epsilon) * gamma + beta``, in any order of the operations."""
    others = [given.anything()] * (len(given.call.ty.fields) - 1)
    attrs, one, beta, mean = given.attrs, given[0], given[2], given[3]
    low, high = (float(bound) + float(attrs.epsilon) for bound in (given[4].low, given[4].high))
    if bool(attrs.training) or given[4].may_be_nan or not 0 < low <= high < math.inf:
        return [given.anything(), *others]
    gamma = given[1] if bool(attrs.scale) else ValueRange(1.0, 1.0)
    factor = interval.divide(gamma, ValueRange(math.sqrt(low), math.sqrt(high)))
    found = interval.add(interval.multiply(interval.subtract(one, mean), factor), beta)
    largest = factor.magnitude * (one.magnitude + mean.magnitude) + beta.magnitude
    off = FUNCTION_ULPS * given.type.epsilon * largest
    if not math.isfinite(off):
        return [given.anything(), *others]
    return [
        given.fit(ValueRange(found.low - off, found.high + off, found.may_be_nan, True)),
        *others,
    ]


def _top_k(given: Operands) -> list[ValueRange]:
    if str(given.attrs.ret_type) != "both":
        return [given.anything()] * len(given.call.ty.fields)
    places = element_type(str(given.call.ty.fields[1].dtype))
    _, most = given.count(0, [int(given.attrs.axis)])
    return [
        given.fit(given[0], exact=True),
        places.fit(ValueRange(0, max(most - 1, 0), is_integral=True)),
    ]


def _number(value: float) -> Rule:
    return lambda given: given.fit(ValueRange(value, value, is_integral=True), exact=True)


def _sizes_of(given: Operands) -> ValueRange:
    shape = getattr(given.call.args[0].ty, "shape", None)
    extents = list(shape) if isinstance(shape, relax.ShapeExpr) else []
    return given.analysis.extents(extents)


def _counted(given: Operands) -> ValueRange:
    """arange, whose numbers lie between its ends."""
    return given.fit(join(given[0], given[1]))


RULES: Mapping[str, Rule] = {
    **SUM_RULES,
    "abs": lambda given: given.fit(interval.absolute(given[0]), exact=True),
    "add": _binary(interval.add),
    "arange": _counted,
    # Kernels of TVM give -1 or a place behind the end where all numbers are infinite or NaN.
    "argmax": anything,
    "argmin": anything,
    "astype": _cast,
    "atan": _unary(np.arctan),
    "broadcast_to": _moved,
    "ceil": _rounding(math.ceil),
    "clip": _clip,
    "concat": _moved,
    "cos": _periodic,
    "divide": _divide,
    "dynamic_strided_slice": _moved,
    "equal": _equal(False),
    "erf": _unary(np.vectorize(math.erf), -1.0, 1.0),
    "exp": _unary(np.exp, 0.0),
    "expand_dims": _moved,
    "flatten": _moved,
    "flip": _moved,
    "floor": _rounding(math.floor),
    "full": lambda given: given.fit(given[1]),
    "full_like": lambda given: given.fit(given[1]),
    "gather_elements": _moved,
    "gather_nd": _moved,
    "greater": _less(True, True),
    "greater_equal": _less(False, True),
    "index_tensor": _moved,
    "isfinite": _is_finite,
    "isinf": _is_inf,
    "isnan": _is_nan,
    "less": _less(True, False),
    "less_equal": _less(False, False),
    "log": _log,
    "logical_and": _logical_and,
    "logical_not": _logical_not,
    "logical_or": _logical_or,
    "maximum": _binary(interval.maximum, exact=True),
    "minimum": _binary(interval.minimum, exact=True),
    "multiply": _multiply,
    "negative": lambda given: given.fit(interval.negative(given[0]), exact=True),
    "nn.batch_flatten": _moved,
    "nn.gelu": _gated(-0.17),
    "nn.gelu_tanh": _gated(-0.171),
    "nn.leakyrelu": _leaky_relu,
    "nn.pad": _pad,
    "nn.pixel_shuffle": _moved,
    "nn.relu": _relu,
    "nn.silu": _gated(-0.2785),
    "not_equal": _equal(True),
    "one_hot": _joined(1, 2),
    "ones": _number(1),
    "ones_like": _number(1),
    "permute_dims": _moved,
    "power": _power,
    "repeat": _moved,
    "reshape": _moved,
    "reverse_sequence": _moved,
    "round": _rounding(round),
    "rsqrt": _rsqrt,
    "scatter_elements": _scatter,
    "scatter_nd": _scatter,
    "shape_of": _sizes_of,
    "shape_to_tensor": _moved,
    "sigmoid": _unary(lambda n: 1 / (1 + np.exp(-n)), 0.0, 1.0),
    "sign": _sign,
    "sin": _periodic,
    "sort": _moved,
    "split": _split,
    "sqrt": _sqrt,
    "square": lambda given: given.fit(interval.square(given[0])),
    "squeeze": _moved,
    "stack": _moved,
    "strided_slice": _moved,
    "subtract": _binary(interval.subtract),
    "take": _taken,
    "tanh": _unary(np.tanh, -1.0, 1.0),
    "tensor_to_shape": lambda given: given[0],
    "tile": _moved,
    "tril": _with_zeros,
    "triu": _with_zeros,
    "trunc": _rounding(math.trunc),
    "where": _where,
    "zeros": _number(0),
    "zeros_like": _number(0),
}

# Of operators that give a tuple: a range for each field, or one for all.
TUPLE_RULES: Mapping[str, Any] = {"nn.batch_norm": _batch_norm, "split": _split, "topk": _top_k}

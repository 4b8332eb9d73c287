"""Rules for value ranges of operators that join many elements: sums, means, products, pools."""

import math
from collections.abc import Mapping

import numpy as np

from tvm_ext.relay_passes.dataflow import interval
from tvm_ext.relay_passes.dataflow.interval import (
    FUNCTION_ULPS,
    ElementType,
    ValueRange,
    gamma,
    join,
    widened,
)
from tvm_ext.relay_passes.dataflow.range_operands import Operands, Rule, anything


def _axes(given: Operands) -> list[int] | None:
    axis = given.attrs.axis
    return None if axis is None else [int(one) for one in axis]


def _overflowing(found: ValueRange, kind: ElementType) -> ValueRange:
    """With NaN where parts of a sum may overflow both ways, and then meet."""
    meets = kind.is_float and found.low < -kind.high and found.high > kind.high
    return ValueRange(
        found.low,
        found.high,
        found.may_be_nan or meets,
        found.may_be_negative_zero,
        found.is_integral,
    )


def _sum(given: Operands) -> ValueRange:
    fewest, most = given.count(0, _axes(given))
    found = interval.total(given[0], fewest, most, given.type.epsilon)
    return given.fit(_overflowing(found, given.type))


def _cumulated(given: Operands) -> ValueRange:
    axis = given.attrs.axis
    _, most = given.count(0, None if axis is None else [int(axis)])
    found = interval.total(
        given[0], 0 if bool(given.attrs.exclusive) else 1, most, given.type.epsilon
    )
    return given.fit(_overflowing(found, given.type))


def _mean(given: Operands) -> ValueRange:
    fewest, most = given.count(0, _axes(given))
    if fewest < 1:
        return anything(given)
    summed = _overflowing(interval.total(given[0], fewest, most, given.type.epsilon), given.type)
    found = widened(given[0], gamma(most + 1, given.type.epsilon))
    # A sum may overflow where the mean would not.
    high = math.inf if summed.high > given.type.high else found.high
    low = -math.inf if summed.low < -given.type.high else found.low
    return given.fit(ValueRange(low, high, summed.may_be_nan, given[0].low <= 0))


def _extremum(sign: int) -> Rule:
    def rule(given: Operands) -> ValueRange:
        fewest, _ = given.count(0, _axes(given))
        of_none = given.type.anything()
        lowest = of_none.low if sign > 0 else of_none.high
        none = ValueRange(lowest, lowest)
        return given.fit(given[0] if fewest > 0 else join(given[0], none), exact=True)

    return rule


def _softmax(given: Operands) -> ValueRange:
    one = given[0]
    return given.function(ValueRange(0.0, 1.0, one.may_be_nan or one.may_be_infinite))


def _log_softmax(given: Operands) -> ValueRange:
    one = given[0]
    unsure = one.may_be_nan or one.may_be_infinite
    return given.fit(ValueRange(-math.inf, FUNCTION_ULPS * given.type.epsilon, unsure, True))


def _softplus(given: Operands) -> ValueRange:
    one = given[0]
    unsure = one.may_be_nan or one.may_be_infinite
    return given.function(ValueRange(0.0, max(one.high, 0.0) + 1.0, unsure))


def _matmul(given: Operands) -> ValueRange:
    rank = given.call.args[0].ty.ndim
    if rank < 1:
        return anything(given)
    _, most = given.count(0, [rank - 1])
    others = given.call.args[1].ty.ndim
    # Sums of weights take long, and say nothing of data without bounds.
    weights = given.weights(1, (others - 2,)) if others >= 2 and given[0].is_number else None
    return _products(given, most) if weights is None else _weighted(given, weights, most)


def _convolution(given: Operands) -> ValueRange:
    """A window may lie on the padding, which is zeros."""
    kernel = str(given.attrs.kernel_layout)
    if not kernel.isalpha():
        return anything(given)
    axes = [axis for axis, letter in enumerate(kernel) if letter != "O"]
    _, most = given.count(1, axes)
    weights = given.weights(1, tuple(axes)) if given[0].is_number else None
    return _products(given, most) if weights is None else _weighted(given, weights, most)


def _weighted(given: Operands, weights: tuple[np.ndarray, np.ndarray], count: int) -> ValueRange:
    """Sums of constants times data: ``weights`` are the sums of those above and below zero."""
    data = join(given[0], ValueRange(0, 0, is_integral=True))
    if data.may_be_infinite or data.may_be_nan or data.magnitude > 1e200:
        return _products(given, count)
    above, below = weights
    low = float((above * data.low + below * data.high).min())
    high = float((above * data.high + below * data.low).max())
    if not given.type.is_float:
        # Sums in float64 are exact below this.
        exact = max(abs(low), abs(high)) < 2**52
        return given.fit(ValueRange(math.floor(low), math.ceil(high))) if exact else anything(given)
    # Each product is rounded, then their sums; this bounds what cancels between them.
    most = float((above - below).max()) * data.magnitude
    off = most * gamma(count + 1, given.type.epsilon)
    return given.fit(_overflowing(ValueRange(low - off, high + off, False, True), given.type))


def _products(given: Operands, count: int) -> ValueRange:
    product = join(interval.multiply(given[0], given[1]), ValueRange(0, 0, is_integral=True))
    found = interval.total(product, 0, count, given.type.epsilon)
    wide = widened(found, given.type.epsilon)
    signs = ValueRange(wide.low, wide.high, wide.may_be_nan, True, wide.is_integral)
    return given.fit(_overflowing(signs, given.type))


def _max_pool(given: Operands) -> ValueRange:
    attrs = given.attrs
    window = [
        (int(size) - 1) * int(step) + 1
        for size, step in zip(attrs.pool_size, attrs.dilation, strict=True)
    ]
    if bool(attrs.ceil_mode) or max(map(int, attrs.padding), default=0) >= min(window):
        # A window may hold nothing but padding.
        return given.fit(
            join(given[0], ValueRange(given.type.anything().low, given[0].high)), exact=True
        )
    return given.fit(given[0], exact=True)


def _average_pool(given: Operands) -> ValueRange:
    count = math.prod(map(int, given.attrs.pool_size))
    return _mean_with_zeros(given, count)


def _global_average(given: Operands) -> ValueRange:
    _, most = given.count(0, None)
    return _mean_with_zeros(given, most)


def _mean_with_zeros(given: Operands, count: int) -> ValueRange:
    """A window without elements gives 0 or NaN, by its form."""
    one = join(given[0], ValueRange(0.0, 0.0))
    summed = _overflowing(interval.total(one, 0, count, given.type.epsilon), given.type)
    if summed.may_be_nan or summed.magnitude > given.type.high:
        return anything(given)
    found = widened(one, gamma(count + 2, given.type.epsilon))
    return given.fit(ValueRange(found.low, found.high, True, one.low < 0))


def _resize(given: Operands) -> ValueRange:
    method = str(given.attrs.method)
    if method == "nearest_neighbor":
        return given.fit(given[0], exact=True)
    if method != "linear" or not given[0].is_number:
        return anything(given)
    off = given[0].magnitude * 16 * FUNCTION_ULPS * given.type.epsilon
    one = given[0]
    return given.fit(ValueRange(one.low - off, one.high + off, False, True))


SUM_RULES: Mapping[str, Rule] = {
    "cumsum": _cumulated,
    "image.resize2d": _resize,
    "matmul": _matmul,
    "max": _extremum(1),
    "mean": _mean,
    "min": _extremum(-1),
    "nn.adaptive_avg_pool2d": _global_average,
    "nn.avg_pool1d": _average_pool,
    "nn.avg_pool2d": _average_pool,
    "nn.avg_pool3d": _average_pool,
    "nn.conv1d": _convolution,
    "nn.conv2d": _convolution,
    "nn.conv3d": _convolution,
    "nn.log_softmax": _log_softmax,
    "nn.max_pool1d": _max_pool,
    "nn.max_pool2d": _max_pool,
    "nn.max_pool3d": _max_pool,
    "nn.softmax": _softmax,
    "nn.softplus": _softplus,
    "sum": _sum,
}

"""Value ranges: between which numbers all elements of a tensor lie, and whether one may be NaN.

LLVM's ``LazyValueInfo`` and MLIR's ``IntegerRangeAnalysis``, for tensors and floating point. What
is found is sound: an operator that has no rule here may give anything, and every rounding is taken
outward. Ranges hold for what kernels compute, not for the real numbers.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tvm
from tvm import relax, tirx

from tvm_ext.relay_passes.dataflow import interval
from tvm_ext.relay_passes.dataflow.framework import ForwardAnalysis, Solution, State, solve_forward
from tvm_ext.relay_passes.dataflow.interval import (
    FUNCTION_ULPS,
    ElementType,
    ValueRange,
    element_type,
    gamma,
    join,
    join_all,
    widened,
)
from tvm_ext.relay_passes.dataflow.sizes import MOST, count_of, extent_bounds

# Larger constants are looked at for their range; what a product of one can give is not computed.
_MOST_WEIGHTS = 1 << 22

# Of all integer types together.
_ENDS_OF_INTEGERS = (-(1 << 63), (1 << 64) - 1)

Rule: TypeAlias = Callable[["Operands"], ValueRange]


def value_ranges(
    mod: tvm.IRModule,
    sizes: Mapping[str, tuple[int, int]] | None = None,
    inputs: Mapping[str, tuple[float, float]] | None = None,
) -> Solution[ValueRange]:
    """The range of every value of a module.

    ``sizes`` are the least and the largest value of symbolic sizes, by name. ``inputs`` are the
    least and the largest number in inputs of which that is promised; no NaN is in them either.
    """
    return solve_forward(mod, ValueRanges(sizes or {}, inputs or {}))


class ValueRanges(ForwardAnalysis[ValueRange]):
    """The analysis; a shape has the range of its sizes."""

    def __init__(
        self,
        sizes: Mapping[str, tuple[int, int]],
        inputs: Mapping[str, tuple[float, float]] | None = None,
    ) -> None:
        self.sizes, self.inputs = sizes, inputs or {}
        # By hash, with the constant, which is the same as long as it is kept.
        self._constants: dict[int, tuple[relax.Expr, ValueRange]] = {}
        self._sums: dict[tuple[int, tuple[int, ...]], tuple[np.ndarray, np.ndarray]] = {}

    def join(self, one: ValueRange, other: ValueRange) -> ValueRange:
        """The least range of both."""
        return join(one, other)

    def widen(self, before: ValueRange, after: ValueRange) -> ValueRange:
        """Bounds that moved go to zero, or as far as they can."""
        is_whole = isinstance(after.low, int) and isinstance(after.high, int)
        least, most = _ENDS_OF_INTEGERS if is_whole else (-math.inf, math.inf)
        low = before.low if after.low >= before.low else (0 if after.low >= 0 else least)
        high = before.high if after.high <= before.high else (0 if after.high <= 0 else most)
        return ValueRange(
            low,
            high,
            after.may_be_nan,
            after.may_be_negative_zero,
            after.is_integral,
        )

    def top(self, ty: tvm.ir.Type) -> ValueRange:
        """All numbers of the type."""
        if isinstance(ty, relax.TensorType) and ty.dtype is not None:
            return element_type(str(ty.dtype)).anything()
        if isinstance(ty, relax.ShapeType):
            return self._extents(list(ty.values or []))
        if isinstance(ty, tvm.ir.PrimType):
            return element_type(str(ty.dtype)).anything()
        return ValueRange(-math.inf, math.inf, True, True)

    def parameter(self, param: relax.Var) -> State:
        """What is promised for an input, or all numbers of its type."""
        promised = self.inputs.get(str(param.name))
        if promised is None or not isinstance(param.ty, relax.TensorType):
            return self.top_of(param.ty)
        kind = element_type(str(param.ty.dtype))
        if kind.is_float:
            return ValueRange(*map(float, promised), may_be_negative_zero=promised[0] <= 0)
        return kind.fit(ValueRange(math.floor(promised[0]), math.ceil(promised[1])))

    def constant(self, value: relax.Expr) -> ValueRange:
        """The range of the numbers of a literal."""
        if isinstance(value, relax.ShapeExpr):
            return self._extents(value.values[:])
        if isinstance(value, tirx.IntImm | tirx.FloatImm):
            number = value.value
            found = interval.of_array(np.asarray(number))
            return found if found is not None else self.top(value.ty)
        if not isinstance(value, tvm.ir.GenericConst):
            return self.top(value.ty)
        known = self._constants.get(hash(value))
        if known is None:
            found = interval.of_array(value.value.numpy())
            known = value, found if found is not None else self.top(value.ty)
            self._constants[hash(value)] = known
        return known[1]

    def weight_sums(
        self, weights: relax.Expr, axes: tuple[int, ...]
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """As ``Operands.weights``; each constant is looked at once."""
        if not isinstance(weights, tvm.ir.GenericConst) or not self.constant(weights).is_number:
            return None
        key = hash(weights), axes
        if key not in self._sums:
            array = weights.value.numpy()
            if array.size == 0 or array.size > _MOST_WEIGHTS:
                return None
            wide = array.astype(np.float64)
            above = np.maximum(wide, 0).sum(axis=axes)
            self._sums[key] = above, wide.sum(axis=axes) - above
        return self._sums[key]

    def taken(self, condition: ValueRange) -> bool | None:
        """Known where a condition has one value."""
        return bool(condition.low) if condition.low == condition.high else None

    def transfer(self, call: relax.Call, operands: Sequence[State]) -> State:
        """By the rule of the operator; anything where there is none."""
        name = str(call.op.name).removeprefix("relax.")
        if isinstance(call.ty, relax.TupleType):
            rule: Any = _TUPLE_RULES.get(name)
            fields = call.ty.fields[:]
            if rule is None:
                return self.top_of(call.ty)
            found = rule(Operands(self, call, operands, fields[0]))
            return tuple(found) if isinstance(found, list) else (found,) * len(fields)
        rule = RULES.get(name)
        if rule is None:
            return self.top_of(call.ty)
        return rule(Operands(self, call, operands, call.ty))

    def _extents(self, extents: Sequence[Any]) -> ValueRange:
        bounds = [extent_bounds(one, self.sizes) for one in extents] or [(0, MOST)]
        return ValueRange(
            min(low for low, _ in bounds), max(high for _, high in bounds), is_integral=True
        )


class Operands:
    """The call of an operator as its rule sees it."""

    def __init__(
        self, analysis: ValueRanges, call: relax.Call, states: Sequence[State], ty: tvm.ir.Type
    ) -> None:
        self.call, self.ty = call, ty
        self.attrs: Any = call.attrs
        self._analysis, self._states = analysis, states

    def __getitem__(self, place: int) -> ValueRange:
        """The range of an operand; of a tuple, that of all its fields."""
        state = self._states[place]
        if not isinstance(state, tuple):
            return state  # type: ignore[no-any-return]
        return join_all(state) if state else self.anything()

    def __len__(self) -> int:
        return len(self._states)

    @property
    def type(self) -> ElementType:
        """The type of the result's elements."""
        return element_type(str(self.ty.dtype) if isinstance(self.ty, relax.TensorType) else "")

    def anything(self) -> ValueRange:
        """All that an operator without a rule gives."""
        return self._analysis.top(self.ty)

    def fit(self, found: ValueRange, exact: bool = False) -> ValueRange:
        """What was found for real numbers, in the type of the result."""
        return self.type.fit(found, exact)

    def function(self, found: ValueRange, ulps: int = FUNCTION_ULPS) -> ValueRange:
        """As ``fit``, of a function that kernels compute to a few units in the last place."""
        return self.fit(widened(found, ulps * self.type.epsilon))

    def bounds(self, extent: Any) -> tuple[int, int]:
        """The least and the largest value of a size."""
        return extent_bounds(extent, self._analysis.sizes)

    def weights(self, place: int, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray] | None:
        """Of finite constants, not too many, the sums along axes of those above and below zero."""
        return self._analysis.weight_sums(self.call.args[place], axes)

    def count(self, place: int, axes: Sequence[int] | None) -> tuple[int, int]:
        """The fewest and the most elements along axes of an operand; all axes for None."""
        return count_of(self.call.args[place].ty, axes, self._analysis.sizes)


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
    return given.fit(interval.divide(given[0], given[1])) if given.type.is_float else _top(given)


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
        return _top(given)
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
        return _top(given)
    number = float(exponent.low)
    if one.low < 0 and number.is_integer() and number > 0 and number % 2 == 0:
        least, most = (0.0, one.magnitude) if one.has_zero() else _ends(interval.absolute(one))
    elif one.low >= 0 and number > 0:
        least, most = one.low, one.high
    else:
        return _top(given)
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
        return _top(given)
    return kind.fit(ValueRange(math.trunc(one.low), math.trunc(one.high)))


def _top(given: Operands) -> ValueRange:
    return given.anything()


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
    return ValueRange(min(given[0].low, given[1].low), min(given[0].high, given[1].high), False)


def _logical_or(given: Operands) -> ValueRange:
    return ValueRange(max(given[0].low, given[1].low), max(given[0].high, given[1].high), False)


def _logical_not(given: Operands) -> ValueRange:
    return ValueRange(1 - given[0].high, 1 - given[0].low, is_integral=True)


def _where(given: Operands) -> ValueRange:
    taken = given._analysis.taken(given[0])
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
    return _moved(given) if str(given.attrs.mode) in ("fast", "clip", "wrap") else _top(given)


def _joined(*places: int) -> Rule:
    return lambda given: given.fit(join_all(given[place] for place in places), exact=True)


def _with_zeros(given: Operands) -> ValueRange:
    return given.fit(join(given[0], ValueRange(0, 0, is_integral=True)), exact=True)


def _scatter(given: Operands) -> ValueRange:
    return _joined(0, 2)(given) if str(given.attrs.reduction) == "update" else _top(given)


def _pad(given: Operands) -> ValueRange:
    if str(given.attrs.pad_mode) != "constant":
        return _moved(given)
    number = float(given.attrs.pad_value)
    return given.fit(join(given[0], ValueRange(number, number, False, False, number.is_integer())))


def _split(given: Operands) -> ValueRange:
    return given.fit(given[0], exact=True)


def _top_k(given: Operands) -> list[ValueRange]:
    if str(given.attrs.ret_type) != "both":
        return [given.anything()] * len(given.call.ty.fields)
    places = element_type(str(given.call.ty.fields[1].dtype))
    _, most = given.count(0, [int(given.attrs.axis)])
    return [
        given.fit(given[0], exact=True),
        places.fit(ValueRange(0, max(most - 1, 0), is_integral=True)),
    ]


def _arg(given: Operands) -> ValueRange:
    axis = given.attrs.axis
    _, most = given.count(0, None if axis is None else [int(axis)])
    return given.fit(ValueRange(0, max(most - 1, 0), is_integral=True))


def _number(value: float) -> Rule:
    return lambda given: given.fit(ValueRange(value, value, is_integral=True), exact=True)


def _sizes_of(given: Operands) -> ValueRange:
    shape = getattr(given.call.args[0].ty, "shape", None)
    extents = list(shape) if isinstance(shape, relax.ShapeExpr) else []
    return given._analysis._extents(extents)


def _counted(given: Operands) -> ValueRange:
    """arange, whose numbers lie between its ends."""
    return given.fit(join(given[0], given[1]))


# Rules for sums.


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
        return _top(given)
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
        return _top(given)
    _, most = given.count(0, [rank - 1])
    others = given.call.args[1].ty.ndim
    weights = given.weights(1, (others - 2,)) if others >= 2 else None
    return _products(given, most) if weights is None else _weighted(given, weights, most)


def _convolution(given: Operands) -> ValueRange:
    """A window may lie on the padding, which is zeros."""
    kernel = str(given.attrs.kernel_layout)
    if not kernel.isalpha():
        return _top(given)
    axes = [axis for axis, letter in enumerate(kernel) if letter != "O"]
    _, most = given.count(1, axes)
    weights = given.weights(1, tuple(axes))
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
        return given.fit(ValueRange(math.floor(low), math.ceil(high))) if exact else _top(given)
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
    return _moved(given)


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
        return _top(given)
    found = widened(one, gamma(count + 2, given.type.epsilon))
    return given.fit(ValueRange(found.low, found.high, True, one.low < 0))


def _resize(given: Operands) -> ValueRange:
    method = str(given.attrs.method)
    if method == "nearest_neighbor":
        return _joined(0)(given)
    if method != "linear" or not given[0].is_number:
        return _top(given)
    off = given[0].magnitude * 16 * FUNCTION_ULPS * given.type.epsilon
    one = given[0]
    return given.fit(ValueRange(one.low - off, one.high + off, False, True))


RULES: Mapping[str, Rule] = {
    "abs": lambda given: given.fit(interval.absolute(given[0]), exact=True),
    "add": _binary(interval.add),
    "arange": _counted,
    "argmax": _arg,
    "argmin": _arg,
    "astype": _cast,
    "atan": _unary(np.arctan),
    "broadcast_to": _moved,
    "ceil": _rounding(math.ceil),
    "clip": _clip,
    "concat": _moved,
    "cos": _periodic,
    "cumsum": _cumulated,
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
    "image.resize2d": _resize,
    "index_put": _top,
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
    "matmul": _matmul,
    "max": _extremum(1),
    "maximum": _binary(interval.maximum, exact=True),
    "mean": _mean,
    "min": _extremum(-1),
    "minimum": _binary(interval.minimum, exact=True),
    "multiply": _multiply,
    "negative": lambda given: given.fit(interval.negative(given[0]), exact=True),
    "nn.adaptive_avg_pool2d": _global_average,
    "nn.avg_pool1d": _average_pool,
    "nn.avg_pool2d": _average_pool,
    "nn.avg_pool3d": _average_pool,
    "nn.batch_flatten": _moved,
    "nn.conv1d": _convolution,
    "nn.conv2d": _convolution,
    "nn.conv3d": _convolution,
    "nn.gelu": _gated(-0.17),
    "nn.gelu_tanh": _gated(-0.171),
    "nn.leakyrelu": _leaky_relu,
    "nn.log_softmax": _log_softmax,
    "nn.max_pool1d": _max_pool,
    "nn.max_pool2d": _max_pool,
    "nn.max_pool3d": _max_pool,
    "nn.pad": _pad,
    "nn.pixel_shuffle": _moved,
    "nn.relu": _relu,
    "nn.silu": _gated(-0.2785),
    "nn.softmax": _softmax,
    "nn.softplus": _softplus,
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
    "sum": _sum,
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

_TUPLE_RULES: Mapping[str, Any] = {"split": _split, "topk": _top_k}

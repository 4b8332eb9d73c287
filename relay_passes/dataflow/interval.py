"""Intervals of numbers as a kernel computes them: bounds, NaN, signed zeros, whole numbers.

Arithmetic is that of R. E. Moore, "Interval Analysis" (1966): a result's bounds are those of the
operands' bounds, rounded outward, so that every rounding of a kernel stays inside.
"""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import tvm

from tvm_ext.relay_passes.expressions import numpy_dtype

# Of functions such as exp: kernels may use polynomials, which are off by a few units in the last
# place. Twice what the worst of ours is.
FUNCTION_ULPS = 8


@dataclass(frozen=True, slots=True)
class ValueRange:
    """What every element of a tensor is.

    Attributes
    ----------
    low, high : int or float
        All elements that are not NaN lie between them. An infinite bound means that elements may be
        infinite; integers have bounds that are Python integers.
    may_be_nan, may_be_negative_zero : bool
        Whether an element may be that.
    is_integral : bool
        Whether all finite elements are whole numbers.
    """

    low: float
    high: float
    may_be_nan: bool = False
    may_be_negative_zero: bool = False
    is_integral: bool = False

    @property
    def may_be_infinite(self) -> bool:
        """Whether an element may be an infinity."""
        return math.isinf(self.low) or math.isinf(self.high)

    @property
    def magnitude(self) -> float:
        """Above the absolute value of all elements that are not NaN."""
        return max(abs(self.low), abs(self.high))

    @property
    def is_number(self) -> bool:
        """Whether no element is NaN or infinite."""
        return not self.may_be_nan and not self.may_be_infinite

    def has_zero(self) -> bool:
        """Whether an element may be zero, of either sign."""
        return self.low <= 0 <= self.high

    def within(self, low: float, high: float) -> bool:
        """Whether every element is a number from ``low`` to ``high``."""
        return not self.may_be_nan and low <= self.low and self.high <= high

    def covers(self, other: "ValueRange") -> bool:
        """Whether it holds for all that the other one holds for."""
        return join(self, other) == self


def join(one: ValueRange, other: ValueRange) -> ValueRange:
    """The least range that covers both."""
    return ValueRange(
        min(one.low, other.low),
        max(one.high, other.high),
        one.may_be_nan or other.may_be_nan,
        one.may_be_negative_zero or other.may_be_negative_zero,
        one.is_integral and other.is_integral,
    )


def join_all(ranges: Iterable[ValueRange]) -> ValueRange:
    """The least range that covers all of at least one."""
    return functools.reduce(join, ranges)


@dataclass(frozen=True)
class ElementType:
    """What numbers a type has.

    Attributes
    ----------
    low, high : int or float
        The least and the largest finite number.
    epsilon, smallest : float
        Of a floating-point type: the distance of 1 to the next number, and the least number that is
        not denormal. Both are 0 for integers.
    """

    name: str
    low: float
    high: float
    epsilon: float = 0.0
    smallest: float = 0.0

    @property
    def is_float(self) -> bool:
        """Whether the type has fractions, infinities and NaN."""
        return self.epsilon > 0

    def anything(self) -> ValueRange:
        """The range of all numbers of the type."""
        if self.is_float:
            return ValueRange(-math.inf, math.inf, True, True)
        return ValueRange(self.low, self.high, is_integral=True)

    def fit(self, found: ValueRange, exact: bool = False) -> ValueRange:
        """A range of real numbers as numbers of the type, which rounds, overflows or wraps.

        ``exact`` is for results that no kernel rounds, such as the larger of two numbers.
        """
        if math.isnan(found.low) or math.isnan(found.high):
            return self.anything()
        if not self.is_float:
            fits = found.low >= self.low and found.high <= self.high
            return ValueRange(found.low, found.high, is_integral=True) if fits else self.anything()
        if exact:
            return replace(found, low=float(found.low), high=float(found.high))
        low, high = self._outward(found.low, -1), self._outward(found.high, 1)
        # Kernels may take denormal numbers for zeros.
        low = 0.0 if 0 < low < self.smallest else low
        high = -0.0 if -self.smallest < high < 0 else high
        signs = found.may_be_negative_zero or low < 0 <= high
        return replace(found, low=low, high=high, may_be_negative_zero=signs)

    def _outward(self, number: float, sign: int) -> float:
        bound = float(number)
        if bound == 0 or math.isinf(bound):
            return bound
        if not self.low <= bound <= self.high:
            beyond = math.inf if bound > 0 else -math.inf
            return beyond if bound * sign > 0 else math.copysign(self.high, bound)
        if self.name == "float64":
            return math.nextafter(bound, sign * math.inf)
        rounded = float(np.asarray(bound).astype(numpy_dtype(self.name)))
        return max(bound, rounded) if sign > 0 else min(bound, rounded)


@functools.cache
def element_type(dtype: str) -> ElementType:
    """The numbers of a type of TVM, such as "float32"."""
    if dtype == "bool":
        return ElementType(dtype, 0, 1)
    kind = tvm.DataType(dtype)
    if dtype.startswith(("int", "uint")):
        signed = dtype.startswith("int")
        return ElementType(
            dtype, -(1 << (kind.bits - 1)) if signed else 0, (1 << (kind.bits - signed)) - 1
        )
    try:
        limits = ml_dtypes.finfo(numpy_dtype(dtype))
    except (TypeError, ValueError):
        # A type that NumPy does not know: nothing is known of its numbers.
        return ElementType(dtype, -math.inf, math.inf, math.inf, math.inf)
    numbers = (limits.min, limits.max, limits.eps, limits.smallest_normal)
    return ElementType(dtype, *map(float, numbers))


# Of larger arrays it is not asked whether a zero has a sign.
_MOST_SIGNS = 1 << 16


def of_array(array: np.ndarray) -> ValueRange | None:
    """The range of the elements of an array; None where it has none that are numbers."""
    if array.size == 0 or array.dtype.kind not in "biufV":
        return None
    if array.dtype.kind in "biu":
        return ValueRange(int(array.min()), int(array.max()), is_integral=True)
    plain = array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)
    low, high = float(plain.min()), float(plain.max())
    may_be_nan = math.isnan(low)
    if may_be_nan:
        plain = plain[~np.isnan(plain)]
        if plain.size == 0:
            return None
        low, high = float(plain.min()), float(plain.max())
    zeros = low <= 0 <= high and (
        plain.size > _MOST_SIGNS or bool(np.signbit(plain[plain == 0]).any())
    )
    # Nearly all weights have a fraction among a few, not always among the first ones: the row of a
    # word that stands for none may be zeros.
    few = plain.flat[:: max(1, plain.size // 64)]
    is_integral = all(bool(np.all(np.trunc(part) == part)) for part in (few, plain))
    return ValueRange(low, high, may_be_nan, zeros, is_integral)


def gamma(count: float, epsilon: float) -> float:
    """By how much, relatively, ``count`` roundings may change a sum of numbers of one sign.

    N. J. Higham, "Accuracy and Stability of Numerical Algorithms", 2nd edition, section 3.1, with
    the unit roundoff ``epsilon / 2``.
    """
    share = count * epsilon / 2
    return share / (1 - share) if share < 1 else math.inf


def widened(found: ValueRange, share: float) -> ValueRange:
    """The range with bounds that are further out by this share of each."""
    if share == 0:
        return found
    low, high = (_scaled(bound, share) for bound in (found.low, found.high))
    return replace(found, low=min(low[0], found.low), high=max(high[1], found.high))


def _scaled(bound: float, share: float) -> tuple[float, float]:
    if bound == 0 or math.isinf(bound):
        return bound, bound
    off = abs(bound) * share
    return bound - off, bound + off


# Arithmetic over the real numbers; ``ElementType.fit`` makes numbers of a type of the result.


def add(one: ValueRange, other: ValueRange) -> ValueRange:
    """``one + other``."""
    opposite = (
        one.high == math.inf and other.low == -math.inf,
        one.low == -math.inf and other.high == math.inf,
    )
    return ValueRange(
        _sum(one.low, other.low, -math.inf),
        _sum(one.high, other.high, math.inf),
        one.may_be_nan or other.may_be_nan or any(opposite),
        one.may_be_negative_zero and other.may_be_negative_zero,
        one.is_integral and other.is_integral,
    )


def _sum(one: float, other: float, otherwise: float) -> float:
    return otherwise if math.isinf(one) and one == -other else one + other


def negative(one: ValueRange) -> ValueRange:
    """``-one``."""
    return replace(one, low=-one.high, high=-one.low, may_be_negative_zero=one.has_zero())


def subtract(one: ValueRange, other: ValueRange) -> ValueRange:
    """``one - other``."""
    found = add(one, replace(other, low=-other.high, high=-other.low))
    return replace(found, may_be_negative_zero=one.may_be_negative_zero and other.has_zero())


def multiply(one: ValueRange, other: ValueRange) -> ValueRange:
    """``one * other``."""
    corners = [_product(a, b) for a in (one.low, one.high) for b in (other.low, other.high)]
    unsure = (one.may_be_infinite and other.has_zero()) or (
        other.may_be_infinite and one.has_zero()
    )
    return ValueRange(
        min(corners),
        max(corners),
        one.may_be_nan or other.may_be_nan or unsure,
        # A product of unlike signs may be so small that it becomes a zero.
        not (is_plus(one) and is_plus(other)) and min(corners) <= 0,
        one.is_integral and other.is_integral,
    )


def is_plus(one: ValueRange) -> bool:
    """Whether no element has a minus sign, zeros included."""
    return one.low >= 0 and not one.may_be_negative_zero


def _product(one: float, other: float) -> float:
    # What a kernel gives for it is NaN, which is no matter of bounds.
    return 0 if one == 0 or other == 0 else one * other


def square(one: ValueRange) -> ValueRange:
    """``one * one`` of the same elements."""
    least = 0 if one.has_zero() else min(abs(one.low), abs(one.high))
    return ValueRange(
        _product(least, least),
        _product(one.magnitude, one.magnitude),
        one.may_be_nan,
        False,
        one.is_integral,
    )


def divide(one: ValueRange, other: ValueRange) -> ValueRange:
    """``one / other`` in floating point."""
    may_be_nan = (
        one.may_be_nan
        or other.may_be_nan
        or (one.has_zero() and other.has_zero())
        or (one.may_be_infinite and other.may_be_infinite)
    )
    if other.has_zero():
        both = is_plus(one) and is_plus(other)
        return ValueRange(0.0 if both else -math.inf, math.inf, may_be_nan, not both)
    corners = [_quotient(a, b) for a in (one.low, one.high) for b in (other.low, other.high)]
    signs = not (is_plus(one) and is_plus(other)) and min(corners) <= 0
    return ValueRange(min(corners), max(corners), may_be_nan, signs)


def _quotient(one: float, other: float) -> float:
    return 0.0 if math.isinf(other) else one / other


def absolute(one: ValueRange) -> ValueRange:
    """``|one|``."""
    least = 0 if one.has_zero() else min(abs(one.low), abs(one.high))
    return ValueRange(least, one.magnitude, one.may_be_nan, False, one.is_integral)


def maximum(one: ValueRange, other: ValueRange) -> ValueRange:
    """The larger of both; where one is NaN, NaN or the other, which kernels do not agree in."""
    lows = [max(one.low, other.low)]
    lows += [other.low] if one.may_be_nan else []
    lows += [one.low] if other.may_be_nan else []
    high = max(one.high, other.high)
    both = join(one, other)
    return replace(
        both,
        low=min(lows),
        high=high,
        may_be_negative_zero=both.may_be_negative_zero and min(lows) <= 0,
    )


def minimum(one: ValueRange, other: ValueRange) -> ValueRange:
    """The smaller of both; where one is NaN, NaN or the other."""

    def mirrored(each: ValueRange) -> ValueRange:
        return replace(each, low=-each.high, high=-each.low)

    return mirrored(maximum(mirrored(one), mirrored(other)))


def monotone(
    one: ValueRange, function: Callable[[float], float], is_integral: bool = False
) -> ValueRange:
    """The image under a function that never falls, and gives -0 for -0 alone."""
    return replace(one, low=function(one.low), high=function(one.high), is_integral=is_integral)


def total(one: ValueRange, fewest: float, most: float, epsilon: float) -> ValueRange:
    """The sum of from ``fewest`` to ``most`` elements, rounded in any order."""
    low = _product(one.low, most if one.low < 0 else fewest)
    high = _product(one.high, most if one.high > 0 else fewest)
    mixed = (one.low < 0 < one.high) and one.may_be_infinite
    nan = one.may_be_nan or mixed
    found = ValueRange(low, high, nan, one.may_be_negative_zero, one.is_integral)
    return widened(found, gamma(max(most - 1, 0), epsilon))

"""Compares and shortens sizes that are made of one dimension by arithmetic.

Sizes of images go through divisions: by strides, rounded down or up, up to a multiple of a window.
Slices clip their bounds to what there is: ``max(min(1, n) + n - 1, 0)`` is n. TVM's rules compare
few of these. All of them are quasi-affine from some size on: after a period, which is a product of
their divisors, they have grown by the same everywhere, so that a few periods decide about all.
"""

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from tvm import tirx
from tvm.sym import Analyzer

# With longer periods expressions are left as they are.
_LONGEST_PERIOD = 1 << 12
# What is small, and not yet quasi-affine, is looked at size by size, up to here.
_LATEST_START = 1 << 14

_Values = Callable[[np.ndarray], np.ndarray]
# The least and the largest size that a variable stands for.
Ends: TypeAlias = Callable[[tirx.Var], tuple[int, int]]


def any_size(variable: tirx.Var) -> tuple[int, int]:
    """The ends of a variable of which nothing is known but that it is a size."""
    return 0, 1 << 62


@dataclass(frozen=True)
class _QuasiAffine:
    """A function of one size: ``f(n + period) - f(n)`` is the same for every n from a start on.

    A condition is one as well, of the values 0 and 1.
    """

    variable: tirx.Var | None
    period: int
    start: int
    values: _Values

    @property
    def growth(self) -> int:
        """How much larger the function is a period later."""
        first, later = self.values(np.array([self.start, self.start + self.period]))
        return int(later) - int(first)


_ARITHMETIC: dict[type, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.FloorDiv: np.floor_divide,
    tirx.FloorMod: np.mod,
}
_CHOICES: dict[type, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
}
_COMPARISONS: dict[type, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    tirx.EQ: operator.eq,
    tirx.NE: operator.ne,
    tirx.LT: operator.lt,
    tirx.LE: operator.le,
    tirx.GT: operator.gt,
    tirx.GE: operator.ge,
}
_CONNECTIVES: dict[type, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}


def _of(size: Any) -> _QuasiAffine | None:
    """The size as such a function; None for one of another kind, or of several variables."""
    if isinstance(size, int | tirx.IntImm):
        number = int(size)
        return _QuasiAffine(None, 1, 0, lambda n: np.full_like(n, number))
    if isinstance(size, tirx.Var):
        return _QuasiAffine(size, 1, 0, lambda n: n)
    kind = type(size)
    if kind in _ARITHMETIC | _CHOICES | _COMPARISONS | _CONNECTIVES:
        a, b = _of(size.a), _of(size.b)
        return None if a is None or b is None else _combined(kind, size, a, b)
    if isinstance(size, tirx.Not):
        a = _of(size.a)
        return None if a is None else _limited(a, a, a.period, a.start, lambda n: 1 - a.values(n))
    return None


def _combined(kind: type, size: Any, a: _QuasiAffine, b: _QuasiAffine) -> _QuasiAffine | None:
    if a.variable is not None and b.variable is not None and not a.variable.same_as(b.variable):
        return None
    period, start = math.lcm(a.period, b.period), max(a.start, b.start)
    if kind in _CHOICES | _COMPARISONS:
        settled = _settled(a, b, period, start)
        combine = (_CHOICES | _COMPARISONS)[kind]
        values: _Values = lambda n: combine(a.values(n), b.values(n)).astype(np.int64)  # noqa: E731
        return None if settled is None else _limited(a, b, period, settled, values)
    combine = (_ARITHMETIC | _CONNECTIVES)[kind]
    if kind is tirx.Mul and a.variable is not None and b.variable is not None:
        return None
    if kind in (tirx.FloorDiv, tirx.FloorMod):
        divisor = int(size.b) if isinstance(size.b, tirx.IntImm) else 0
        if divisor <= 0:
            return None
        period *= divisor // math.gcd(divisor, a.growth)
    return _limited(
        a, b, period, start, lambda n: combine(a.values(n), b.values(n)).astype(np.int64)
    )


def _settled(a: _QuasiAffine, b: _QuasiAffine, period: int, start: int) -> int | None:
    """From where on which of the two is larger depends on the remainder by the period alone."""
    if period > _LONGEST_PERIOD or start > _LATEST_START:
        return None
    sizes = np.arange(start, start + 2 * period, dtype=np.int64)
    distance = a.values(sizes) - b.values(sizes)
    growth = int(distance[period] - distance[0])
    if growth == 0:
        return start
    # How far the worst remainder is from the sign that it gets in the end.
    behind = int((-distance[:period] * np.sign(growth)).max())
    return start + max(0, behind // abs(growth) + 1) * period


def _limited(
    a: _QuasiAffine, b: _QuasiAffine, period: int, start: int, values: _Values
) -> _QuasiAffine | None:
    if period > _LONGEST_PERIOD or start > _LATEST_START:
        return None
    return _QuasiAffine(a.variable if b.variable is None else b.variable, period, start, values)


def always(condition: Any, ends: Ends = any_size) -> bool:
    """Whether a condition on sizes holds in every run; False where that is not known."""
    function = _of(condition)
    if function is None:
        return False
    sizes = _deciding([function], 1, ends)
    return sizes is not None and bool(function.values(sizes).all())


def _deciding(functions: Sequence[_QuasiAffine], periods: int, ends: Ends) -> np.ndarray | None:
    """Sizes that decide about functions of one variable: all small ones, and some periods."""
    period = math.lcm(1, *(one.period for one in functions))
    low, high = 0, 0
    for variable in (one.variable for one in functions if one.variable is not None):
        low, high = ends(variable)
    first = max(low, *(one.start for one in functions), 0)
    last = min(high, first + periods * period - 1)
    if last - low > 4 * _LONGEST_PERIOD + _LATEST_START:
        return None
    return np.arange(low, last + 1, dtype=np.int64)


def equal_products(first: Iterable[Any], second: Iterable[Any], ends: Ends = any_size) -> bool:
    """Whether the products of these sizes are known to be equal in every run.

    A product of k factors is a polynomial of degree k for each remainder of a size by the period,
    so k + 1 periods decide. Sizes of several variables count as products of factors of one each.
    """
    sides = [_by_variable(first), _by_variable(second)]
    if sides[0] is None or sides[1] is None or sides[0].keys() != sides[1].keys():
        return False
    # Of each variable the products are compared up to a number; in the end these numbers are.
    numbers = [1, 1]
    for variable in sides[0]:
        products = _products(sides[0][variable], sides[1][variable], ends)
        if products is None:
            return False
        place = next((n for n in range(len(products[0])) if products[1][n]), None)
        if place is None:
            return not products[0].any()
        a, b = (side[place] for side in products)
        if not np.array_equal(products[0] * b, products[1] * a):
            return False
        numbers = [numbers[0] * int(a), numbers[1] * int(b)]
    return numbers[0] == numbers[1]


def _by_variable(sizes: Iterable[Any]) -> dict[tirx.Var | None, list[_QuasiAffine]] | None:
    found: dict[tirx.Var | None, list[_QuasiAffine]] = {None: []}
    for factor in _factors(sizes):
        one = _of(factor)
        if one is None:
            return None
        found.setdefault(one.variable, []).append(one)
    return found


def _factors(sizes: Iterable[Any]) -> list[Any]:
    """What the sizes are products of, numbers as Python's."""
    found, waiting = [], list(sizes)[::-1]
    while waiting:
        size = waiting.pop()
        if isinstance(size, tirx.Mul):
            waiting += [size.b, size.a]
        else:
            found.append(int(size) if isinstance(size, tirx.IntImm) else size)
    return found


def _products(
    first: Sequence[_QuasiAffine], second: Sequence[_QuasiAffine], ends: Ends
) -> tuple[np.ndarray, np.ndarray] | None:
    """The values of both products, as Python's integers, for as many sizes as decide."""
    sizes = _deciding([*first, *second], max(len(first), len(second)) + 1, ends)
    if sizes is None:
        return None

    def product(side: Sequence[_QuasiAffine]) -> np.ndarray:
        values = np.ones(len(sizes), object)
        for one in side:
            values = values * one.values(sizes).astype(object)
        return values

    return product(first), product(second)


def inferred_size(sizes: Sequence[Any], others: Sequence[Any]) -> Any:
    """What is left of as many elements beside ``others``: the -1 of a Reshape.

    None where it is known as a quotient only: TVM does not see that ``n * m * 8 // (m * 8)`` is n.
    """
    left, number = _factors(sizes), 1
    for factor in _factors(others):
        if isinstance(factor, int):
            number *= factor
            continue
        times = [None if isinstance(one, int) else _multiple(one, factor) for one in left]
        place = next((i for i, count in enumerate(times) if count is not None), None)
        if place is None:
            return None
        left[place] = times[place]
    known = math.prod(one for one in left if isinstance(one, int))
    if number == 0 or known % number:
        return None
    return math.prod((one for one in left if not isinstance(one, int)), start=known // number)


def _multiple(size: tirx.Expr, other: tirx.Expr) -> int | None:
    """How many times ``other`` the size always is; None where no number is known."""
    if Analyzer().can_prove_equal(size, other):
        return 1
    function, unit = _of(size), _of(other)
    if function is None or unit is None:
        return None
    places = np.arange(unit.start + unit.period + 1, dtype=np.int64)
    a, b = function.values(places), unit.values(places)
    first = next((n for n in places if b[n]), None)
    if first is None or a[first] % b[first]:
        return None
    times = int(a[first] // b[first])
    return times if times > 0 and equal_products([size], [times, other]) else None


def shortened(size: tirx.Expr) -> tirx.Expr:
    """``(n + a) // b * c + d`` for a size that is always equal to one such; else itself.

    ``n // 2 + n % 8 // 2 * 3 % 4``, half of n up to a multiple of 4, is ``(n + 6) // 8 * 4``.
    """
    function = _of(size)
    if function is None or function.variable is None:
        return size
    sizes = np.arange(function.start + 2 * function.period + 1, dtype=np.int64)
    values = function.values(sizes)
    steps = np.flatnonzero(np.diff(values)) + 1
    if not len(steps):
        return size
    first, step = int(steps[0]), int(values[steps[0]] - values[steps[0] - 1])
    spacing = int(steps[1]) - first if len(steps) > 1 else function.period
    offset, rest = -first % spacing, int(values[0])
    if rest % step == 0:
        offset, rest = offset + rest // step * spacing, 0
    if not np.array_equal((sizes + offset) // spacing * step + rest, values):
        return size
    variable = function.variable
    dtype = str(variable.ty.dtype)
    a, b, c, d = (tirx.const(number, dtype) for number in (offset, spacing, step, rest))
    return Analyzer().simplify(tirx.floordiv(variable + a, b) * c + d)

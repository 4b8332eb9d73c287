"""Compares and shortens sizes that are sums, multiples, quotients and remainders of one dimension.

Sizes of images go through divisions: by strides, rounded down or up, up to a multiple of a window.
TVM's rules compare few of these. All of them are quasi-affine: after a period, which is a product
of their divisors, they have grown by the same everywhere, so that a few periods decide about all.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.sym import Analyzer

# With longer periods expressions are left as they are.
_LONGEST_PERIOD = 1 << 12

_Values = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class _QuasiAffine:
    """A function of one size: ``f(n + period) - f(n)`` is the same for every n."""

    variable: tirx.Var | None
    period: int
    values: _Values


def _of(size: Any) -> _QuasiAffine | None:
    """The size as such a function; None for one of another kind, or of several variables."""
    if isinstance(size, int | tirx.IntImm):
        number = int(size)
        return _QuasiAffine(None, 1, lambda n: np.full_like(n, number))
    if isinstance(size, tirx.Var):
        return _QuasiAffine(size, 1, lambda n: n)
    if isinstance(size, tirx.Add | tirx.Sub | tirx.Mul | tirx.FloorDiv | tirx.FloorMod):
        a, b = _of(size.a), _of(size.b)
        return None if a is None or b is None else _combined(size, a, b)
    return None


def _combined(size: Any, a: _QuasiAffine, b: _QuasiAffine) -> _QuasiAffine | None:
    variables = [side.variable for side in (a, b) if side.variable is not None]
    if len(variables) == 2 and not variables[0].same_as(variables[1]):
        return None
    variable, period = next(iter(variables), None), math.lcm(a.period, b.period)
    if isinstance(size, tirx.Add):
        return _limited(variable, period, lambda n: a.values(n) + b.values(n))
    if isinstance(size, tirx.Sub):
        return _limited(variable, period, lambda n: a.values(n) - b.values(n))
    if isinstance(size, tirx.Mul):
        known = a.variable is None or b.variable is None
        return _limited(variable, period, lambda n: a.values(n) * b.values(n)) if known else None
    divisor = int(size.b) if isinstance(size.b, tirx.IntImm) else 0
    if divisor <= 0:
        return None
    divide = np.floor_divide if isinstance(size, tirx.FloorDiv) else np.mod
    return _limited(variable, a.period * divisor, lambda n: divide(a.values(n), divisor))


def _limited(variable: tirx.Var | None, period: int, values: _Values) -> _QuasiAffine | None:
    return _QuasiAffine(variable, period, values) if period <= _LONGEST_PERIOD else None


def equal_products(first: Iterable[Any], second: Iterable[Any]) -> bool:
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
        products = _products(sides[0][variable], sides[1][variable])
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
    first: Sequence[_QuasiAffine], second: Sequence[_QuasiAffine]
) -> tuple[np.ndarray, np.ndarray] | None:
    """The values of both products, as Python's integers, for as many sizes as decide."""
    period = math.lcm(1, *(one.period for one in (*first, *second)))
    count = (max(len(first), len(second)) + 1) * period
    if count > 4 * _LONGEST_PERIOD:
        return None
    sizes = np.arange(count, dtype=np.int64)

    def product(side: Sequence[_QuasiAffine]) -> np.ndarray:
        values = np.ones(count, object)
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
    places = np.arange(unit.period + 1, dtype=np.int64)
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
    sizes = np.arange(2 * function.period + 1, dtype=np.int64)
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

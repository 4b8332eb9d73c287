"""Integer index expressions: their values at sampled points, as addresses by loops, as affine
sums.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.tir_schedules.analysis.buffer_access import nodes

POINTS = 64
"""Iterations at which conditions and extents are looked at."""

# Square roots of primes: no loop walks in step with another.
_STEPS = np.sqrt([2.0, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53])

Values = Mapping[Any, np.ndarray]
"""By variable, its value at each point."""


def spread_points(depth: int) -> np.ndarray:
    """Numbers from 0 to 1 for the loop at ``depth``, evenly spread and always the same."""
    return (0.5 + _STEPS[depth % len(_STEPS)] * np.arange(POINTS)) % 1.0


def values_of(expr: Any, known: Values) -> np.ndarray | None:
    """``expr`` at each point; None when it depends on anything but ``known``."""
    kind = type(expr)
    if kind is tirx.IntImm:
        return np.asarray(expr.value)
    if kind is tvm.ir.Var:
        return known.get(expr)
    if kind in _BINARY:
        left, right = values_of(expr.a, known), values_of(expr.b, known)
        return None if left is None or right is None else _BINARY[kind](left, right)
    parts = _parts(expr)
    if parts is None:
        return None
    found = [value for part in parts if (value := values_of(part, known)) is not None]
    if len(found) < len(parts):
        return None
    if len(found) == 3:
        return np.where(found[0] != 0, found[1], found[2])
    return np.equal(found[0], 0) if kind is tirx.Not else found[0]


def _parts(expr: Any) -> list[Any] | None:
    kind = type(expr)
    if kind in (tirx.Cast, tirx.Broadcast):
        return [expr.value]
    if kind is tirx.Not:
        return [expr.a]
    if kind is tirx.Select:
        return [expr.condition, expr.true_value, expr.false_value]
    if kind is tvm.ir.Call and expr.op.same_as(_CONDITIONAL):
        return list(expr.args)
    return None


_CONDITIONAL = tvm.ir.Op.get("prim.if_then_else")


def _safe(divide: Callable[..., Any]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda left, right: divide(left, np.where(right == 0, 1, right))


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    tirx.Add: np.add,
    tirx.Sub: np.subtract,
    tirx.Mul: np.multiply,
    tirx.Min: np.minimum,
    tirx.Max: np.maximum,
    tirx.FloorDiv: _safe(np.floor_divide),
    tirx.FloorMod: _safe(np.mod),
    # Of addresses and conditions, which are not negative.
    tirx.Div: _safe(np.floor_divide),
    tirx.Mod: _safe(np.mod),
    tirx.LT: np.less,
    tirx.LE: np.less_equal,
    tirx.GT: np.greater,
    tirx.GE: np.greater_equal,
    tirx.EQ: np.equal,
    tirx.NE: np.not_equal,
    tirx.And: np.logical_and,
    tirx.Or: np.logical_or,
}

Evaluator = Callable[[Mapping[int, np.ndarray]], np.ndarray]
"""An expression as a function of its variables' values, by the variables' hashes."""


def evaluator_of(expr: Any) -> Evaluator | None:
    """``expr`` read once, to be evaluated often; None when it has more than numbers and variables.

    A variable whose value is not given raises KeyError.
    """
    kind = type(expr)
    if kind is tirx.IntImm:
        number = np.asarray(expr.value)
        return lambda known: number
    if kind is tvm.ir.Var:
        key = hash(expr)
        return lambda known: known[key]
    if kind in _BINARY:
        parts, function = [expr.a, expr.b], _BINARY[kind]
    else:
        parts, function = _parts(expr) or [], _FUNCTIONS.get(kind, _conditional)
    inner = [found for part in parts if (found := evaluator_of(part)) is not None]
    if not parts or len(inner) < len(parts):
        return None
    return lambda known: function(*(part(known) for part in inner))


def _conditional(*values: np.ndarray) -> np.ndarray:
    if len(values) == 1:
        return values[0]
    return np.where(values[0] != 0, values[1], values[2])


_FUNCTIONS: dict[type, Callable[..., np.ndarray]] = {
    tirx.Not: lambda value: np.equal(value, 0),
}


# Addresses as sums of steps: which loops move them, how far, and to how many places.


# Loops up to this long are walked through to see where an address goes.
_LONGEST_WALK = 1024


@dataclass(frozen=True)
class Term:
    """One part of an address.

    Attributes
    ----------
    loops : int
        The loops that move it: bit ``n`` stands for loop number ``n``.
    step : float
        Elements from one of its places to the next.
    places : float
        How many it has.
    """

    loops: int
    step: float
    places: float


@dataclass(frozen=True)
class Address:
    """Where a load or a store goes, counted in elements.

    Attributes
    ----------
    terms : tuple[Term, ...]
        What moves it.
    offset : float
        Where it is when nothing moves it.
    lanes : int
        Elements of one access.
    lane_step : int or None
        From one lane to the next: 0 for a single element, None when each has its own place.
    """

    terms: tuple[Term, ...]
    offset: float
    lanes: int
    lane_step: int | None

    def moves_with(self, loops: int) -> bool:
        """Whether one of ``loops`` moves it."""
        return any(term.loops & loops for term in self.terms)

    def places_within(self, loops: int) -> float:
        """How many places it takes while only ``loops`` run."""
        count = 1.0
        for term in self.terms:
            if term.loops & loops:
                count *= term.places
        return count

    def fixed_part(self, loops: int) -> tuple[Term, ...]:
        """What stays while ``loops`` run."""
        return tuple(term for term in self.terms if not term.loops & loops)


@dataclass
class Scope:
    """What is known where an address stands.

    Attributes
    ----------
    loops : dict
        By variable of a loop around, its number and its extent.
    bound : dict
        Values of other variables.
    points : dict
        By variable, its values at the sampled points.
    """

    loops: dict[Any, tuple[int, float]] = field(default_factory=dict)
    bound: dict[Any, Any] = field(default_factory=dict)
    points: dict[Any, np.ndarray] = field(default_factory=dict)


def address_of(index: Any, scope: Scope) -> Address:
    """The address that an index of one dimension stands for."""
    linear = _linear(index, scope)
    terms = [
        Term(part.loops, factor * part.step, part.places)
        for part, factor in linear.parts.items()
        if factor and part.places > 1
    ]
    terms.sort(key=lambda term: (abs(term.step), term.loops))
    lanes = int(index.ty.dtype.lanes)
    return Address(tuple(terms), linear.offset, lanes, linear.lane_step)


@dataclass(frozen=True)
class _Part:
    """A loop's variable, or an expression that is not linear, times a factor."""

    key: Any
    loops: int
    step: float
    places: float


@dataclass
class _Linear:
    """A sum of parts, by what they are the factor of each, and a number."""

    parts: dict[_Part, float] = field(default_factory=dict)
    offset: float = 0.0
    lane_step: int | None = 0

    def scaled(self, factor: float) -> "_Linear":
        step = None if self.lane_step is None else int(self.lane_step * factor)
        parts = {part: own * factor for part, own in self.parts.items()}
        return _Linear(parts, self.offset * factor, step)

    def plus(self, other: "_Linear") -> "_Linear":
        step = None
        if self.lane_step is not None and other.lane_step is not None:
            step = self.lane_step + other.lane_step
        parts = dict(self.parts)
        for part, factor in other.parts.items():
            parts[part] = parts.get(part, 0.0) + factor
        return _Linear(parts, self.offset + other.offset, step)


def _linear(expr: Any, scope: Scope) -> _Linear:
    read = _READERS.get(type(expr), _opaque)
    return read(expr, scope)


def _sum(expr: Any, scope: Scope) -> _Linear:
    sign = 1.0 if type(expr) is tirx.Add else -1.0
    return _linear(expr.a, scope).plus(_linear(expr.b, scope).scaled(sign))


def _product(expr: tirx.Mul, scope: Scope) -> _Linear:
    for factor, other in ((expr.b, expr.a), (expr.a, expr.b)):
        number = _number(factor)
        if number is not None:
            return _linear(other, scope).scaled(number)
    return _opaque(expr, scope)


def _number(expr: Any) -> float | None:
    while type(expr) in (tirx.Broadcast, tirx.Cast):
        expr = expr.value
    return float(expr.value) if type(expr) is tirx.IntImm else None


def _variable(var: Any, scope: Scope) -> _Linear:
    if var in scope.bound:
        return _linear(scope.bound[var], scope)
    if var not in scope.loops:
        return _Linear()
    number, extent = scope.loops[var]
    return _Linear({_Part(number, 1 << number, 1.0, extent): 1.0})


def _ramp(expr: tirx.Ramp, scope: Scope) -> _Linear:
    base, step = _linear(expr.base, scope), _number(expr.stride)
    base.lane_step = None if step is None or base.lane_step != 0 else int(step)
    return base


def _opaque(expr: Any, scope: Scope) -> _Linear:
    """A division, a minimum, a looked-up index ...: how many values it takes, and how far apart."""
    loops, extents = 0, {}
    for var in _variables(expr, scope):
        if var in scope.loops:
            number, extent = scope.loops[var]
            loops |= 1 << number
            extents[var] = extent
    lane_step = 0 if int(expr.ty.dtype.lanes) == 1 else None
    if not loops:
        return _Linear(lane_step=lane_step)
    step, places = _spread(expr, extents, scope)
    # Equal expressions of other loops have the same hash.
    key = (loops, tvm_ffi.structural_hash(expr))
    return _Linear({_Part(key, loops, step, places): 1.0}, 0.0, lane_step)


def _variables(expr: Any, scope: Scope) -> list[Any]:
    found: list[Any] = []
    for var in nodes(expr, tvm.ir.Var):
        inner = scope.bound.get(var)
        found += [var] if inner is None else _variables(inner, scope)
    return found


def _spread(expr: Any, extents: Mapping[Any, float], scope: Scope) -> tuple[float, float]:
    """Mean step between, and number of, the values that ``expr`` takes in its loops."""
    iterations = float(np.prod(list(extents.values())))
    points: Mapping[Any, np.ndarray] = scope.points
    if len(extents) == 1 and iterations <= _LONGEST_WALK:
        (var,) = extents
        points = {**scope.points, var: np.arange(max(1, int(iterations)))}
    values = None if type(expr) in (tirx.Ramp, tvm.ir.TensorLoad) else values_of(expr, points)
    if values is None:
        return 1.0, iterations
    distinct = np.unique(values)
    span = float(distinct[-1] - distinct[0])
    places = float(len(distinct))
    if points is scope.points:
        places = min(iterations, span + 1)
    return (span / (places - 1) if places > 1 else 0.0), places


_READERS: dict[type, Callable[[Any, Scope], _Linear]] = {
    tirx.IntImm: lambda expr, scope: _Linear(offset=float(expr.value)),
    tvm.ir.Var: _variable,
    tirx.Add: _sum,
    tirx.Sub: _sum,
    tirx.Mul: _product,
    tirx.Ramp: _ramp,
    tirx.Broadcast: lambda expr, scope: _linear(expr.value, scope),
    tirx.Cast: lambda expr, scope: _linear(expr.value, scope),
}


# Integer expressions as sums of multiples of loop variables, and of a rest that is none.


@dataclass(frozen=True)
class Affine:
    """A constant plus each loop's variable, by the loop's number, times its factor.

    Attributes
    ----------
    constant : int
        The constant.
    factors : dict[int, int]
        By the number of a loop.
    others : frozenset[int]
        Loops that a further term depends on in another way (a remainder, a selection).
    """

    constant: int
    factors: dict[int, int] = field(default_factory=dict)
    others: frozenset[int] = frozenset()

    @cached_property
    def loops(self) -> frozenset[int]:
        """All that it depends on."""
        return self.others.union(self.factors)

    def plus(self, other: "Affine", times: int = 1) -> "Affine":
        """The sum with ``times`` as much of ``other``."""
        factors = dict(self.factors)
        for loop, factor in other.factors.items():
            found = factors.get(loop, 0) + times * factor
            if found:
                factors[loop] = found
            else:
                factors.pop(loop, None)
        others = self.others | other.others if times else self.others
        return Affine(self.constant + times * other.constant, factors, others)


def affine_of(expr: Any, known: Mapping[int, Affine | None]) -> Affine | None:
    """``expr`` in this form; None if it depends on anything but ``known``.

    ``known`` has the variables, by their hash: comparing two of them makes an expression.
    """
    kind = type(expr)
    if kind is tirx.IntImm:
        return Affine(int(expr.value))
    if kind is tvm.ir.Var:
        return known.get(hash(expr))
    if kind is tirx.Cast:
        return affine_of(expr.value, known)
    if kind in _TWO_SIDED:
        left, right = affine_of(expr.a, known), affine_of(expr.b, known)
        if left is None or right is None:
            return None
        return _together(kind, left, right)
    return _opaque_sum(expr, known)


def _together(kind: type, left: Affine, right: Affine) -> Affine:
    if kind is tirx.Add:
        return left.plus(right)
    if kind is tirx.Sub:
        return left.plus(right, -1)
    if kind is tirx.Mul:
        for one, other in ((left, right), (right, left)):
            if not other.loops:
                return Affine(0).plus(one, other.constant)
    return Affine(0, {}, left.loops | right.loops)


# Taken apart here, which is several times faster than a walk of TVM's.
_TWO_SIDED = frozenset(
    (
        *(tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod),
        *(tirx.Min, tirx.Max, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE),
        *(tirx.And, tirx.Or),
    )
)


def _opaque_sum(expr: Any, known: Mapping[int, Affine | None]) -> Affine | None:
    loops: frozenset[int] = frozenset()
    for var in nodes(expr, tvm.ir.Var, tvm.ir.TensorLoad):
        found = known.get(hash(var)) if isinstance(var, tvm.ir.Var) else None
        if found is None:
            return None
        loops |= found.loops
    return Affine(0, {}, loops)

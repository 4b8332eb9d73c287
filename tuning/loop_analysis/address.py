"""Addresses as sums of steps: which loops move them, how far, and to how many places."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.tir_schedules.llvm.flat_views import nodes
from tvm_ext.tuning.loop_analysis.sampling import values_of

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
    steps: dict[Any, float] = {}
    shapes: dict[Any, tuple[int, float, float]] = {}
    for key, factor, *shape in linear.parts:
        steps[key] = steps.get(key, 0.0) + factor
        shapes[key] = (shape[0], shape[1], shape[2])
    terms = []
    for key, factor in steps.items():
        loops, own_step, places = shapes[key]
        if factor and places > 1:
            terms.append(Term(loops, factor * own_step, places))
    terms.sort(key=lambda term: (abs(term.step), term.loops))
    lanes = int(index.ty.dtype.lanes)
    return Address(tuple(terms), linear.offset, lanes, linear.lane_step)


@dataclass
class _Linear:
    """A sum of parts: key, factor, then loops, step and places of each."""

    parts: list[tuple[Any, float, int, float, float]] = field(default_factory=list)
    offset: float = 0.0
    lane_step: int | None = 0

    def scaled(self, factor: float) -> "_Linear":
        step = None if self.lane_step is None else int(self.lane_step * factor)
        parts = [(key, own * factor, *shape) for key, own, *shape in self.parts]
        return _Linear(parts, self.offset * factor, step)  # type: ignore[arg-type]

    def plus(self, other: "_Linear") -> "_Linear":
        steps = (self.lane_step, other.lane_step)
        step = None if None in steps else (steps[0] or 0) + (steps[1] or 0)
        return _Linear(self.parts + other.parts, self.offset + other.offset, step)


def _linear(expr: Any, scope: Scope) -> _Linear:
    kind = type(expr)
    if kind is tirx.IntImm:
        return _Linear(offset=float(expr.value))
    if kind is tvm.ir.Var:
        if expr in scope.bound:
            return _linear(scope.bound[expr], scope)
        return _variable(expr, scope)
    if kind is tirx.Add:
        return _linear(expr.a, scope).plus(_linear(expr.b, scope))
    if kind is tirx.Sub:
        return _linear(expr.a, scope).plus(_linear(expr.b, scope).scaled(-1.0))
    if kind is tirx.Mul:
        for factor, other in ((expr.b, expr.a), (expr.a, expr.b)):
            number = _number(factor)
            if number is not None:
                return _linear(other, scope).scaled(number)
    if kind is tirx.Ramp:
        return _ramp(expr, scope)
    if kind in (tirx.Broadcast, tirx.Cast):
        return _linear(expr.value, scope)
    return _opaque(expr, scope)


def _number(expr: Any) -> float | None:
    while type(expr) in (tirx.Broadcast, tirx.Cast):
        expr = expr.value
    return float(expr.value) if type(expr) is tirx.IntImm else None


def _variable(var: Any, scope: Scope) -> _Linear:
    if var not in scope.loops:
        return _Linear()
    number, extent = scope.loops[var]
    return _Linear([(number, 1.0, 1 << number, 1.0, extent)])


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
    key = (loops, tvm_ffi.structural_hash(expr))
    return _Linear([(key, 1.0, loops, step, places)], 0.0, lane_step)


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

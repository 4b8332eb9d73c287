"""Addresses as sums of steps: which loops move them, how far, and to how many places."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.analysis.index_values import Values, values_of

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
    is_linear : bool
        Whether all steps are equal, in the order of the loop; else ``step`` is their mean.
    """

    loops: int
    step: float
    places: float
    is_linear: bool = True


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
        By the hash of a variable, its values at the sampled points.
    """

    loops: dict[Any, tuple[int, float]] = field(default_factory=dict)
    bound: dict[Any, Any] = field(default_factory=dict)
    points: dict[int, np.ndarray] = field(default_factory=dict)


def address_of(index: Any, scope: Scope) -> Address:
    """The address that an index of one dimension stands for."""
    linear = _linear(index, scope)
    terms = [
        Term(part.loops, factor * part.step, part.places, part.is_linear)
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
    is_linear: bool = True


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


def _linear(expr: tvm.ir.Expr, scope: Scope) -> _Linear:
    read = _READERS.get(type(expr), _opaque)
    return read(expr, scope)


def _sum(expr: tvm.ir.Expr, scope: Scope) -> _Linear:
    sign = 1.0 if type(expr) is tirx.Add else -1.0
    return _linear(expr.a, scope).plus(_linear(expr.b, scope).scaled(sign))


def _product(expr: tirx.Mul, scope: Scope) -> _Linear:
    for factor, other in ((expr.b, expr.a), (expr.a, expr.b)):
        number = _number(factor)
        if number is not None:
            return _linear(other, scope).scaled(number)
    return _opaque(expr, scope)


def _number(expr: tvm.ir.Expr) -> float | None:
    while type(expr) in (tirx.Broadcast, tirx.Cast):
        expr = expr.value
    return float(expr.value) if type(expr) is tirx.IntImm else None


def _variable(var: tirx.Var, scope: Scope) -> _Linear:
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


def _opaque(expr: tvm.ir.Expr, scope: Scope) -> _Linear:
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
    part = _Part(key, loops, step, places, is_linear=False)
    return _Linear({part: 1.0}, 0.0, lane_step)


def _variables(expr: tvm.ir.Expr, scope: Scope) -> list[Any]:
    found: list[Any] = []
    for var in nodes(expr, tvm.ir.Var):
        inner = scope.bound.get(var)
        found += [var] if inner is None else _variables(inner, scope)
    return found


def _spread(expr: tvm.ir.Expr, extents: Mapping[Any, float], scope: Scope) -> tuple[float, float]:
    """Mean step between, and number of, the values that ``expr`` takes in its loops."""
    iterations = float(np.prod(list(extents.values())))
    points: Values = scope.points
    if len(extents) == 1 and iterations <= _LONGEST_WALK:
        (var,) = extents
        points = {**scope.points, hash(var): np.arange(max(1, int(iterations)))}
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

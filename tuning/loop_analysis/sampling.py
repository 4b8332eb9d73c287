"""Values of integer expressions at points spread over the iterations of the loops around them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import tirx

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

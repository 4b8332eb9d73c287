"""Values of integer index expressions at sampled points."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from tvm_ext.tir_schedules.analysis.buffer_access import is_conditional

POINTS = 64
"""Iterations at which conditions and extents are looked at."""

# Square roots of primes: no loop walks in step with another.
_STEPS = np.sqrt([2.0, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53])

Values = Mapping[int, np.ndarray]
"""By a variable's hash, its value at each point: comparing variables makes an expression."""

Evaluator = Callable[[Values], np.ndarray]
"""An expression as a function of its variables' values."""


def spread_points(depth: int, points: int = POINTS) -> np.ndarray:
    """Numbers from 0 to 1 for the loop at ``depth``, evenly spread and always the same."""
    return (0.5 + _STEPS[depth % len(_STEPS)] * np.arange(points)) % 1.0


def values_of(expr: tvm.ir.Expr, known: Values) -> np.ndarray | None:
    """``expr`` at each point; None when it depends on anything but ``known``."""
    evaluator = evaluator_of(expr)
    try:
        return None if evaluator is None else evaluator(known)
    except KeyError:
        return None


def evaluator_of(expr: tvm.ir.Expr) -> Evaluator | None:
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
    parts, function = _parts(expr)
    inner = [found for part in parts if (found := evaluator_of(part)) is not None]
    if not parts or len(inner) < len(parts):
        return None
    return lambda known: function(*(part(known) for part in inner))


def _parts(expr: tvm.ir.Expr) -> tuple[list[tvm.ir.Expr], Callable[..., np.ndarray]]:
    """The expressions of which ``expr`` is a function, and the function; none for any other."""
    kind = type(expr)
    if kind in _BINARY:
        return [expr.a, expr.b], _BINARY[kind]
    if kind in (tirx.Cast, tirx.Broadcast):
        return [expr.value], np.asarray
    if kind is tirx.Not:
        return [expr.a], np.logical_not
    if kind is tirx.Select:
        return [expr.condition, expr.true_value, expr.false_value], _selected
    if is_conditional(expr):
        return list(expr.args), _selected
    return [], np.asarray


def _selected(condition: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.where(condition != 0, first, second)


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

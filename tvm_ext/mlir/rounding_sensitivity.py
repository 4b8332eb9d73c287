"""How far a kernel's results move where its arguments are rounded otherwise: its conditioning.

Two codes of one kernel add in different orders, which is as if their arguments differed in the last
digits. Most results move as little. Where a kernel rounds to integers, a number between two of them
goes to the other one; where a recurrence has large weights, everything moves.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

Results: TypeAlias = Mapping[str, np.ndarray]

_TRIES = 3
# Sums of some thousand terms are off by so many of the last digits.
_DIGITS = 8
# More places than this share are not few.
_FEW = 0.01


def moved_by_rounding(
    run: Callable[[list[Any]], Results], arguments: Sequence[Any]
) -> list[Results]:
    """Results of runs whose floating-point arguments differ from the given in the last digits."""
    generator = np.random.default_rng(0)
    return [run([_rounded(one, generator) for one in arguments]) for _ in range(_TRIES)]


def _rounded(value: Any, generator: np.random.Generator) -> Any:
    if not isinstance(value, np.ndarray) or "float" not in str(value.dtype):
        return value
    epsilon = float(ml_dtypes.finfo(value.dtype).eps)
    digits = 1 if value.dtype.itemsize < np.dtype(np.float32).itemsize else _DIGITS
    wide = value.astype(np.float64)
    change = generator.uniform(-1, 1, value.shape) * digits * epsilon
    return (wide * (1 + change)).astype(value.dtype)


def moves_everywhere(ours: np.ndarray, moved: Sequence[np.ndarray], allowed: float) -> bool:
    """Whether more than a few places move by more than ``allowed``."""
    return any(not _are_few(_gap(ours, one) > allowed) for one in moved)


def is_few_moves(
    ours: np.ndarray, theirs: np.ndarray, moved: Sequence[np.ndarray], allowed: float
) -> bool:
    """Whether results differ by more than ``allowed`` in few places, and there as far as rounding
    alone moves them.
    """
    if ours.shape != theirs.shape:
        return False
    gap = _gap(ours, theirs)
    furthest = max((float(_gap(ours, one).max(initial=0)) for one in moved), default=0.0)
    return _are_few(gap > allowed) and bool(gap.max(initial=0) <= furthest + allowed)


def _gap(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Distances; infinite where one of the two is no number."""
    with np.errstate(invalid="ignore"):
        found = np.abs(one.astype(np.float64) - other.astype(np.float64))
    is_same = (one == other) | (np.isnan(one) & np.isnan(other)) if _is_float(one) else one == other
    return np.where(is_same, 0.0, np.nan_to_num(found, nan=np.inf, posinf=np.inf))


def _is_float(array: np.ndarray) -> bool:
    return "float" in str(array.dtype)


def _are_few(places: np.ndarray) -> bool:
    return int(np.count_nonzero(places)) <= max(1, _FEW * places.size)

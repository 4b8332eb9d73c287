"""Where a block that picks one of several inputs (concatenation, padding) changes its choice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError
from tvm.sym import detect_linear_equation

from tvm_ext.tir_schedules.block_access import static_extent

# More pieces than this are more code than they are worth.
MAX_PIECES = 32

_IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")
COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)

# A comparison asks whether the difference of its sides is below these numbers.
_THRESHOLDS: dict[type, tuple[int, ...]] = {
    tirx.LT: (0,),
    tirx.GE: (0,),
    tirx.LE: (1,),
    tirx.GT: (1,),
    tirx.EQ: (0, 1),
    tirx.NE: (0, 1),
}


@dataclass(frozen=True)
class Borders:
    """Positions along one loop at which a condition changes.

    Attributes
    ----------
    positions : tuple[int, ...]
        First iterations after each change, ascending.
    known : bool
        False when a condition depends on the loop in a way that has no fixed positions.
    """

    positions: tuple[int, ...] = ()
    known: bool = True

    def __bool__(self) -> bool:
        return bool(self.positions) or not self.known


def borders_of(sch: s_tir.Schedule, block: SBlockRV) -> list[Borders]:
    """The borders along each iteration variable of ``block``."""
    stmt = sch.get(block)
    comparisons = branch_comparisons(stmt.body)
    return [_borders(comparisons, v.var, v.dom.extent) for v in stmt.iter_vars]


def split_at_borders(sch: s_tir.Schedule, loop: LoopRV, borders: Borders) -> None:
    """One loop for each piece in which the choice stays the same, so that none has a branch."""
    if not borders.positions or not borders.known or len(borders.positions) >= MAX_PIECES:
        return
    starts = (0, *borders.positions)
    lengths = [end - start for start, end in zip(starts, borders.positions, strict=False)]
    try:
        sch.loop_partition(loop, [*lengths, None])
    except ScheduleError:
        return


def branch_comparisons(root: Any) -> list[Any]:
    """The comparisons that the branches (not the selections) below ``root`` ask for."""
    conditions: list[Any] = []

    def look(call: tvm.ir.Call) -> None:
        if call.op.same_as(_IF_THEN_ELSE):
            conditions.append(call.args[0])

    tvm_ffi.structural_walk(root, (tvm.ir.Call, look))
    found: list[Any] = []
    for condition in conditions:
        tvm_ffi.structural_walk(condition, (COMPARISONS, found.append))
    return found


def changes(
    comparison: Any, loops: Sequence[tuple[tirx.Var, int]]
) -> tuple[int, tuple[int, ...]] | None:
    """The loop that decides a comparison most, and the iterations of it where it changes.

    Between the positions the comparison holds throughout, or nowhere, or (next to each other)
    there is a stretch in which other loops decide. None when it is not linear in the loops.
    """
    difference = comparison.a - comparison.b
    linear = detect_linear_equation(difference, [var for var, _ in loops])
    numbers = [static_extent(value) for value in linear]
    if len(numbers) != len(loops) + 1 or any(number is None for number in numbers):
        return None
    *slopes, offset = [number for number in numbers if number is not None]
    steepest = max(range(len(loops)), key=lambda i: abs(slopes[i]), default=None)
    if steepest is None or slopes[steepest] == 0:
        return 0, ()
    rest = [
        slope * (extent - 1)
        for i, (slope, (_, extent)) in enumerate(zip(slopes, loops, strict=True))
        if i != steepest
    ]
    low, high = offset + sum(r for r in rest if r < 0), offset + sum(r for r in rest if r > 0)
    found: set[int] = set()
    for threshold in _THRESHOLDS[type(comparison)]:
        found |= _crossings(slopes[steepest], low, high, threshold)
    return steepest, tuple(sorted(p for p in found if 0 < p < loops[steepest][1]))


def _crossings(slope: int, low: int, high: int, threshold: int) -> set[int]:
    """First iterations ``t`` after which ``slope * t + [low, high] < threshold`` changes."""
    if slope > 0:
        return {-((high - threshold) // slope), -((low - threshold) // slope)}
    return {(high - threshold) // -slope + 1, (low - threshold) // -slope + 1}


def _borders(comparisons: list[Any], variable: tirx.Var, extent: Any) -> Borders:
    size = static_extent(extent)
    if size == 1:
        return Borders()
    found: set[int] = set()
    for comparison in comparisons:
        positions = _positions(comparison, variable, size)
        if positions is None or size is None:
            return Borders(known=False)
        found.update(position for position in positions if 0 < position < size)
    return Borders(tuple(sorted(found)))


def _positions(comparison: Any, variable: tirx.Var, size: int | None) -> tuple[int, ...] | None:
    """Where the comparison changes along ``variable``; None when that is not one number."""
    linear = detect_linear_equation(comparison.a - comparison.b, [variable])
    if len(linear) != 2 or static_extent(linear[0]) is None:
        return None
    if static_extent(linear[0]) == 0:
        return ()
    found = changes(comparison, [(variable, size)]) if size is not None else None
    return found[1] if found is not None else None

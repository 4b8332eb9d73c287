"""Where a block that picks one of several inputs (concatenation, padding) changes its choice."""

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError
from tvm.sym import detect_linear_equation

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.llvm.inlining import walk

# More pieces than this are more code than they are worth.
MAX_PIECES = 16

_IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)


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
    conditions = [
        node.args[0]
        for node in walk(stmt.body)
        if isinstance(node, tvm.ir.Call) and node.op.same_as(_IF_THEN_ELSE)
    ]
    comparisons = [
        node for root in conditions for node in walk(root) if isinstance(node, _COMPARISONS)
    ]
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


def _borders(comparisons: list[Any], variable: tirx.Var, extent: Any) -> Borders:
    size = static_extent(extent)
    if size == 1:
        return Borders()
    found: set[int] = set()
    for comparison in comparisons:
        changes = _changes(comparison, variable)
        if changes is None or size is None:
            return Borders(known=False)
        found.update(position for position in changes if 0 < position < size)
    return Borders(tuple(sorted(found)))


def _changes(comparison: Any, variable: tirx.Var) -> list[int] | None:
    """Where the comparison changes along ``variable``; None when that is not one number."""
    linear = detect_linear_equation(comparison.a - comparison.b, [variable])
    if len(linear) != 2:
        return None
    slope, offset = static_extent(linear[0]), static_extent(linear[1])
    if slope == 0:
        return []
    if slope not in (1, -1) or offset is None:
        return None
    # The two sides are equal here; on which side of it the change is depends on the operator.
    equal = -offset * slope
    if isinstance(comparison, tirx.EQ | tirx.NE):
        return [equal, equal + 1]
    rises = slope == 1
    holds_at_equal = isinstance(comparison, tirx.LE | tirx.GE)
    below = isinstance(comparison, tirx.LT | tirx.LE)
    return [equal + 1 if holds_at_equal == (below == rises) else equal]

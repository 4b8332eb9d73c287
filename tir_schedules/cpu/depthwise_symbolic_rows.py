"""Code of a depthwise convolution with channels last, of images whose size a run decides.

A row of results has a middle, whose windows hold no padding, and two ends. The middle is computed
in tiles of several columns, the last of which starts earlier; at the ends, and where the middle is
shorter than a tile, each column takes those taps that it has.
"""

from dataclasses import dataclass, replace
from typing import Any

from tvm import tirx
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.loop_nest import index_of, substitute
from tvm_ext.tir_schedules.analysis.sliding_window import Slide, WindowKernel
from tvm_ext.tir_schedules.cpu.depthwise_channels_last import (
    ChannelsLast,
    ChannelsLastDecision,
    tap_rows,
)
from tvm_ext.tir_schedules.cpu.depthwise_window import DepthwiseWindow
from tvm_ext.tir_schedules.cpu.nest_code import chunks, loop, loops_around, new_axis
from tvm_ext.tir_schedules.statements import sequence, stack_array, through_memory

# Columns of a tile of the middle, the widest that it is as long as. Eight hide the latency of
# additions and leave registers for the weights of a row of the window.
_TILES = (8, 4)


def symbolic_channels_last(
    kernel: WindowKernel, window: DepthwiseWindow, machine: CpuDescription
) -> "SymbolicChannelsLast":
    """The code of ``kernel``. Raises NotApplicable where vectors cannot hold channels."""
    if window.channels is None or window.channels.length is None:
        raise NotApplicable("channels are not next to each other, or of a symbolic number")
    count = window.channels.length
    lanes = min(machine.vector_lanes(window.dtype), 1 << (count.bit_length() - 1))
    if lanes < 2:
        raise NotApplicable("there are too few channels for vectors")
    decision = ChannelsLastDecision(_TILES[0], lanes, 1, 1, False, machine.cores > 1)
    borders = _Borders()
    rows = borders.slide(window.rows) if window.rows is not None else None
    channels = window.channels
    window = replace(window, rows=rows, columns=borders.slide(window.columns))
    code = ChannelsLast(window, channels, decision, kernel.store, kernel.result)
    return SymbolicChannelsLast(code, borders)


class _Borders:
    """Variables for what is computed once for all rows."""

    def __init__(self) -> None:
        self.statements: list[tirx.Stmt] = []

    def slide(self, slide: Slide) -> Slide:
        """``slide`` with variables for where its padding ends and starts."""
        if not slide.is_padded:
            return slide
        like = slide.position.var
        first, last = (self.variable(border, like) for border in (slide.first, slide.last))
        return replace(slide, first=first, last=last)

    def variable(self, value: Any, like: tirx.Var) -> Any:
        """``value`` itself where it is a number."""
        if isinstance(value, int):
            return value
        found = tirx.Var("border", str(like.ty))
        self.statements += through_memory(found, Analyzer().simplify(index_of(value, like)))
        return found


@dataclass
class SymbolicChannelsLast:
    """The loops around tiles of ``code``; ``borders`` computes what its window is bounded by."""

    code: ChannelsLast
    borders: _Borders

    def statement(self, machine: CpuDescription) -> tirx.Stmt:
        """All loops, with images and rows over threads."""
        window = self.code.window
        axes = [*window.outer, *([window.rows.output] if window.rows is not None else [])]
        row: Any = window.rows.output.var if window.rows is not None else 0
        start, end = self._middle()
        width = self.code.decision.lanes
        block, channel = chunks(self.code.channels.extent, width, self.code.channels.var)
        body = loop(block, sequence(self._row(row, channel, start, end)))
        return sequence([*self.borders.statements, loops_around(axes, body, machine.cores)])

    def _middle(self) -> tuple[Any, Any]:
        """The columns from ``start`` to ``end``, none where they are fewer than a tile."""
        columns, like = self.code.window.columns, self.code.channels.var
        count = index_of(columns.output.extent, like)
        if not columns.is_padded:
            start, end = index_of(0, like), count
        else:
            # Of sizes that are never negative: rounded down is rounded to zero.
            start = tirx.truncdiv(index_of(columns.first, like) + (columns.step - 1), columns.step)
            room = index_of(columns.last, like) - 1 - columns.reach
            last = tirx.truncdiv(tirx.max(room, -columns.step), columns.step) + 1
            end = tirx.max(tirx.min(tirx.Select(room < 0, index_of(0, like), last), count), 0)
            start = tirx.min(start, count)
        first = self.borders.variable(start, like)
        fits = tirx.Select(end - first >= _TILES[-1], end, first)
        return first, self.borders.variable(fits, like)

    def _row(self, row: Any, channel: Any, start: Any, end: Any) -> list[tirx.Stmt]:
        like = self.code.channels.var
        single = new_axis("column", start + self.code.window.columns.output.extent - end, like)
        column = tirx.Select(single.var < start, single.var, single.var - start + end)
        place = tirx.Var("place", str(like.ty))
        body = sequence([tirx.Bind(place, column), self._column(row, place, channel)])
        middle: tirx.Stmt = self._tiles(row, channel, start, end, _TILES[-1])
        for size in reversed(_TILES[:-1]):
            wider = self._tiles(row, channel, start, end, size)
            middle = tirx.IfThenElse(end - start >= size, wider, middle)
        return [loop(single, body), tirx.IfThenElse(end > start, middle, None)]

    def _tiles(self, row: Any, channel: Any, start: Any, end: Any, size: int) -> tirx.Stmt:
        decision = replace(self.code.decision, columns=size)
        count = tirx.truncdiv(end - start + (size - 1), size)
        axis = new_axis("tile", count, self.code.channels.var)
        first = tirx.Var("first", str(axis.var.ty))
        bind = tirx.Bind(first, tirx.min(start + axis.var * size, end - size))
        code = replace(self.code, decision=decision)
        return loop(axis, sequence([bind, code.tile(row, first, channel, False)]))

    def _column(self, row: Any, column: Any, channel: Any) -> tirx.Stmt:
        """One column with the taps that it has."""
        code, window = self.code, self.code.window
        lanes = code.decision.lanes
        sums, declaration = stack_array(lanes, window.dtype, "sums")
        where = code.vector(0)
        zero = tirx.Broadcast(tirx.const(0.0, window.dtype), lanes)

        def multiply(tap: Any, across: Any) -> tirx.Stmt:
            down = tap if window.rows is None else row * window.rows.step + tap * window.rows.spread
            along = column * window.columns.step + across * window.columns.spread
            moved = {code.channels.var: channel}
            data = substitute(window.data_at(down, along), moved)
            weight = substitute(window.weight_at(tap, across), moved)
            total = tirx.BufferLoad(sums, [where]) + code.product(data, weight)
            return tirx.BufferStore(sums, total, [where])

        taps = tap_rows(
            window.rows,
            row,
            lambda tap: tap_rows(window.columns, column, lambda across: multiply(tap, across)),
        )
        one = replace(code, decision=replace(code.decision, columns=1))
        start = tirx.BufferStore(sums, zero, [where])
        return sequence([declaration, start, taps, one.write(sums, row, column, channel)])

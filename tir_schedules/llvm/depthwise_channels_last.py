"""Code of a depthwise convolution whose channels are next to each other."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from tvm import tirx

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.llvm.channels_last_decision import ChannelsLastDecision, row_tiles
from tvm_ext.tir_schedules.llvm.depthwise_window import DepthwiseWindow
from tvm_ext.tir_schedules.llvm.nest_code import chunks, loop, loops_around, new_axis
from tvm_ext.tir_schedules.llvm.stack_arrays import stack_array
from tvm_ext.tir_schedules.nest import Axis, index_of, substitute
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.windows.sliding_window import Slide


class ChannelsLast:
    """The loops, for flat views; ``store`` writes a result, for which ``result`` stands in it."""

    def __init__(
        self,
        window: DepthwiseWindow,
        channels: Axis,
        decision: ChannelsLastDecision,
        store: tirx.BufferStore,
        result: tirx.Var,
    ) -> None:
        self.window = window
        self.channels = channels
        self.decision = decision
        self.store = store
        self.result = result
        self.lanes = decision.lanes

    def statement(self, machine: CpuDescription) -> tirx.Stmt:
        """All loops, with the parts of the rows over threads."""
        window = self.window
        axes = list(window.outer)
        if window.rows is None:
            body = self._row(None)
        else:
            rows = window.rows.output
            length = -(-rows.extent // self.decision.parts)
            part, first = chunks(rows.extent, length, rows.var)
            axes.append(part)
            if self.decision.row_by_row:
                body = self._rows(first, length, None)
            else:
                body = self._channel_blocks(lambda channel: self._rows(first, length, channel))
        return loops_around(axes, body, machine.cores if self.decision.threads else 1)

    def _channel_blocks(self, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
        width = self.decision.lanes * self.decision.vectors
        block, channel = chunks(self.channels.extent, width, self.channels.var)
        return loop(block, body(channel))

    def _rows(self, first: Any, length: int, channel: Any | None) -> tirx.Stmt:
        row = new_axis("row", length, self.channels.var)
        return loop(row, self._row(first + row.var, channel))

    def _row(self, row: Any, channel: Any | None = None) -> tirx.Stmt:
        """A row of results: tiles at its ends with the taps that they have, others in a loop.

        For one block of channels, or tile by tile for all of them.
        """

        def tile(first: Any, at_end: bool) -> tirx.Stmt:
            if channel is not None:
                return self._tile(row, first, channel, at_end)
            return self._channel_blocks(lambda block: self._tile(row, first, block, at_end))

        ends, whole = row_tiles(self.window.columns, self.decision.columns)
        parts = [tile(first, True) for first in ends]
        if whole:
            axis = new_axis("tile", len(whole), self.channels.var)
            first = axis.var * self.decision.columns + whole[0]
            parts.append(loop(axis, tile(first, False)))
        return sequence(parts)

    def _tile(self, row: Any, first: Any, channel: Any, at_end: bool) -> tirx.Stmt:
        """Results of ``row`` from column ``first`` on: a number where the tile is at an end."""
        decision, dtype = self.decision, self.window.dtype
        size = decision.columns * decision.vectors * self.lanes
        sums, declaration = stack_array(size, dtype, "sums")
        zero = tirx.Broadcast(tirx.const(0.0, dtype), self.lanes)
        places = range(decision.columns * decision.vectors)
        starts = [tirx.BufferStore(sums, zero, [self._vector(p * self.lanes)]) for p in places]
        taps = tap_rows(
            self.window.rows,
            row,
            lambda tap: self._multiply(sums, (row, first, channel), tap, at_end),
        )
        return sequence([declaration, *starts, taps, *self._write(sums, row, first, channel)])

    def _multiply(self, sums: Any, at: tuple[Any, Any, Any], tap: Any, at_end: bool) -> tirx.Stmt:
        """One row of the window for all results of a tile: each input serves while it is there."""
        row, first, channel = at
        rows, columns = self.window.rows, self.window.columns
        down = tap if rows is None else row * rows.step + tap * rows.spread
        moved = {self.channels.var: channel}
        data = substitute(self.window.data_at(down, first * columns.step), moved)
        weight = substitute(self.window.weight_at(tap, 0), moved)
        data_step, weight_step = self.window.column_steps()
        found = []
        for place, (result, vector) in enumerate(self._results()):
            where = self._vector(place * self.lanes)
            for across in range(columns.position.extent):
                ahead = result * columns.step + across * columns.spread
                if at_end and not columns.first <= first * columns.step + ahead < columns.last:
                    continue
                beside = vector * self.lanes
                product = self._load(self.window.data, data + (ahead * data_step + beside))
                product = product * self._load(
                    self.window.weight, weight + (across * weight_step + beside)
                )
                total = tirx.BufferLoad(sums, [where]) + product
                found.append(tirx.BufferStore(sums, total, [where]))
        # A narrow tile may have nothing but padding under it.
        return sequence(found) if found else tirx.Evaluate(tirx.const(0, "int32"))

    def _write(self, sums: Any, row: Any, first: Any, channel: Any) -> list[tirx.Stmt]:
        found = []
        for place, (result, vector) in enumerate(self._results()):
            lane = new_axis("lane", self.lanes, self.channels.var)
            values = {
                self.result: tirx.BufferLoad(sums, [lane.var + place * self.lanes]),
                self.channels.var: channel + vector * self.lanes + lane.var,
                self.window.columns.output.var: index_of(first + result, self.channels.var),
            }
            if self.window.rows is not None:
                values[self.window.rows.output.var] = row
            indices = [substitute(index, values) for index in self.store.indices]
            store = tirx.BufferStore(
                self.store.buffer, substitute(self.store.value, values), indices
            )
            found.append(loop(lane, store, tirx.ForKind.VECTORIZED))
        return found

    def _results(self) -> Iterator[tuple[int, int]]:
        """Column and vector of each place among a tile's sums."""
        return itertools.product(range(self.decision.columns), range(self.decision.vectors))

    def _vector(self, first: Any) -> tirx.Ramp:
        dtype = str(self.channels.var.ty)
        return tirx.Ramp(index_of(first, self.channels.var), tirx.const(1, dtype), self.lanes)

    def _load(self, like: Any, address: Any) -> Any:
        return tirx.BufferLoad(like.source, [self._vector(address)])


def tap_rows(rows: Slide | None, row: Any, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    """``body`` for each row of the window at a row of results that is not padding."""
    if rows is None:
        return body(0)
    taps = rows.position.extent
    tap = new_axis("tap", taps, rows.position.var)
    if (rows.first, rows.last) == (0, rows.length):
        return loop(tap, body(tap.var))
    above = row * rows.step
    rounding = rows.spread - 1
    first = tirx.max(tirx.floordiv(rows.first - above + rounding, rows.spread), 0)
    last = tirx.min(tirx.floordiv(rows.last - above + rounding, rows.spread), taps)
    count = tirx.max(last - first, 0)
    zero = tirx.const(0, str(tap.var.ty))
    return tirx.For(tap.var, zero, count, tirx.ForKind.SERIAL, body(first + tap.var))

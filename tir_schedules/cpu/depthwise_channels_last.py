"""Code of a depthwise convolution whose channels are next to each other."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis
from tvm_ext.tir_schedules.analysis.loop_nest import index_of, substitute
from tvm_ext.tir_schedules.analysis.sliding_window import Slide
from tvm_ext.tir_schedules.cpu.depthwise_window import DepthwiseWindow
from tvm_ext.tir_schedules.cpu.nest_code import chunks, loop, loops_around, new_axis
from tvm_ext.tir_schedules.cpu.parallel_vectorize import distinct, pick_threads, worth_threads
from tvm_ext.tir_schedules.cpu.register_blocking import vector_registers
from tvm_ext.tir_schedules.statements import sequence, stack_array
from tvm_ext.tir_schedules.template import Decisions

# How a depthwise convolution runs whose channels are next to each other.


# Registers for what is read while sums and weights stay.
_SPARE_REGISTERS = 5

# Products of a tile for one row of the window. More are code, for all of which LLVM takes time, and
# no faster: these are enough to hide the latency of an addition.
_MOST_MULTIPLY_ADDS = 64

# Products that are written out: tiles at the ends of rows have their own, with their own taps.
MAX_MULTIPLY_ADDS = 1024

# Columns and vectors of a tile that are worth trying.
_COLUMNS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_VECTORS = (1, 2, 4)

# A row of results below this needs more vectors of channels to keep the units busy.
_FEW_COLUMNS = 8


@dataclass(frozen=True)
class ChannelsLastDecision:
    """How results are kept in registers.

    Attributes
    ----------
    columns : int
        Neighbouring results of a row in a tile.
    lanes : int
        Channels in a vector.
    vectors : int
        Vectors of channels in a tile.
    parts : int
        Parts into which the rows are cut, for threads.
    row_by_row : bool
        Whether all channels of a tile come before the next tile: what is read is then read in the
        order of memory. If not, all rows of a block of channels come first, and stay in L1.
    threads : bool
        Whether parts of the rows, and images, are handed to threads.
    """

    columns: int
    lanes: int
    vectors: int
    parts: int
    row_by_row: bool
    threads: bool


def decide_channels_last(
    window: DepthwiseWindow, channels: int, machine: CpuDescription, decisions: Decisions
) -> ChannelsLastDecision:
    """The default heuristic: as many columns, in even tiles, as leave registers for weights.

    Asks for ``vectors``, ``columns``, ``threads`` and, with them, ``parts``, and ``row_by_row``.
    """
    lanes = min(machine.vector_lanes(window.dtype), 1 << (channels.bit_length() - 1))
    few = window.columns.output.extent < _FEW_COLUMNS
    fitting = [n for n in _VECTORS if n * lanes <= channels]
    vectors = decisions.pick("vectors", fitting, 2 if few and 2 in fitting else 1)
    columns = _columns(window, vectors, machine, decisions)
    busy = worth_threads(machine, window.results() * window.taps, lanes)
    parts, threads = _parts(window, busy, machine, decisions)
    length = window.rows.length if window.rows is not None else 1
    read = length // parts * window.columns.length * channels * window.data_bytes
    row_by_row = read > machine.l2_bytes // 2
    if window.rows is not None and channels > vectors * lanes:
        row_by_row = bool(decisions.pick("row_by_row", (0, 1), int(row_by_row)))
    return ChannelsLastDecision(columns, lanes, vectors, parts, row_by_row, threads)


def _columns(
    window: DepthwiseWindow, vectors: int, machine: CpuDescription, decisions: Decisions
) -> int:
    row, taps = window.columns.output.extent, window.columns.position.extent
    registers = vector_registers(machine)
    free = max(registers - vectors * taps - _SPARE_REGISTERS, registers // 2)
    most = max(1, min(free // vectors, _MOST_MULTIPLY_ADDS // (vectors * taps)))

    def in_even_tiles(most: int) -> int:
        return -(-row // -(-row // most))

    options = {
        columns
        for columns in map(in_even_tiles, _COLUMNS)
        # One weight and one input need a register each, if nothing else stays there.
        if columns * vectors <= registers - 2
        and columns * vectors * taps <= 2 * _MOST_MULTIPLY_ADDS
        and multiply_adds_written_out(window, columns, vectors) <= MAX_MULTIPLY_ADDS
    }
    return decisions.pick("columns", options, in_even_tiles(most))


def _parts(
    window: DepthwiseWindow, busy: bool, machine: CpuDescription, decisions: Decisions
) -> tuple[int, bool]:
    """Into how many parts the rows are cut, and whether threads share these and the images."""
    images = math.prod(axis.extent for axis in window.outer)
    rows = window.rows.output.extent if window.rows is not None else 1
    parts = machine.cores if busy and rows >= 2 * machine.cores else 1
    worth = busy and images * parts > 1
    if not pick_threads(decisions, machine, lambda: images * rows, worth):
        return 1, False
    if not worth:
        parts = min(rows, machine.cores)
    counts = [n * machine.cores for n in (1, 2, 4)]
    fitting = [n for n in counts if n <= rows] + ([1] if images > 1 else [])
    options = distinct(fitting, parts, lambda n: -(-rows // n))
    return decisions.pick("parts", options, parts), True


def multiply_adds_written_out(window: DepthwiseWindow, columns: int, vectors: int) -> int:
    """Products of a row of the window in the code: each tile at an end of a row has its own."""
    ends, _ = row_tiles(window.columns, columns)
    return (len(ends) + 1) * columns * vectors * window.columns.position.extent


def row_tiles(columns: Slide, size: int) -> tuple[list[int], list[int]]:
    """First columns of tiles that are at an end of a row, or lap over; and of the others.

    The others have no padding under their windows, and follow each other.
    """
    total = columns.output.extent
    firsts = [min(k * size, total - size) for k in range(-(-total // size))]
    start, end = columns.covered()
    whole = [
        first
        for k, first in enumerate(firsts)
        if first == k * size and start <= first and first + size <= end
    ]
    return [first for first in firsts if first not in whole], whole


@dataclass
class ChannelsLast:
    """The loops, for flat views; ``store`` writes a result, for which ``result`` stands in it."""

    window: DepthwiseWindow
    channels: LoopAxis
    decision: ChannelsLastDecision
    store: tirx.BufferStore
    result: tirx.Var

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

    def _rows(self, first: tvm.ir.Expr, length: int, channel: Any | None) -> tirx.Stmt:
        row = new_axis("row", length, self.channels.var)
        return loop(row, self._row(first + row.var, channel))

    def _row(self, row: tvm.ir.Expr, channel: Any | None = None) -> tirx.Stmt:
        """A row of results: tiles at its ends with the taps that they have, others in a loop.

        For one block of channels, or tile by tile for all of them.
        """

        def tile(first: tirx.Expr | int, at_end: bool) -> tirx.Stmt:
            if channel is not None:
                return self.tile(row, first, channel, at_end)
            return self._channel_blocks(lambda block: self.tile(row, first, block, at_end))

        ends, whole = row_tiles(self.window.columns, self.decision.columns)
        parts = [tile(first, True) for first in ends]
        if whole:
            axis = new_axis("tile", len(whole), self.channels.var)
            first = axis.var * self.decision.columns + whole[0]
            parts.append(loop(axis, tile(first, False)))
        return sequence(parts)

    def tile(self, row: tvm.ir.Expr, first: Any, channel: tvm.ir.Expr, at_end: bool) -> tirx.Stmt:
        """Results of ``row`` from column ``first`` on: a number where the tile is at an end."""
        decision, dtype = self.decision, self.window.dtype
        size = decision.columns * decision.vectors * decision.lanes
        sums, declaration = stack_array(size, dtype, "sums")
        zero = tirx.Broadcast(tirx.const(0.0, dtype), decision.lanes)
        starts = self._unrolled(
            range(decision.columns * decision.vectors),
            lambda place: tirx.BufferStore(sums, zero, [self.vector(place * decision.lanes)]),
        )
        taps = tap_rows(
            self.window.rows,
            row,
            lambda tap: self._multiply(sums, (row, first, channel), tap, at_end),
        )
        return sequence([declaration, starts, taps, self.write(sums, row, first, channel)])

    def _multiply(
        self, sums: tirx.Buffer, at: tuple[Any, Any, Any], tap: tvm.ir.Expr, at_end: bool
    ) -> tirx.Stmt:
        """One row of the window for all results of a tile: each input serves while it is there."""
        row, first, channel = at
        rows, columns = self.window.rows, self.window.columns
        down = tap if rows is None else row * rows.step + tap * rows.spread
        moved = {self.channels.var: channel}
        data = self._name(
            "data", substitute(self.window.data_at(down, first * columns.step), moved)
        )
        weight = self._name("weight", substitute(self.window.weight_at(tap, 0), moved))
        addresses = (data.var, weight.var)

        def taps_of(column: int) -> tuple[int, ...]:
            start = first * columns.step + column * columns.step if at_end else 0
            return tuple(
                across
                for across in range(columns.position.extent)
                if not at_end or columns.first <= start + across * columns.spread < columns.last
            )

        alike = itertools.groupby(range(self.decision.columns), taps_of)
        found = [
            self._unrolled(list(group), partial(self._column, sums, addresses, taps=taps))
            for taps, group in alike
            if taps
        ]
        # A narrow tile may have nothing but padding under it.
        return sequence([data, weight, *found])

    def _column(
        self,
        sums: tirx.Buffer,
        addresses: tuple[tirx.Var, tirx.Var],
        column: Any,
        taps: tuple[int, ...],
    ) -> tirx.Stmt:
        """The products of one column of a tile with one row of the window."""
        lanes, columns = self.decision.lanes, self.window.columns
        data_step, weight_step = self.window.column_steps()
        found = []
        for vector in range(self.decision.vectors):
            where = self.vector((column * self.decision.vectors + vector) * lanes)
            for across in taps:
                ahead = column * columns.step + across * columns.spread
                product = self.product(
                    addresses[0] + (ahead * data_step + vector * lanes),
                    addresses[1] + (across * weight_step + vector * lanes),
                )
                total = tirx.BufferLoad(sums, [where]) + product
                found.append(tirx.BufferStore(sums, total, [where]))
        return sequence(found)

    def write(
        self, sums: tirx.Buffer, row: tvm.ir.Expr, first: Any, channel: tvm.ir.Expr
    ) -> tirx.Stmt:
        """What is computed from the sums of a tile, stored."""
        return self._unrolled(
            range(self.decision.columns),
            lambda column: sequence(self._stores(sums, row, (first, column), channel)),
        )

    def _stores(
        self, sums: tirx.Buffer, row: tvm.ir.Expr, at: tuple[Any, Any], channel: tvm.ir.Expr
    ) -> list[tirx.Stmt]:
        first, column = at
        decision, found = self.decision, []
        for vector in range(decision.vectors):
            lane = new_axis("lane", decision.lanes, self.channels.var)
            place = (column * decision.vectors + vector) * decision.lanes
            values = {
                self.result: tirx.BufferLoad(sums, [lane.var + place]),
                self.channels.var: channel + vector * decision.lanes + lane.var,
                self.window.columns.output.var: index_of(first + column, self.channels.var),
            }
            if self.window.rows is not None:
                values[self.window.rows.output.var] = row
            indices = [substitute(index, values) for index in self.store.indices]
            store = tirx.BufferStore(
                self.store.buffer, substitute(self.store.value, values), indices
            )
            found.append(loop(lane, store, tirx.ForKind.VECTORIZED))
        return found

    def _unrolled(self, numbers: Sequence[int], body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
        """``body`` for each of these consecutive numbers.

        TVM writes it out behind the passes that look at every statement, which takes a fraction of
        the time that they take for a tile that is written out here.
        """
        if len(numbers) == 1:
            return body(numbers[0])
        axis = new_axis("result", len(numbers), self.channels.var)
        return loop(axis, body(axis.var + numbers[0]), tirx.ForKind.UNROLLED)

    def _name(self, name: str, address: tvm.ir.Expr) -> tirx.Bind:
        """A variable for an address that many statements count from."""
        return tirx.Bind(
            tirx.Var(name, str(self.channels.var.ty)), index_of(address, self.channels.var)
        )

    def vector(self, first: tirx.Expr | int) -> tirx.Ramp:
        dtype = str(self.channels.var.ty)
        return tirx.Ramp(
            index_of(first, self.channels.var), tirx.const(1, dtype), self.decision.lanes
        )

    def product(self, data: tvm.ir.Expr, weight: tvm.ir.Expr) -> tvm.ir.Expr:
        """Of vectors of the input and of the weights, from these addresses on."""
        window, lanes = self.window, self.decision.lanes
        data, weight = (index_of(address, self.channels.var) for address in (data, weight))
        return window.data_factor(data, lanes) * window.weight_factor(weight, lanes)


def tap_rows(rows: Slide | None, row: tvm.ir.Expr, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    """``body`` for each row of the window at a row of results that is not padding."""
    if rows is None:
        return body(0)
    taps = rows.position.extent
    tap = new_axis("tap", taps, rows.position.var)
    if not rows.is_padded:
        return loop(tap, body(tap.var))
    above = row * rows.step
    rounding = rows.spread - 1
    first = tirx.max(tirx.floordiv(rows.first - above + rounding, rows.spread), 0)
    last = tirx.min(tirx.floordiv(rows.last - above + rounding, rows.spread), taps)
    count = tirx.max(last - first, 0)
    zero = tirx.const(0, str(tap.var.ty))
    return tirx.For(tap.var, zero, count, tirx.ForKind.SERIAL, body(first + tap.var))

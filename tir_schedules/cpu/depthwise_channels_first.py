"""Code of a depthwise convolution whose columns are next to each other."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.loop_nest import Nest, substitute
from tvm_ext.tir_schedules.analysis.sliding_window import Slide
from tvm_ext.tir_schedules.cpu.data_parallel import leaf_code
from tvm_ext.tir_schedules.cpu.depthwise_window import DepthwiseWindow
from tvm_ext.tir_schedules.cpu.nest_code import chunks, loop, loops_around, new_axis
from tvm_ext.tir_schedules.cpu.parallel_vectorize import pick_threads, worth_threads
from tvm_ext.tir_schedules.statements import sequence, stack_array
from tvm_ext.tir_schedules.template import Decisions

# Windows of so many taps are written out, so that LLVM loads a row that several rows of results
# read once; of larger ones, each row is.
_UNROLLED_TAPS = 49

# Rows of results in a tile: each row of the input that is read serves several.
_ROWS = 6

# Others that are worth trying, if no more products than these are written out.
_TILES = (1, 2, 3, 4, 6, 8)
_MOST_MULTIPLY_ADDS = 128

# Shorter vectors than the machine's may fit a row better, down to these.
_FEWEST_LANES = 4


@dataclass(frozen=True)
class ChannelsFirstDecision:
    """How results are kept in registers.

    Attributes
    ----------
    rows : int
        Rows of results in a tile.
    lanes : int
        Columns in a vector.
    staged_rows : int
        Rows of results for which the input is copied at once.
    threads : bool
        Whether stretches of rows, channels and images are handed to threads.
    """

    rows: int
    lanes: int
    staged_rows: int
    threads: bool


def decide_channels_first(
    window: DepthwiseWindow, machine: CpuDescription, decisions: Decisions
) -> ChannelsFirstDecision:
    """The default heuristic: as many rows at once as leave half of L1 free.

    Asks for ``lanes``, ``rows``, ``staged_rows`` and ``threads``.
    """
    width = window.columns.output.extent
    widest = min(machine.vector_lanes(window.dtype), 1 << (width.bit_length() - 1))
    # A row that is no multiple of the vectors is done in fewer of them when they are shorter.
    shorter = [n for n in (widest // 2, widest // 4) if n >= _FEWEST_LANES]
    lanes = decisions.pick("lanes", [widest, *shorter], widest)
    images = math.prod(axis.extent for axis in window.outer)
    worth = worth_threads(machine, window.results() * window.taps, lanes)
    if window.rows is None:
        threads = pick_threads(decisions, machine, lambda: images, worth)
        return ChannelsFirstDecision(1, lanes, 1, threads)
    extent = window.rows.output.extent
    most = _MOST_MULTIPLY_ADDS // window.columns.position.extent
    tiles = [n for n in _TILES if n <= min(extent, most)]
    rows = decisions.pick("rows", tiles, min(extent, _ROWS))
    staged_rows = _staged_rows(window, window.rows, rows, lanes, machine, decisions)
    stretches = -(-extent // staged_rows)
    threads = pick_threads(decisions, machine, lambda: images * stretches, worth)
    return ChannelsFirstDecision(rows, lanes, staged_rows, threads)


def _staged_rows(
    window: DepthwiseWindow,
    slide: Slide,
    tile: int,
    lanes: int,
    machine: CpuDescription,
    decisions: Decisions,
) -> int:
    row_bytes = 4 * (window.columns.length + window.columns.step * lanes)
    reach = slide.spread * (slide.position.extent - 1) + 1

    def held_by(cache_bytes: int) -> int:
        return (cache_bytes // 2 // row_bytes - reach) // slide.step + 1

    rows = slide.output.extent
    most = min(rows, held_by(machine.l2_bytes))
    options = [n for n in (tile, 2 * tile, 4 * tile, most) if tile <= n <= most]
    fitting = min(rows, max(held_by(machine.l1d_bytes), tile))
    # The last stretch begins earlier where it would be shorter, so they are of about one length.
    even = -(-rows // -(-rows // fitting))
    default = min(fitting, -(-even // tile) * tile)
    return decisions.pick("staged_rows", options, default)


class ChannelsFirst:
    """The loops, for flat views; ``store`` writes a result, for which ``result`` stands in it.

    The copy of the input has one row after the other, padding included. With a stride, a row of it
    has the columns 0, s, 2 s, ... first, then 1, s + 1, ...: a vector is always next to each other.
    """

    def __init__(
        self,
        window: DepthwiseWindow,
        decision: ChannelsFirstDecision,
        store: tirx.BufferStore,
        result: tirx.Var,
    ) -> None:
        self.window = window
        self.decision = decision
        self.store = store
        self.result = result
        columns = window.columns
        self.phase = -(-columns.length // columns.step)
        self.row_size = self.phase * columns.step
        self.copied_rows = 1
        if window.rows is not None:
            reach = window.rows.spread * (window.rows.position.extent - 1)
            self.copied_rows = (decision.staged_rows - 1) * window.rows.step + reach + 1
        size = self.copied_rows * self.row_size
        self.copy = tirx.decl_buffer((size,), window.dtype, "copied")

    def statement(self, machine: CpuDescription) -> tirx.Stmt:
        """All loops: over images, channels and stretches of rows, on threads."""
        window, decision = self.window, self.decision
        axes = list(window.outer)
        first: Any = 0
        if window.rows is not None:
            rows = window.rows.output
            stretch, first = chunks(rows.extent, decision.staged_rows, rows.var)
            axes.append(stretch)
        body = sequence([tirx.AllocBuffer(self.copy), self._fill(first), self._tiles(first)])
        return loops_around(axes, body, machine.cores if decision.threads else 1)

    def _fill(self, first: tirx.Expr) -> tirx.Stmt:
        """The rows that the windows of a stretch of results cover, with their borders."""
        like = self.window.columns.position.var
        row = new_axis("copied_row", self.copied_rows, like)
        inside = sequence(self._copied_row(first, row.var))
        slide = self.window.rows
        if slide is None or (slide.first, slide.last) == (0, slide.length):
            return loop(row, inside)
        position = first * slide.step + row.var
        condition = tirx.all(position >= slide.first, position < slide.last)
        place = row.var * self.row_size
        return loop(row, tirx.IfThenElse(condition, inside, self._zeros(place, self.row_size)))

    def _copied_row(self, first: Any, row: tvm.ir.Expr) -> list[tirx.Stmt]:
        columns = self.window.columns
        position = 0 if self.window.rows is None else first * self.window.rows.step + row
        found = []
        for phase in range(columns.step):
            place = row * self.row_size + phase * self.phase
            # The columns of this phase: ``phase + step * i`` for i from ``start`` to ``end``.
            start = max(0, -(-(columns.first - phase) // columns.step))
            end = min(self.phase, -(-(columns.last - phase) // columns.step))
            end = max(start, end)
            if start > 0:
                found.append(self._zeros(place, min(start, self.phase)))
            if end > start:
                axis = new_axis("column", end - start, columns.position.var)
                column = (axis.var + start) * columns.step + phase
                address = self.window.data_at(position, column)
                value = self.window.data_factor(address)
                found.append(self._leaf(Nest((axis,), self._put(place + start + axis.var, value))))
            if end < self.phase:
                found.append(self._zeros(place + end, self.phase - end))
        return found

    def _zeros(self, place: tvm.ir.Expr, count: int) -> tirx.Stmt:
        axis = new_axis("border", count, self.window.columns.position.var)
        zero = tirx.const(0.0, self.window.dtype)
        return self._leaf(Nest((axis,), self._put(place + axis.var, zero)))

    def _put(self, place: tvm.ir.Expr, value: tvm.ir.Expr) -> tirx.BufferStore:
        return tirx.BufferStore(self.copy, value, [place])

    def _leaf(self, nest: Nest) -> tirx.Stmt:
        return leaf_code(nest, None, self.decision.lanes, 1)

    def _tiles(self, first: tirx.Expr) -> tirx.Stmt:
        like = self.window.columns.position.var
        rows, row = chunks(self.decision.staged_rows, self.decision.rows, like)
        across, column = chunks(self.window.columns.output.extent, self.decision.lanes, like)
        return loop(rows, loop(across, self._tile(first, row, column)))

    def _tile(self, first: Any, row: tvm.ir.Expr, column: tvm.ir.Expr) -> tirx.Stmt:
        """Results from ``row`` of the stretch and from ``column`` on: sums in registers."""
        decision, window = self.decision, self.window
        sums, declaration = stack_array(decision.rows * decision.lanes, window.dtype, "sums")
        zero = tirx.Broadcast(tirx.const(0.0, window.dtype), decision.lanes)
        starts = [
            tirx.BufferStore(sums, zero, [self._vector(n * decision.lanes)])
            for n in range(decision.rows)
        ]
        down = window.rows.position.extent if window.rows is not None else 1
        if window.taps <= _UNROLLED_TAPS:
            taps = [self._multiply(sums, row, column, tap) for tap in range(down)]
        else:
            axis = new_axis("tap", down, window.columns.position.var)
            taps = [loop(axis, self._multiply(sums, row, column, axis.var))]
        return sequence([declaration, *starts, *taps, *self._write(sums, first + row, column)])

    def _multiply(
        self, sums: tirx.Buffer, row: tvm.ir.Expr, column: tvm.ir.Expr, tap: Any
    ) -> tirx.Stmt:
        columns, lanes = self.window.columns, self.decision.lanes
        rows = self.window.rows
        step, spread = (1, 1) if rows is None else (rows.step, rows.spread)
        found = []
        for across, result in itertools.product(
            range(columns.position.extent), range(self.decision.rows)
        ):
            line = (row + result) * step + tap * spread
            offset = across * columns.spread
            phase, ahead = offset % columns.step, offset // columns.step
            place = line * self.row_size + phase * self.phase + column + ahead
            weight = self.window.weight_factor(self.window.weight_at(tap, across))
            product = tirx.BufferLoad(self.copy, [self._vector(place)]) * tirx.Broadcast(
                weight, lanes
            )
            where = self._vector(result * lanes)
            total = tirx.BufferLoad(sums, [where]) + product
            found.append(tirx.BufferStore(sums, total, [where]))
        return sequence(found)

    def _write(self, sums: tirx.Buffer, row: tvm.ir.Expr, column: tvm.ir.Expr) -> list[tirx.Stmt]:
        found = []
        for result in range(self.decision.rows):
            lane = new_axis("lane", self.decision.lanes, self.window.columns.position.var)
            values = {
                self.result: tirx.BufferLoad(sums, [lane.var + result * self.decision.lanes]),
                self.window.columns.output.var: column + lane.var,
            }
            if self.window.rows is not None:
                values[self.window.rows.output.var] = row + result
            store = tirx.BufferStore(
                self.store.buffer,
                substitute(self.store.value, values),
                [substitute(index, values) for index in self.store.indices],
            )
            found.append(loop(lane, store, tirx.ForKind.VECTORIZED))
        return found

    def _vector(self, first: tirx.Expr | int) -> tirx.Ramp:
        dtype = str(self.window.columns.position.var.ty)
        base = tirx.const(first, dtype) if isinstance(first, int) else first
        return tirx.Ramp(base, tirx.const(1, dtype), self.decision.lanes)

"""Code of a window that slides over an input: each thread has a strip of results in registers.

A row of the input under the strip is loaded once and added to all the results of the strip that
it belongs to. Nothing is padded in memory: what lies outside of the input is not loaded.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis, element_bytes
from tvm_ext.tir_schedules.analysis.loop_nest import (
    Nest,
    in_order_of_writing,
    joined,
    substitute,
    with_own_variables,
)
from tvm_ext.tir_schedules.analysis.sliding_window import Slide
from tvm_ext.tir_schedules.cuda.elementwise import flat_code
from tvm_ext.tir_schedules.cuda.elementwise_decision import decide_flat
from tvm_ext.tir_schedules.cuda.launch import Arrays, bound, guarded, repeated
from tvm_ext.tir_schedules.cuda.strip_decision import (
    StripDecision,
    StripShape,
    columns_read,
    decide_strips,
    rows_read,
    strip_counts,
)
from tvm_ext.tir_schedules.cuda.strip_window import (
    StripLoads,
    StripWindow,
    VectorArray,
    plane_position,
    strip_loads,
)
from tvm_ext.tir_schedules.cuda.vector_group import Lanes
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.template import Decisions, NumberedDecisions

_COMBINED: dict[Any, Callable[[Any, Any], Any]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Max: tirx.max,
    tirx.Min: tirx.min,
}
_THREADS = ("threadIdx.x", "threadIdx.y", "threadIdx.z")


class StripCode:
    """The grid of a window, and what it allocates in ``arrays``."""

    def __init__(
        self, loads: StripLoads, shape: StripShape, decision: StripDecision, arrays: Arrays
    ) -> None:
        self.loads, self.shape, self.decision, self.arrays = loads, shape, decision, arrays
        self.window, self.dtype = loads.window, arrays.index_dtype
        self.combine = _COMBINED[self.window.kernel.window.combine]
        self.counts = strip_counts(shape, decision.columns, decision.rows)
        # The number of the thread's strip along each axis.
        names = [axis.var.name for axis in self.window.axes()]
        self.strips = [tirx.Var(f"strip_{name}", self.dtype) for name in names]
        self.columns = columns_read(shape, decision.columns)
        self.threads: list[tuple[Any, int]] = []

    def grid(self) -> tirx.Stmt:
        """A block of threads for each tile of strips."""
        blocks = [-(-n // t) for n, t in zip(self.counts, self.decision.tile, strict=True)]

        def block(index: tvm.ir.Expr) -> tirx.Stmt:
            places = []
            for count in blocks:
                places.append(index % count)
                index = index // count
            return self._threads(places, len(_THREADS))

        return bound("blockIdx.x", math.prod(blocks), self.dtype, block)

    def _threads(self, places: list[tvm.ir.Expr], left: int) -> tirx.Stmt:
        """Loops over threads, x innermost; ``places`` are of the block along each axis."""
        if left == 0:
            return self._placed(places)
        axis = left - 1
        if axis >= len(places):
            return self._threads(places, axis)
        size = self.decision.tile[axis]

        def thread(index: tvm.ir.Expr) -> tirx.Stmt:
            self.threads.append((index, size))
            moved = [*places]
            moved[axis] = places[axis] * size + index
            return self._threads(moved, axis)

        return bound(_THREADS[axis], size, self.dtype, thread)

    def _placed(self, places: Sequence[tvm.ir.Expr]) -> tirx.Stmt:
        """The thread's code at its place, where that is within the result."""
        code: tirx.Stmt = self._strip()
        for place, count, tile in zip(places, self.counts, self.decision.tile, strict=True):
            if count % tile:
                code = guarded(place < tirx.const(count, self.dtype), code)
        return substitute(code, dict(zip(self._variables(), places, strict=True)))

    def _variables(self) -> list[tvm.ir.Expr]:
        """What the code calls the number of the strip along each axis."""
        found = []
        for number, axis in enumerate(self.window.axes()):
            if axis is self.window.lanes:
                found.append(self.loads.step)
            elif number in (self.shape.column_axis, self.shape.row_axis):
                found.append(self.strips[number])
            else:
                found.append(axis.var)
        return found

    def _strip(self) -> tirx.Stmt:
        """All that one thread does."""
        decision, window = self.decision, self.window
        width = decision.width
        results = decision.rows * decision.columns
        self.sums = self._array("sums", results, "each", window.sum_dtype)
        plain = window.plain
        self.data = self._array(
            "inputs",
            len(self.columns),
            self.loads.data_kind,
            window.sum_dtype if plain is None else str(plain.ty),
        )
        self.weights = None
        if window.weight is not None:
            count = math.prod(self.shape.taps) if decision.kept else decision.taps
            dtype = str(self.loads.weight([0] * len(window.planes), 0, 0).ty)
            self.weights = self._array("weights", count, self.loads.weight_kind, dtype)
        start = window.kernel.window.start.astype(window.sum_dtype)
        begin = repeated(results * width, self.dtype, lambda i: self.sums.array.put(i, start))
        return sequence([begin, self._planes([]), self._results()])

    def _array(self, name: str, count: int, kind: str, dtype: str) -> VectorArray:
        return VectorArray(name, count, kind, dtype, self.loads, self.arrays, self.threads)

    def _planes(self, numbers: list[tvm.ir.Expr]) -> tirx.Stmt:
        """Loops over the axes of the window other than rows and columns."""
        if len(numbers) == len(self.window.planes):
            return self._window(numbers)
        slide = self.window.planes[len(numbers)]

        def iteration(number: tvm.ir.Expr) -> tirx.Stmt:
            position = plane_position(slide, number)
            reach = slide.spread * (slide.position.extent - 1)
            farthest = slide.step * (slide.output.extent - 1) + reach
            inside = _inside(slide, position, 0, farthest)
            return guarded(inside, self._planes([*numbers, number]))

        return repeated(slide.position.extent, self.dtype, iteration, tirx.ForKind.SERIAL)

    def _window(self, planes: list[tvm.ir.Expr]) -> tirx.Stmt:
        """The window's rows and columns."""
        statements = []
        if self.weights is not None and self.decision.kept:
            down, across = self.shape.taps
            for row in range(down):
                for column in range(across):
                    weight = self.loads.weight(planes, row, column)
                    statements.append(self.weights.load(row * across + column, weight))
        if self.decision.rows_written_out:
            for place, users in rows_read(self.shape, self.decision.rows).items():
                statements.append(self._row(planes, place, place, users))
            return sequence(statements)
        spread = self.shape.spreads[0]

        def iteration(tap: Any) -> tirx.Stmt:
            return self._row(planes, tap * spread, (self.shape.taps[0] - 1) * spread, [(0, tap)])

        loop = repeated(self.shape.taps[0], self.dtype, iteration, tirx.ForKind.SERIAL)
        return sequence([*statements, loop])

    def _row(
        self, planes: list[tvm.ir.Expr], place: Any, farthest: int, users: list[tuple[int, Any]]
    ) -> tirx.Stmt:
        """A row of the input under the strip, at most ``farthest`` rows below its first."""
        slide = self.window.rows
        if slide is None:
            return self._columns(planes, None, users)
        step = self.decision.rows * slide.step
        first = self.strips[self.shape.row_axis] * step
        last = (self.counts[self.shape.row_axis] - 1) * step + farthest
        inside = _inside(slide, first + place, place if isinstance(place, int) else 0, last)
        return guarded(inside, self._columns(planes, first + place, users))

    def _columns(
        self, planes: list[tvm.ir.Expr], row: Any, users: list[tuple[int, Any]]
    ) -> tirx.Stmt:
        """The columns of a row: all taps at once, or some of them at a time."""
        taps, across = self.decision.taps, self.shape.taps[1]
        if taps == across:
            return self._taps(planes, row, users, 0)
        pieces = -(-across // taps)
        return repeated(
            pieces,
            self.dtype,
            lambda piece: self._taps(planes, row, users, piece * taps),
            tirx.ForKind.SERIAL,
        )

    def _taps(
        self, planes: list[tvm.ir.Expr], row: Any, users: list[tuple[int, Any]], first: Any
    ) -> tirx.Stmt:
        """The taps from ``first`` on: loads the input under them, then adds it to the results."""
        slide, spread = self.window.columns, self.shape.spreads[1]
        step = self.decision.columns * slide.step
        base = self.strips[self.shape.column_axis] * step + first * spread
        widest = (self.counts[self.shape.column_axis] - 1) * step
        if not isinstance(first, int):
            widest += (
                (-(-self.shape.taps[1] // self.decision.taps) - 1) * self.decision.taps * spread
            )
        statements = []
        for number, place in enumerate(self.columns):
            load = self.data.load(number, self.loads.data(planes, row, base + place))
            inside = _inside(slide, base + place, place, widest + place)
            if inside is not None:
                fill = self.window.kernel.window.start.astype(self.data.dtype)
                load = tirx.IfThenElse(inside, load, self.data.fill(number, fill))
            statements.append(load)
        for result, down in users:
            for tap in range(self.decision.taps):
                added = self._tap(planes, result, down, first, tap)
                past = not isinstance(first, int) and self.shape.taps[1] % self.decision.taps
                inside = first + tap < tirx.const(self.shape.taps[1], self.dtype) if past else None
                statements.append(guarded(inside, added))
        return sequence(statements)

    def _tap(
        self, planes: list[tvm.ir.Expr], result: int, down: Any, first: Any, tap: int
    ) -> tirx.Stmt:
        """Adds what is under one tap to the results of a row of the strip."""
        statements = []
        slot: Any = tap
        if self.weights is not None:
            if self.decision.kept:
                slot = down * self.shape.taps[1] + tap
            else:
                weight = self.loads.weight(planes, down, first + tap)
                statements.append(self.weights.load(slot, weight))
        places = [
            self.columns.index(column * self.shape.steps[1] + tap * self.shape.spreads[1])
            for column in range(self.decision.columns)
        ]

        def lane(i: tvm.ir.Expr) -> tirx.Stmt:
            return sequence(
                [
                    self._added(result * self.decision.columns + column, place, slot, i)
                    for column, place in enumerate(places)
                ]
            )

        statements.append(repeated(self.decision.width, self.dtype, lane))
        return sequence(statements)

    def _added(self, number: int, place: int, slot: Any, lane: tvm.ir.Expr) -> tirx.Stmt:
        dtype = self.window.sum_dtype
        value = self.data.at(place, lane).astype(dtype)
        if self.weights is not None:
            value = value * self.weights.at(slot, lane).astype(dtype)
        index = number * self.decision.width + lane
        return self.sums.array.put(index, self.combine(self.sums.array.at(index), value))

    def _results(self) -> tirx.Stmt:
        """Writes the results of the strip, with what follows the window applied to them."""
        decision = self.decision

        def iteration(row: tvm.ir.Expr, column: tvm.ir.Expr) -> tirx.Stmt:
            number = (row * decision.columns + column) * decision.width
            store = self.loads.result_store(self.sums.array.at(number + self.loads.lane))
            ranges = [*self.loads.ranges]
            ranges += [
                (v, n) for v, n in ((row, decision.rows), (column, decision.columns)) if n > 1
            ]
            code = Lanes(store, self.loads.lane, decision.width, ranges).code(
                self.arrays, self.threads
            )
            return self._at_result(code, row, column)

        def line(row: tvm.ir.Expr) -> tirx.Stmt:
            return repeated(decision.columns, self.dtype, lambda column: iteration(row, column))

        return repeated(decision.rows, self.dtype, line)

    def _at_result(self, code: tirx.Stmt, row: tvm.ir.Expr, column: tvm.ir.Expr) -> tirx.Stmt:
        """The code of one result of the strip, where there is one."""
        values = {}
        for axis, number, size in (
            (self.shape.row_axis, row, self.decision.rows),
            (self.shape.column_axis, column, self.decision.columns),
        ):
            if axis < 0:
                continue
            loop = self.window.axes()[axis]
            values[loop.var] = self.strips[axis] * size + number
            if loop.extent % size:
                code = guarded(values[loop.var] < tirx.const(loop.extent, self.dtype), code)
        return substitute(code, values)


def _inside(slide: Slide, position: tvm.ir.Expr, least: int, most: int) -> Any | None:
    """Whether a position between ``least`` and ``most`` is not padding; None where none is."""
    found = None
    if least < slide.first:
        found = position >= slide.first
    if most >= slide.last:
        below = position < slide.last
        found = below if found is None else tirx.And(found, below)
    return found


# The schedule of a kernel whose threads slide a window along strips of results.


_REGISTER_BITS = 32


def schedule_strips(
    window: StripWindow, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
) -> s_tir.Schedule:
    """``func`` with threads for the window, and for the blocks after it grids of their own.

    Decisions: ``vector``, those of ``decide_strips``, and numbered those of the later blocks.
    """
    kernel = window.kernel
    later = kernel.later_nests()
    dtype = str(window.columns.output.var.ty)
    possible = {loads.width: loads for loads in strip_loads(window, machine, dtype)}
    width = decisions.pick("vector", possible, max(possible))
    loads = possible[width]
    shape = strip_shape(loads)
    arrays = Arrays(dtype)
    code = [StripCode(loads, shape, decide_strips(shape, machine, decisions), arrays).grid()]
    nests: list[Nest] = [with_own_variables(joined(in_order_of_writing(n))) for n in later]
    for number, nest in enumerate(nests):
        asked = NumberedDecisions(decisions, number + 1)
        code.append(flat_code(decide_flat(nest, machine, asked), arrays))
    return s_tir.Schedule(kernel.views.kernel(func, code, arrays.buffers))


def strip_shape(loads: StripLoads) -> StripShape:
    """The numbers of a window for vectors as wide as those of ``loads``."""
    window, width = loads.window, loads.width
    axes = window.axes()
    rows, columns = window.rows, window.columns
    store = window.kernel.store.buffer
    return StripShape(
        extents=tuple(axis.extent for axis in axes),
        column_axis=_position(axes, columns.output),
        row_axis=-1 if rows is None else _position(axes, rows.output),
        lane_axis=window.lanes is not None,
        width=width,
        steps=(1 if rows is None else rows.step, columns.step),
        spreads=(1 if rows is None else rows.spread, columns.spread),
        taps=(1 if rows is None else rows.position.extent, columns.position.extent),
        data_words=_words(loads.data_kind, _converted_dtype(window), width),
        weight_words=0
        if window.weight is None
        else _words(loads.weight_kind, str(window.weight_load.ty), width),
        sum_words=_words("each", window.sum_dtype, width),
        element_bytes=element_bytes(store),
    )


def _converted_dtype(window: StripWindow) -> str:
    """What a loaded element becomes before it is added: nvcc does that for whole rows at once."""
    if window.plain is None or window.weight is not None:
        return window.sum_dtype
    return str(window.plain.ty)


def _position(axes: list[LoopAxis], axis: LoopAxis) -> int:
    return next(number for number, other in enumerate(axes) if other is axis)


def _words(kind: str, dtype: str, width: int) -> int:
    """Registers of a vector."""
    bits = tvm.DataType(dtype).bits * (1 if kind == "same" else width)
    return -(-bits // _REGISTER_BITS)

"""CumSum and CumProd on a GPU: blocks of threads along each scan, or threads across many.

Two launches where a few long scans are cut into chunks, else one. The floor is memory: two
bytes moved for each byte of the input, three where it is read for the totals of chunks first.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis, is_compact, nodes
from tvm_ext.tir_schedules.analysis.row_kernel import (
    RowBlock,
    RowKernel,
    Store,
    buffer_key,
    substituted,
    unfused,
)
from tvm_ext.tir_schedules.cuda.device_code import (
    as_loops,
    host_call,
    in_few_launches,
    without_offsets,
)
from tvm_ext.tir_schedules.cuda.launch import ThreadArray, ThreadPlane, bound, guarded, repeated
from tvm_ext.tir_schedules.cuda.row_decision import RowLaunch, decide_launch
from tvm_ext.tir_schedules.cuda.row_threads import ThreadRows
from tvm_ext.tir_schedules.cuda.scan_decision import ScanKernel, ScanLaunch, decide_scan, scan_of
from tvm_ext.tir_schedules.cuda.vector_group import Lanes, powers_down, vector_widths
from tvm_ext.tir_schedules.cuda.warp_instructions import (
    ALL_LANES,
    block_barrier,
    without_added_barriers,
)
from tvm_ext.tir_schedules.statements import FlatViews, sequence, with_flat_memory
from tvm_ext.tir_schedules.template import Decisions, NumberedDecisions

# Where the threads of a scan stand, and its expressions at their places.


# An assignment at a position, of which the lane is one of the neighbours.
AtPosition = Callable[[Any, Any], tirx.BufferStore]


class ScanPlaces(ThreadPlane):
    """The threads of a scan under a launch, what they keep, and what they load and store."""

    def __init__(self, kernel: ScanKernel, launch: ScanLaunch, views: FlatViews) -> None:
        across = launch.across
        extents = (launch.parts, launch.rows) if across else (launch.rows, launch.parts)
        super().__init__(extents, kernel.index_dtype)
        self.kernel, self.launch, self.views = kernel, launch, views
        self.group = self.chunk = self.number(0)
        # What is carried where a result sees it, for each of the thread's neighbours.
        self.values: Any = None

    def registers(self, name: str, size: int = 1) -> tirx.Buffer:
        """An array of the carried type in each thread, for ``held``."""
        shape = [*self.extents, size]
        return self.arrays.allocated(name, shape, self.kernel.dtype, "local")

    def held(self, array: tirx.Buffer) -> ThreadArray:
        """The own part of an array in registers of the thread that is written just now."""
        return ThreadArray(array, (self.y, self.x))

    def row(self) -> tuple[Any, Any]:
        """The thread's scan, behind the end the last one, and whether it is inside."""
        rows, count = self.launch.rows, self.kernel.count
        row = self.group * self.number(rows) + (self.x if self.launch.across else self.y)
        if count % rows == 0:
            return row, None
        return tirx.Min(row, self.number(count - 1)), row < self.number(count)

    def neighbours(self, make: AtPosition, row: tvm.ir.Expr, vector: tvm.ir.Expr) -> tirx.Stmt:
        """What ``make`` assigns at the elements of a vector, number ``vector`` of the row."""
        lanes, row_var, vector_var = self._lanes(make)
        code = lanes.code(self.arrays, self.mine())
        return substituted(code, {buffer_key(row_var): row, buffer_key(vector_var): vector})

    def fits(self, make: AtPosition) -> bool:
        """Whether the assignment moves whole vectors at all of its elements."""
        return self.kernel.length % self.launch.width == 0 and self._lanes(make)[0].fits()

    def _lanes(self, make: AtPosition) -> tuple[Lanes, tirx.Var, tirx.Var]:
        width, kernel = self.launch.width, self.kernel
        lane, row, vector = (tirx.Var(name, self.dtype) for name in ("lane", "row", "vector"))
        position = vector * self.number(width) + lane
        values = {
            **unfused(row, kernel.rows, self.dtype),
            buffer_key(kernel.position.var): position,
        }
        flat = with_flat_memory(make(position, lane), self.views)
        ranges = [(row, kernel.count), (vector, -(-kernel.length // width))]
        return Lanes(substituted(flat, values), lane, width, ranges), row, vector

    def combined(self, left: tvm.ir.Expr, right: tvm.ir.Expr) -> tvm.ir.Expr:
        """The operation on the value in front and the one behind it."""
        return self.kernel.operation(left, right)

    def result(self, store: tirx.BufferStore, value: tvm.ir.Expr) -> tirx.BufferStore:
        """A result of the scan, with ``value`` for what is carried."""

        def load(node: tvm.ir.TensorLoad) -> tvm.ir.Expr:
            return value if node.source.same_as(self.kernel.carried) else node

        return tirx.BufferStore(
            store.buffer, substituted(store.value, {}, load), list(store.indices)
        )

    def results(
        self, stores: Sequence[tirx.BufferStore], row: tvm.ir.Expr, vector: tvm.ir.Expr
    ) -> list[tirx.BufferStore]:
        """All of ``stores`` at a vector, from the array ``values``."""
        values = self.held(self.values)

        def assigned(store: tirx.BufferStore) -> AtPosition:
            return lambda _, lane: self.result(store, values.at(lane))

        return [self.neighbours(assigned(store), row, vector) for store in stores]


# Scans along neighbouring threads: a block goes over its part of a row in tiles.
#
# In a tile every thread combines its own neighbours, a warp the results of its threads by
# shuffles (W. D. Hillis, G. L. Steele, "Data Parallel Algorithms", CACM 29(12), 1986), and the
# totals of the warps go through shared memory.


_WARP = 32
_EVERYONE = tirx.const(ALL_LANES, "uint32")
_SERIAL = tirx.ForKind.SERIAL


class ScanAlong(ScanPlaces):
    """The statements of scans of which every thread has some neighbouring elements."""

    def along(self, totals: tirx.Buffer) -> list[tirx.Stmt]:
        """Scans whose neighbouring elements belong to neighbouring threads."""
        launch = self.launch
        self.carry, self.base = self.registers("carry"), self.registers("base")
        self.sums, self.other = self.registers("sum"), self.registers("other")
        self.terms = self.registers("terms", launch.width)
        self.values = self.registers("values", launch.width)
        self.warps = launch.parts // _WARP
        if self.warps > 1:
            shape = [launch.rows * self.warps]
            self.shared = self.arrays.allocated("warp_totals", shape, self.kernel.dtype, "shared")
        steps = -(-min(launch.chunk, self.kernel.length) // (launch.parts * launch.width))
        tiles = repeated(steps, self.dtype, lambda i: sequence(self._tile(i)), _SERIAL)
        return [*self._first_carry(totals), tiles]

    def _first_carry(self, totals: tirx.Buffer) -> list[tirx.Stmt]:
        """What is in front of the chunk: in every thread of the scan the totals of all before."""
        zero, carry, other = self.number(0), self.carry, self.other
        start, identity = self.kernel.start, self.kernel.identity
        if self.launch.chunks == 1:
            return [self.threads(lambda: self.held(carry).put(zero, start))]
        count = self.launch.chunks - 1

        def own() -> tirx.Stmt:
            row, _ = self.row()
            mine = self.held(carry)

            def iteration(i: Any) -> tirx.Stmt:
                place = i * self.number(_WARP) + self._lane()
                before = tirx.BufferLoad(totals, [place * self.number(self.kernel.count) + row])
                return guarded(
                    place < self.chunk, mine.put(zero, self.combined(mine.at(zero), before))
                )

            rounds = repeated(-(-count // _WARP), self.dtype, iteration, _SERIAL)
            return sequence([mine.put(zero, identity), rounds])

        statements = [self.threads(own)]
        for step in (16, 8, 4, 2, 1):

            def exchange(step: int = step) -> tirx.Stmt:
                value = self.held(carry).at(zero)
                moved = tirx.op.tvm_warp_shuffle_xor(_EVERYONE, value, step, _WARP, _WARP)
                return self.held(other).put(zero, moved)

            def fold() -> tirx.Stmt:
                mine = self.held(carry)
                return mine.put(zero, self.combined(mine.at(zero), self.held(other).at(zero)))

            statements += [self.threads(exchange), self.threads(fold)]

        def begin() -> tirx.Stmt:
            mine = self.held(carry)
            return mine.put(zero, self.combined(start, mine.at(zero)))

        return [*statements, self.threads(begin)]

    def _lane(self) -> tvm.ir.Expr:
        return tirx.floormod(self.x, self.number(_WARP))

    def _tile(self, step: tvm.ir.Expr) -> list[tirx.Stmt]:
        """``parts * width`` elements of every scan of the block."""
        statements = [self.threads(lambda: self._load(step)), *self._scan_of_warp()]
        if self.warps == 1:
            statements += self._through_last_lane()
        else:
            statements += self._through_shared_memory()
        return [*statements, self.threads(lambda: self._store(step))]

    def _vector(self, step: tvm.ir.Expr) -> tvm.ir.Expr:
        """The number of the thread's vector in the row."""
        launch = self.launch
        first = self.chunk * self.number(launch.chunk // launch.width)
        return first + step * self.number(launch.parts) + self.x

    def _inside(self, step: tvm.ir.Expr, row_inside: Any) -> tvm.ir.Expr:
        """Whether the thread's vector exists."""
        launch = self.launch
        vectors = -(-self.kernel.length // launch.width)
        inside = self._vector(step) < self.number(vectors)
        whole = self.kernel.length % (launch.chunk * launch.chunks) == 0
        if whole and launch.chunk % (launch.parts * launch.width) == 0:
            return row_inside
        return inside if row_inside is None else tirx.And(inside, row_inside)

    def _load(self, step: tvm.ir.Expr) -> tirx.Stmt:
        """The terms of the thread's neighbours, each combined with those in front of it."""
        width, zero = self.launch.width, self.number(0)
        terms, sums = self.held(self.terms), self.held(self.sums)
        row, _ = self.row()

        def term(_: tvm.ir.Expr, lane: tvm.ir.Expr) -> tirx.BufferStore:
            return tirx.BufferStore(terms.buffer, self.kernel.term, [*terms.thread, lane])

        nothing = repeated(width, self.dtype, lambda i: terms.put(i, self.kernel.identity))
        loads = self.neighbours(term, row, self._vector(step))
        chain = [
            terms.put(
                self.number(i),
                self.combined(terms.at(self.number(i - 1)), terms.at(self.number(i))),
            )
            for i in range(1, width)
        ]
        condition = self._inside(step, None)
        first = loads if condition is None else sequence([nothing, guarded(condition, loads)])
        return sequence([first, *chain, sums.put(zero, terms.at(self.number(width - 1)))])

    def _scan_of_warp(self) -> list[tirx.Stmt]:
        """``sums`` of all threads of the warp up to the own one, and in ``other`` without it."""
        zero, statements = self.number(0), []

        def moved(step: int) -> tirx.Stmt:
            value = self.held(self.sums).at(zero)
            shuffle = tirx.op.tvm_warp_shuffle_up(_EVERYONE, value, step, _WARP, _WARP)
            return self.held(self.other).put(zero, shuffle)

        for step in (1, 2, 4, 8, 16):

            def fold(step: int = step) -> tirx.Stmt:
                sums = self.held(self.sums)
                total = self.combined(self.held(self.other).at(zero), sums.at(zero))
                return guarded(self._lane() >= self.number(step), sums.put(zero, total))

            def exchange(step: int = step) -> tirx.Stmt:
                return moved(step)

            statements += [self.threads(exchange), self.threads(fold)]
        return [*statements, self.threads(lambda: moved(1))]

    def _behind(self, base: tvm.ir.Expr) -> tirx.Stmt:
        """In ``base``, what is in front of the thread, from what is in front of its warp."""
        zero, mine = self.number(0), self.held(self.base)
        more = self.combined(base, self.held(self.other).at(zero))
        return mine.put(zero, tirx.Select(self._lane() > zero, more, base))

    def _through_last_lane(self) -> list[tirx.Stmt]:
        """A scan of one warp: the last lane has the total of the tile."""
        zero = self.number(0)

        def share() -> tirx.Stmt:
            total = tirx.op.tvm_warp_shuffle(
                _EVERYONE, self.held(self.sums).at(zero), _WARP - 1, _WARP, _WARP
            )
            return self.held(self.other).put(zero, total)

        def advance() -> tirx.Stmt:
            carry = self.held(self.carry)
            return carry.put(zero, self.combined(carry.at(zero), self.held(self.other).at(zero)))

        return [
            self.threads(lambda: self._behind(self.held(self.carry).at(zero))),
            self.threads(share),
            self.threads(advance),
        ]

    def _through_shared_memory(self) -> list[tirx.Stmt]:
        """Every thread adds up the totals of all warps, those in front of its own by the way."""
        zero, warps = self.number(0), self.number(self.warps)

        def place(warp: Any) -> list[Any]:
            return [self.y * warps + warp]

        def publish() -> tirx.Stmt:
            at = place(tirx.floordiv(self.x, self.number(_WARP)))
            store = tirx.BufferStore(self.shared, self.held(self.sums).at(zero), at)
            return guarded(self._lane().equal(self.number(_WARP - 1)), store)

        def fold() -> tirx.Stmt:
            carry, base = self.held(self.carry), self.held(self.base)
            own = tirx.floordiv(self.x, self.number(_WARP))

            def iteration(warp: Any) -> tirx.Stmt:
                total = tirx.BufferLoad(self.shared, place(warp))
                return sequence(
                    [
                        guarded(own.equal(warp), base.put(zero, carry.at(zero))),
                        carry.put(zero, self.combined(carry.at(zero), total)),
                    ]
                )

            return sequence(
                [repeated(self.warps, self.dtype, iteration), self._behind(base.at(zero))]
            )

        # The first barrier keeps totals of the tile before until all have read them.
        wait = block_barrier("shared")
        return [wait, self.threads(publish), wait, self.threads(fold)]

    def _store(self, step: tvm.ir.Expr) -> tirx.Stmt:
        width, zero = self.launch.width, self.number(0)
        row, row_inside = self.row()
        base, terms, values = (self.held(a) for a in (self.base, self.terms, self.values))
        statements: list[tirx.Stmt] = []
        for stores, shifted in ((self.kernel.before, True), (self.kernel.after, False)):
            for i in range(width if stores else 0):
                own = i - 1 if shifted else i
                value = base.at(zero)
                if own >= 0:
                    value = self.combined(value, terms.at(self.number(own)))
                statements.append(values.put(self.number(i), value))
            statements += self.results(stores, row, self._vector(step))
        return guarded(self._inside(step, row_inside), sequence(statements))


# Scans that are neighbours in memory: every thread does a part of one in series.


_SERIAL_ACROSS = tirx.ForKind.SERIAL


class ScanAcross(ScanPlaces):
    """The statements of scans of which neighbouring threads have neighbouring ones."""

    def across(self, totals: tirx.Buffer) -> list[tirx.Stmt]:
        """Totals of the parts of a block's chunk first, where there are several; then the scans."""
        self.carry, self.values = self.registers("carry"), self.registers("values")
        self.segment = -(-self.launch.chunk // self.launch.parts)
        if self.launch.parts == 1:
            return [self.threads(lambda: self._scan(totals, None))]
        self.sums = self.registers("sum")
        shape = [self.launch.parts * self.launch.rows]
        shared = self.arrays.allocated("part_totals", shape, self.kernel.dtype, "shared")
        return [
            self.threads(lambda: self._total(shared)),
            block_barrier("shared"),
            self.threads(lambda: self._scan(totals, shared)),
        ]

    def _total(self, shared: Any) -> tirx.Stmt:
        """The terms of the thread's part, combined, for the threads behind it."""
        sums, (row, _), zero = self.held(self.sums), self.row(), self.number(0)

        def add(_: Any, __: Any) -> tirx.BufferStore:
            total = self.combined(sums.at(zero), self.kernel.term)
            return tirx.BufferStore(sums.buffer, total, [*sums.thread, zero])

        def iteration(i: Any) -> tirx.Stmt:
            position, inside = self._position(i)
            return guarded(inside, self.neighbours(add, row, position))

        walk = repeated(self.segment, self.dtype, iteration, _SERIAL_ACROSS)
        place = self.y * self.number(self.launch.rows) + self.x
        publish = tirx.BufferStore(shared, sums.at(zero), [place])
        return sequence([sums.put(zero, self.kernel.identity), walk, publish])

    def _scan(self, totals: tirx.Buffer, shared: Any) -> tirx.Stmt:
        """The thread's part, from what all in front of it come to."""
        carry, (row, row_inside), zero = self.held(self.carry), self.row(), self.number(0)
        begin = [carry.put(zero, self.kernel.start)]
        if self.launch.chunks > 1:
            begin.append(self._chunks_in_front(totals, row))
        if shared is not None:
            begin.append(self._parts_in_front(shared))
        walk = repeated(
            self.segment, self.dtype, lambda i: self._step(i, row, row_inside), _SERIAL_ACROSS
        )
        return sequence([*begin, walk])

    def _parts_in_front(self, shared: Any) -> tirx.Stmt:
        carry, zero, rows = self.held(self.carry), self.number(0), self.number(self.launch.rows)

        def iteration(part: Any) -> tirx.Stmt:
            total = tirx.BufferLoad(shared, [part * rows + self.x])
            add = carry.put(zero, self.combined(carry.at(zero), total))
            return guarded(part < self.y, add)

        return repeated(self.launch.parts - 1, self.dtype, iteration, _SERIAL_ACROSS)

    def _position(self, i: tvm.ir.Expr) -> tuple[Any, Any]:
        """Step ``i`` of a thread across the scans, and whether it is one of its chunk."""
        launch, length = self.launch, self.kernel.length
        within = self.y * self.number(self.segment) + i
        position = self.chunk * self.number(launch.chunk) + within
        conditions = []
        if launch.chunk % launch.parts:
            conditions.append(within < self.number(launch.chunk))
        if length % launch.chunk:
            conditions.append(position < self.number(length))
        if not conditions:
            return position, None
        return position, conditions[0] if len(conditions) == 1 else tirx.And(*conditions)

    def _chunks_in_front(self, totals: Any, row: Any) -> tirx.Stmt:
        carry, zero = self.held(self.carry), self.number(0)

        def iteration(i: Any) -> tirx.Stmt:
            total = tirx.BufferLoad(totals, [i * self.number(self.kernel.count) + row])
            return guarded(i < self.chunk, carry.put(zero, self.combined(carry.at(zero), total)))

        return repeated(self.launch.chunks - 1, self.dtype, iteration, _SERIAL_ACROSS)

    def _step(self, i: tvm.ir.Expr, row: tvm.ir.Expr, row_inside: Any) -> tirx.Stmt:
        """One element of a scan by one thread."""
        carry, values, zero = self.held(self.carry), self.held(self.values), self.number(0)
        position, inside = self._position(i)

        def update(_: tvm.ir.Expr, __: tvm.ir.Expr) -> tirx.BufferStore:
            value = self.combined(carry.at(zero), self.kernel.term)
            return tirx.BufferStore(carry.buffer, value, [*carry.thread, zero])

        def results(stores: Sequence[tirx.BufferStore]) -> list[tirx.Stmt]:
            if not stores:
                return []
            found = [values.put(zero, carry.at(zero)), *self.results(stores, row, position)]
            return [guarded(row_inside, sequence(found))]

        statements = [
            *results(self.kernel.before),
            self.neighbours(update, row, position),
            *results(self.kernel.after),
        ]
        return guarded(inside, sequence(statements))


# Writes a scan for threads: totals of the chunks first, then every chunk from its prefix on.
#
# Reading twice and writing once (D. Merrill, M. Garland, "Single-pass Parallel Prefix Scan with
# Decoupled Look-back", 2016, on reduce-then-scan) needs no order of the blocks, and gives the
# same rounding in every run.


class ScanCode(ScanAlong, ScanAcross):
    """The statements of a scan under a launch."""

    def write(self, totals: tirx.Buffer) -> tirx.Stmt:
        """The grid; ``totals`` holds one value for every chunk but the last of every scan."""
        groups = -(-self.kernel.count // self.launch.rows)
        chunks = self.launch.chunks

        def block(index: tvm.ir.Expr) -> tirx.Stmt:
            self.group = tirx.floordiv(index, self.number(chunks)) if chunks > 1 else index
            self.chunk = tirx.floormod(index, self.number(chunks)) if chunks > 1 else self.number(0)
            statements = self.across(totals) if self.launch.across else self.along(totals)
            return without_added_barriers(sequence(statements))

        return bound("blockIdx.x", groups * chunks, self.dtype, block)


class CudaScan:
    """Running sums, products and extrema along one axis."""

    name = "scan"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        if host_call(func.body) is not None:
            raise NotApplicable("the kernel is no scan: it calls a function of the host")
        func = without_offsets(func)
        kernel = scan_of(as_loops(in_few_launches(func)).body)
        if any(not is_compact(p) for p in func.params if isinstance(p.ty, tirx.BufferType)):
            raise NotApplicable("a tensor of the scan is not laid out row by row")
        launch = decide_scan(kernel, _widest(kernel, machine), machine, decisions)
        return s_tir.Schedule(_written(func, kernel, launch, machine, decisions))


def _widest(kernel: ScanKernel, machine: CudaDescription) -> int:
    """The widest vectors that all loads and stores of the scan can be."""
    if kernel.runs_across:
        return 1
    stores = [*kernel.before, *kernel.after]
    dtypes = {str(load.source.dtype) for load in nodes(kernel.term, tvm.ir.TensorLoad)}
    widths = [vector_widths(store, machine)[0] for store in stores]
    widths += [machine.vector_lanes(dtype) for dtype in dtypes - {"bool"}]
    return next(width for width in powers_down(min(widths)) if _fits(kernel, width))


def _fits(kernel: ScanKernel, width: int) -> bool:
    """Whether all loads and stores move vectors of ``width`` elements."""
    if width == 1:
        return True
    probe = ScanCode(kernel, ScanLaunch(False, 32, 1, width, width, 1), FlatViews())
    held = probe.held(probe.registers("held", width))

    def term(_: Any, lane: Any) -> tirx.BufferStore:
        return tirx.BufferStore(held.buffer, kernel.term, [*held.thread, lane])

    def result(store: tirx.BufferStore) -> bool:
        return probe.fits(lambda _, lane: probe.result(store, held.at(lane)))

    return probe.fits(term) and all(result(store) for store in (*kernel.before, *kernel.after))


def _written(
    func: tirx.PrimFunc,
    kernel: ScanKernel,
    launch: ScanLaunch,
    machine: CudaDescription,
    decisions: Decisions,
) -> tirx.PrimFunc:
    """The kernel, with one that sums up the chunks in front where there are several."""
    views = FlatViews()
    code = ScanCode(kernel, launch, views)
    size = tirx.const(max(1, launch.chunks - 1) * kernel.count, kernel.index_dtype)
    totals = tirx.decl_buffer([size], kernel.dtype, "chunk_totals")
    statements = []
    if launch.chunks > 1:
        sums = _sums_of_chunks(kernel, launch, totals)
        probe = ThreadRows(sums, RowLaunch(False, machine.warp_size, 1, 1), FlatViews())
        found = decide_launch(sums, probe.fits, machine, NumberedDecisions(decisions, 1))
        rows = ThreadRows(sums, found, views)
        statements.append(rows.write())
        code.arrays.buffers += rows.arrays.buffers
    statements.append(code.write(views.of(totals)))
    return views.kernel(func, statements, code.arrays.buffers)


def _sums_of_chunks(kernel: ScanKernel, launch: ScanLaunch, totals: Any) -> RowKernel:
    """The totals of all chunks but the last, as a reduction of rows."""
    dtype = kernel.index_dtype
    chunk = LoopAxis(tirx.Var("chunk", dtype), launch.chunks - 1)
    step = LoopAxis(tirx.Var("step", dtype), launch.chunk)
    place: Any = chunk.var
    for axis in kernel.rows:
        place = place * tirx.const(axis.extent, dtype) + axis.var
    position = chunk.var * tirx.const(launch.chunk, dtype) + step.var
    term = substituted(kernel.term, {buffer_key(kernel.position.var): position})
    total = kernel.operation(tirx.BufferLoad(totals, [place]), term)
    block = RowBlock((step,), (Store(totals, (place,), total),), (kernel.identity,))
    return RowKernel((chunk, *kernel.rows), (block,), {}, dtype)

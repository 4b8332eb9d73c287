"""Writes a row kernel for threads: each block of threads takes some rows through all passes.

What waits between two passes stays in registers: of a row, a thread keeps the elements that it has
computed, and every thread of a row has its own copy of a value of the whole row.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import s_tir, sym, tirx

from tvm_ext.tir_schedules.cuda.launch import Arrays, bound, guarded, repeated, warp_barrier
from tvm_ext.tir_schedules.cuda.row_decision import RowLaunch, inner_buffers, step_axis
from tvm_ext.tir_schedules.cuda.vector_group import Lanes
from tvm_ext.tir_schedules.llvm.flat_views import FlatViews, flattened
from tvm_ext.tir_schedules.llvm.row_code import sequence
from tvm_ext.tir_schedules.llvm.row_combine import Combine, accumulated, combine_of
from tvm_ext.tir_schedules.llvm.row_kernel import (
    RowBlock,
    RowKernel,
    Store,
    accesses,
    buffer_key,

    substituted,
)
from tvm_ext.tir_schedules.llvm.row_strides import index_in_row, unfused

# Steps of a thread along a row that are written out; more are a loop.
_MOST_UNROLLED = 16


class ThreadRows:
    """The statements of a row kernel under a launch."""

    def __init__(self, kernel: RowKernel, launch: RowLaunch, views: FlatViews) -> None:
        self.kernel, self.launch, self.views = kernel, launch, views
        self.dtype = kernel.index_dtype
        self.arrays = Arrays(self.dtype)
        self.y = self.x = self.block = self.number(0)
        across = launch.across
        self.extents = (launch.parts, launch.rows) if across else (launch.rows, launch.parts)
        self.held: dict[int, tvm.ir.Var] = {}
        self.sizes = {buffer_key(buffer): size for buffer, size in inner_buffers(kernel)}

    def number(self, value: int) -> Any:
        """A constant of the type of the loops."""
        return tirx.const(value, self.dtype)

    def write(self) -> tirx.Stmt:
        """The grid."""
        count = -(-self.kernel.count // self.launch.rows)

        def block(index: Any) -> tirx.Stmt:
            self.block = index
            return sequence([stmt for b in self.kernel.blocks for stmt in self._block(b)])

        return bound("blockIdx.x", count, self.dtype, block)

    def fits(self, width: int) -> bool:
        """Whether all blocks along the rows can move vectors of ``width`` elements."""
        if width == 1:
            return True
        for block in (b for b in self.kernel.blocks if b.columns):
            if block.length % width or len(block.stores) > 1:
                return False
            step = step_axis("step", block.length // width, self.dtype)
            row = step_axis("row", self.kernel.count, self.dtype)
            lane = tirx.Var("lane", self.dtype)
            store = self._flat(self._update(block, 0), block, row.var, step.var * width + lane, 0)
            ranges = [(row.var, row.extent), (step.var, step.extent)]
            if store is None or not Lanes(store, lane, width, ranges).fits():
                return False
        return True

    def keeps_rows_in_place(self) -> bool:
        """Whether every thread only reads those elements of a waiting row that it has computed."""
        for block in self.kernel.blocks:
            fused = step_axis("fused", block.length, self.dtype)
            values = unfused(fused.var, block.columns, self.dtype)
            analyzer = sym.Analyzer()
            analyzer.bind(fused.var, tvm.ir.Range(0, fused.extent))
            for row in self.kernel.rows:
                analyzer.bind(row.var, tvm.ir.Range(0, row.extent))
            for buffer, indices in _accesses(block):
                size = self.sizes.get(buffer_key(buffer), 1)
                if size == 1:
                    continue
                index = substituted(index_in_row(self.kernel, buffer, indices), values)
                if size != block.length or not analyzer.can_prove_equal(index, fused.var):
                    return False
        return True

    def _threads(self, body: Callable[[], tirx.Stmt]) -> tirx.Stmt:
        """``body`` for all threads: what stands between two barriers."""

        def column(x: Any) -> tirx.Stmt:
            self.x = x
            return body()

        def row(y: Any) -> tirx.Stmt:
            self.y = y
            return bound("threadIdx.x", self.extents[1], self.dtype, column)

        return bound("threadIdx.y", self.extents[0], self.dtype, row)

    @property
    def _part(self) -> Any:
        return self.y if self.launch.across else self.x

    def _row(self) -> tuple[Any, Any]:
        """The thread's row, the last one again behind the end, and whether it is inside; or None."""
        position = self.x if self.launch.across else self.y
        row = self.block * self.number(self.launch.rows) + position
        if self.kernel.count % self.launch.rows == 0:
            return row, None
        last = self.number(self.kernel.count - 1)
        return tirx.Min(row, last), row < self.number(self.kernel.count)

    def _mine(self) -> list[tuple[Any, int]]:
        return [(self.y, self.extents[0]), (self.x, self.extents[1])]

    def _block(self, block: RowBlock) -> list[tirx.Stmt]:
        if block.starts:
            return self._reduction(block)
        if not block.columns:
            return [self._threads(lambda: self._values(block))]
        return [self._threads(lambda: self._columns(block, None))]

    def _values(self, block: RowBlock) -> tirx.Stmt:
        """A value of the row: by every thread for itself, by the first one to memory."""
        row, inside = self._row()
        statements = []
        for store in block.stores:
            flat = self._flat(store, block, row, self.number(0), None)
            if buffer_key(store.buffer) in self.kernel.inner:
                statements.append(flat)
                continue
            first = self._part == self.number(0)
            condition = first if inside is None else tirx.And(first, inside)
            statements.append(guarded(condition, flat))
        return sequence(statements)

    def _columns(self, block: RowBlock, partial: Sequence[Any] | None) -> tirx.Stmt:
        """A pass of the thread over its part of the row; a reduction adds to ``partial``."""
        launch = self.launch
        row, inside = self._row()
        steps = launch.steps(block.length)
        vectors = block.length // launch.vector

        def one(i: Any) -> tirx.Stmt:
            at = i * self.number(launch.parts) + self._part
            whole = steps * launch.parts == vectors
            condition = None if whole else at < self.number(vectors)
            if partial is None and not self._is_inner(block) and inside is not None:
                condition = inside if condition is None else tirx.And(condition, inside)
            return guarded(condition, self._group(block, partial, row, at, i))

        unrolled = steps <= _MOST_UNROLLED or any(
            self.sizes.get(buffer_key(buffer), 1) > 1 for buffer, _ in _accesses(block)
        )
        kind = tirx.ForKind.UNROLLED if unrolled else tirx.ForKind.SERIAL
        return repeated(steps, self.dtype, one, kind)

    def _group(
        self, block: RowBlock, partial: Sequence[Any] | None, row: Any, at: Any, step: Any
    ) -> tirx.Stmt:
        """``vector`` neighbouring elements of a row, number ``at`` among the row's vectors."""
        width = self.launch.vector
        if len(block.stores) > 1:
            return self._together(block, partial, row, at, step)
        lane = tirx.Var("lane", self.dtype)
        columns = step_axis("at", max(1, block.length // width), self.dtype)
        rows = step_axis("row", self.kernel.count, self.dtype)
        store = block.stores[0] if partial is None else self._update(block, 0, partial)
        flat = self._flat(store, block, rows.var, columns.var * width + lane, step * width + lane)
        ranges = [(rows.var, rows.extent), (columns.var, columns.extent)]
        code = Lanes(flat, lane, width, ranges).code(self.arrays, self._mine())
        return substituted(code, {buffer_key(rows.var): row, buffer_key(columns.var): at})

    def _together(
        self, block: RowBlock, partial: Sequence[Any] | None, row: Any, at: Any, step: Any
    ) -> tirx.Stmt:
        """Several results of one element, none of which is to see what another one stores."""
        news = []
        statements = []
        for number, store in enumerate(block.stores):
            moved = store if partial is None else self._update(block, number, partial)
            flat = self._flat(moved, block, row, at, step)
            held = self.arrays.registers("new", 1, str(store.buffer.dtype), self._mine())
            statements.append(held.put(self.number(0), flat.value))
            news.append((flat, held))
        for flat, held in news:
            value = held.at(self.number(0))
            statements.append(tirx.BufferStore(flat.buffer, value, flat.indices))
        return sequence(statements)

    def _update(self, block: RowBlock, number: int, partial: Sequence[Any] | None = None) -> Store:
        """One store of a block; a reduction's goes to the thread's partial result."""
        store = block.stores[number]
        if not block.starts:
            return store
        buffers = [s.buffer for s in block.stores]
        if partial is None:
            partial = [
                tirx.decl_buffer([self.number(1)], str(b.dtype), "partial", scope="local")
                for b in buffers
            ]
            at: list[Any] = [self.number(0)]
        else:
            at = [self.y, self.x, self.number(0)]
        old = [tirx.BufferLoad(buffer, at) for buffer in partial]
        return Store(partial[number], tuple(at), accumulated(store.value, buffers, old))

    def _reduction(self, block: RowBlock) -> list[tirx.Stmt]:
        combine = combine_of(block)
        if combine is None:
            raise ValueError("partial results of a reduction cannot be combined")
        shape = [*self.extents, 1]
        partial = [
            self.arrays.allocated(f"{s.buffer.name}_part", shape, str(s.buffer.dtype), "local")
            for s in block.stores
        ]

        def own() -> tirx.Stmt:
            at = [self.y, self.x, self.number(0)]
            starts = [
                tirx.BufferStore(p, start, at)
                for p, start in zip(partial, block.starts, strict=True)
            ]
            # The shuffles that follow take the threads that are active for the whole warp.
            together = [] if self.launch.across else [warp_barrier()]
            return sequence([*starts, self._columns(block, partial), *together])

        statements = [self._threads(own)]
        if self.launch.parts == 1:
            results, index = partial, lambda: [self.y, self.x, self.number(0)]
        elif self.launch.across or len(block.stores) > 1:
            results, more = self._through_shared_memory(partial, combine)
            statements, index = [*statements, *more], lambda: [self.y, self.x, self.number(0)]
        else:
            results, more = self._by_shuffles(block, partial, combine)
            statements, index = [*statements, *more], lambda: [self.y]
        return [*statements, self._threads(lambda: self._results(block, results, index()))]

    def _results(self, block: RowBlock, results: Sequence[Any], index: list[Any]) -> tirx.Stmt:
        """What was reduced goes where later blocks, or the caller, look for it."""
        names = [tirx.BufferLoad(result, index) for result in results]
        stores = tuple(
            Store(store.buffer, store.indices, name)
            for store, name in zip(block.stores, names, strict=True)
        )
        return self._values(RowBlock((), stores, ()))

    def _by_shuffles(
        self, block: RowBlock, partial: Sequence[Any], combine: Combine
    ) -> tuple[list[Any], list[tirx.Stmt]]:
        """One result of neighbouring threads: TVM makes a reduction bound to threads shuffles."""
        rows, parts = self.launch.rows, self.launch.parts
        results = [
            self.arrays.allocated(f"{p.name}_all", [rows], str(p.dtype), "local") for p in partial
        ]

        def all_threads() -> tirx.Stmt:
            row, part = tirx.Var("v_row", self.dtype), tirx.Var("v_part", self.dtype)
            iters = [
                _iteration(row, rows, tirx.IterVar.DataPar, self.dtype),
                _iteration(part, parts, tirx.IterVar.CommReduce, self.dtype),
            ]
            (result,), (own,) = results, partial
            mine = tirx.BufferLoad(own, [row, part, self.number(0)])
            (value,) = combine([tirx.BufferLoad(result, [row])], [mine])
            region = [tvm.ir.Range.from_min_extent(i, 1) for i in (row, part, self.number(0))]
            written = [tvm.ir.Range.from_min_extent(row, 1)]
            realized = s_tir.SBlock(
                iters,
                [tirx.BufferRegion(own, region)],
                [tirx.BufferRegion(result, written)],
                "across_threads",
                tirx.BufferStore(result, value, [row]),
                tirx.BufferStore(result, block.starts[0], [row]),
            )
            return s_tir.SBlockRealize([self.y, self.x], tirx.const(True, "bool"), realized)

        return results, [self._threads(all_threads)]

    def _through_shared_memory(
        self, partial: Sequence[Any], combine: Combine
    ) -> tuple[list[Any], list[tirx.Stmt]]:
        """Every thread folds the partial results of its row, each from shared memory."""
        rows, parts = self.launch.rows, self.launch.parts
        shared = [
            self.arrays.allocated(f"{p.name}_shared", [parts * rows], str(p.dtype), "shared")
            for p in partial
        ]
        shape = [*self.extents, 1]
        results = [
            self.arrays.allocated(f"{p.name}_all", shape, str(p.dtype), "local") for p in partial
        ]

        def place(part: Any) -> Any:
            if self.launch.across:
                return part * self.number(rows) + self.x
            return self.y * self.number(parts) + part

        def publish() -> tirx.Stmt:
            at = [self.y, self.x, self.number(0)]
            return sequence(
                [
                    tirx.BufferStore(s, tirx.BufferLoad(p, at), [place(self._part)])
                    for s, p in zip(shared, partial, strict=True)
                ]
            )

        def fold() -> tirx.Stmt:
            at = [self.y, self.x, self.number(0)]
            first = [
                tirx.BufferStore(r, tirx.BufferLoad(s, [place(self.number(0))]), at)
                for r, s in zip(results, shared, strict=True)
            ]

            def more(i: Any) -> tirx.Stmt:
                left = [tirx.BufferLoad(r, at) for r in results]
                right = [
                    tirx.BufferLoad(s, [place(i + self.number(1))]) for s in shared
                ]
                return self._stored(results, combine(left, right), at)

            kind = tirx.ForKind.UNROLLED if parts <= _MOST_UNROLLED else tirx.ForKind.SERIAL
            return sequence([*first, repeated(parts - 1, self.dtype, more, kind)])

        return results, [self._threads(publish), self._threads(fold)]

    def _stored(self, buffers: Sequence[Any], values: Sequence[Any], at: list[Any]) -> tirx.Stmt:
        """Stores all values, none of which is to see what another one stores."""
        if len(buffers) == 1:
            return tirx.BufferStore(buffers[0], values[0], at)
        news = [
            self.arrays.registers("new", 1, str(b.dtype), self._mine()) for b in buffers
        ]
        zero = self.number(0)
        return sequence(
            [
                *(new.put(zero, value) for new, value in zip(news, values, strict=True)),
                *(
                    tirx.BufferStore(b, new.at(zero), at)
                    for b, new in zip(buffers, news, strict=True)
                ),
            ]
        )

    def _is_inner(self, block: RowBlock) -> bool:
        return all(buffer_key(store.buffer) in self.kernel.inner for store in block.stores)

    def _flat(self, store: Store, block: RowBlock, row: Any, column: Any, held: Any) -> Any:
        """The store at a row and a column, to and from flat buffers and registers.

        ``held`` is the position of the column among those of the thread.
        """
        values = {
            **unfused(row, self.kernel.rows, self.dtype),
            **unfused(column, block.columns, self.dtype),
        }
        outside = tirx.BufferStore(store.buffer, store.value, list(store.indices))
        moved = substituted(outside, {}, lambda load: self._placed(load, held))
        if buffer_key(store.buffer) in self.kernel.inner:
            buffer, at = self._place(store.buffer, held)
            moved = tirx.BufferStore(buffer, moved.value, at)
        return substituted(self._flattened(moved), values)

    def _flattened(self, store: tirx.BufferStore) -> Any:
        """The store with flat views of all buffers but those in registers."""
        def flat(load: Any) -> Any:
            if str(load.source.scope()) != "global":
                return load
            probe = tirx.BufferStore(load.source, tirx.const(0, str(load.source.dtype)), load.indices)
            found = flattened(probe, self.views)
            return tirx.BufferLoad(found.buffer, found.indices)

        value = substituted(store.value, {}, flat)
        if str(store.buffer.scope()) != "global":
            return tirx.BufferStore(store.buffer, value, store.indices)
        zero = tirx.const(0, str(store.buffer.dtype))
        probe = flattened(tirx.BufferStore(store.buffer, zero, store.indices), self.views)
        assert probe is not None
        return tirx.BufferStore(probe.buffer, value, [substituted(i, {}, flat) for i in probe.indices])

    def _placed(self, load: Any, held: Any) -> Any:
        if buffer_key(load.source) not in self.kernel.inner:
            return load
        buffer, at = self._place(load.source, held)
        return tirx.BufferLoad(buffer, at)

    def _place(self, buffer: Any, held: Any) -> tuple[Any, list[Any]]:
        """The registers of a buffer that only the kernel sees, and where an element is in them."""
        key = buffer_key(buffer)
        size = self.sizes[key]
        if key not in self.held:
            steps = 1 if size == 1 else self.launch.steps(size) * self.launch.vector
            shape = [*self.extents, steps]
            self.held[key] = self.arrays.allocated(buffer.name, shape, str(buffer.dtype), "local")
        index = self.number(0) if size == 1 or held is None else held
        return self.held[key], [self.y, self.x, index]


def _iteration(var: Any, extent: int, kind: int, dtype: str) -> tirx.IterVar:
    domain = tvm.ir.Range(tirx.const(0, dtype), tirx.const(extent, dtype))
    return tirx.IterVar(domain, var, kind)


def _accesses(block: RowBlock) -> list[tuple[Any, Any]]:
    return list(accesses(block.stores))



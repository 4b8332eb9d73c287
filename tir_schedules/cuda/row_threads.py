"""Writes a row kernel for threads: each block of threads takes some rows through all passes.

What waits between two passes stays in registers: of a row, a thread keeps the elements that it
has computed, and every thread of a row has its own copy of a value of the whole row.
"""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import sym, tirx

from tvm_ext.tir_schedules.analysis.row_kernel import (
    Combine,
    RowBlock,
    RowKernel,
    Store,
    accesses,
    accumulated,
    buffer_key,
    combine_of,
    index_in_row,
    sized,
    substituted,
    unfused,
)
from tvm_ext.tir_schedules.cuda.launch import ThreadPlane, bound, guarded, repeated, warp_barrier
from tvm_ext.tir_schedules.cuda.row_decision import RowLaunch, inner_buffers, step_axis
from tvm_ext.tir_schedules.cuda.vector_group import Lanes
from tvm_ext.tir_schedules.statements import FlatViews, sequence, with_flat_memory

# Where the threads of a row kernel stand, and where its values are: in registers or memory.


class RowPlaces(ThreadPlane):
    """The threads of a row kernel under a launch, and the places of its buffers."""

    def __init__(self, kernel: RowKernel, launch: RowLaunch, views: FlatViews) -> None:
        across = launch.across
        extents = (launch.parts, launch.rows) if across else (launch.rows, launch.parts)
        super().__init__(extents, kernel.index_dtype)
        self.kernel, self.launch, self.views = kernel, launch, views
        self.block = self.number(0)
        self.held: dict[int, tvm.ir.Var] = {}
        self.sizes = {buffer_key(buffer): size for buffer, size in inner_buffers(kernel)}

    @property
    def part(self) -> tvm.ir.Expr:
        return self.y if self.launch.across else self.x

    def row(self) -> tuple[Any, Any]:
        """The thread's row, behind the end the last one, and whether it is inside."""
        position = self.x if self.launch.across else self.y
        rows, count = self.launch.rows, self.kernel.count
        row = self.block * self.number(rows) + position
        if rows == 1 or (isinstance(count, int) and count % rows == 0):
            return row, None
        end = sized(count, self.dtype)
        return tirx.Min(row, end - self.number(1)), row < end

    def is_inner(self, block: RowBlock) -> bool:
        return all(buffer_key(store.buffer) in self.kernel.inner for store in block.stores)

    def flat(
        self, store: Store, block: RowBlock, row: tvm.ir.Expr, column: tvm.ir.Expr, held: Any
    ) -> tirx.BufferStore:
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
        return substituted(with_flat_memory(moved, self.views), values)

    def _placed(self, load: tvm.ir.TensorLoad, held: Any) -> tvm.ir.Expr:
        if buffer_key(load.source) not in self.kernel.inner:
            return load
        buffer, at = self._place(load.source, held)
        return tirx.BufferLoad(buffer, at)

    def _place(self, buffer: tirx.Buffer, held: Any) -> tuple[Any, list[Any]]:
        """The registers of a buffer that only the kernel sees, and where an element is in them."""
        key = buffer_key(buffer)
        size = self.sizes[key]
        if key not in self.held:
            steps = 1 if size == 1 else self.launch.steps(size) * self.launch.vector
            shape = [*self.extents, steps]
            self.held[key] = self.arrays.allocated(buffer.name, shape, str(buffer.dtype), "local")
        index = self.number(0) if size == 1 or held is None else held
        return self.held[key], [self.y, self.x, index]


# One result from the partial results of a row's threads: by shuffles, or in shared memory.


# Partial results whose folding is written out; more are a loop.
_MOST_UNROLLED_PARTS = 16

# Threads that exchange values without memory (CUDA C++ Programming Guide, warp shuffles).
WARP = 32

# All threads of a warp: none has left, or is in a branch of its own.
_EVERYONE = tirx.const(0xFFFFFFFF, "uint32")


class RowCombining(RowPlaces):
    """The combination of the results of several threads."""

    def by_shuffles(self, partial: Sequence[tirx.Buffer], combine: Combine) -> list[tirx.Stmt]:
        """Neighbouring threads exchange partial results until all of a row have all of it.

        In a warp by butterflies (D. E. Knuth, "The Art of Computer Programming" 4A, 7.1.3); with
        several warps a row, one result of each goes through shared memory to all of them.
        """
        warps = self.launch.parts // WARP
        statements = self._butterflies(partial, combine, WARP)
        if warps == 1:
            return statements
        shared = [
            self.arrays.allocated(
                f"{p.name}_warps", [self.launch.rows * warps], str(p.dtype), "shared"
            )
            for p in partial
        ]

        def place(warp: tvm.ir.Expr) -> list[tvm.ir.Expr]:
            return [self.y * self.number(warps) + warp]

        def publish() -> tirx.Stmt:
            at = place(tirx.floordiv(self.x, self.number(WARP)))
            stores = [
                tirx.BufferStore(s, tirx.BufferLoad(p, self._own()), at)
                for s, p in zip(shared, partial, strict=True)
            ]
            leads = tirx.floormod(self.x, self.number(WARP)).equal(self.number(0))
            return tirx.IfThenElse(leads, sequence(stores), None)

        def fetch() -> tirx.Stmt:
            at = place(tirx.floormod(self.x, self.number(warps)))
            return sequence(
                [
                    tirx.BufferStore(p, tirx.BufferLoad(s, at), self._own())
                    for s, p in zip(shared, partial, strict=True)
                ]
            )

        rest = self._butterflies(partial, combine, warps)
        return [*statements, self.threads(publish), self.threads(fetch), *rest]

    def _own(self) -> list[tvm.ir.Expr]:
        """The thread's place in an array with one element for each."""
        return [self.y, self.x, self.number(0)]

    def _butterflies(
        self, partial: Sequence[tirx.Buffer], combine: Combine, width: int
    ) -> list[tirx.Stmt]:
        """``partial`` combined over every ``width`` neighbouring threads of a warp, in each."""
        others = [
            self.arrays.allocated(f"{p.name}_other", [*self.extents, 1], str(p.dtype), "local")
            for p in partial
        ]
        statements: list[tirx.Stmt] = []
        step = width // 2
        while step:

            def exchange(step: int = step) -> tirx.Stmt:
                stores = []
                for other, own in zip(others, partial, strict=True):
                    value = tirx.BufferLoad(own, self._own())
                    moved = tirx.op.tvm_warp_shuffle_xor(_EVERYONE, value, step, WARP, WARP)
                    stores.append(tirx.BufferStore(other, moved, self._own()))
                return sequence(stores)

            def fold(step: int = step) -> tirx.Stmt:
                mine = [tirx.BufferLoad(own, self._own()) for own in partial]
                theirs = [tirx.BufferLoad(other, self._own()) for other in others]
                return self._stored(partial, combine(mine, theirs), self._own())

            statements += [self.threads(exchange), self.threads(fold)]
            step //= 2
        if len(partial) > 1:
            # Of equals, each may have picked its own.
            statements.append(self.threads(lambda: self._of_first_lane(partial)))
        return statements

    def _of_first_lane(self, partial: Sequence[tirx.Buffer]) -> tirx.Stmt:
        stores = []
        for own in partial:
            value = tirx.BufferLoad(own, self._own())
            first = tirx.op.tvm_warp_shuffle(_EVERYONE, value, 0, WARP, WARP)
            stores.append(tirx.BufferStore(own, first, self._own()))
        return sequence(stores)

    def through_shared_memory(
        self, partial: Sequence[tirx.Buffer], combine: Combine
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

        def place(part: tvm.ir.Expr) -> tvm.ir.Expr:
            if self.launch.across:
                return part * self.number(rows) + self.x
            return self.y * self.number(parts) + part

        def publish() -> tirx.Stmt:
            at = [self.y, self.x, self.number(0)]
            return sequence(
                [
                    tirx.BufferStore(s, tirx.BufferLoad(p, at), [place(self.part)])
                    for s, p in zip(shared, partial, strict=True)
                ]
            )

        def fold() -> tirx.Stmt:
            at = [self.y, self.x, self.number(0)]
            first = [
                tirx.BufferStore(r, tirx.BufferLoad(s, [place(self.number(0))]), at)
                for r, s in zip(results, shared, strict=True)
            ]

            def more(i: tvm.ir.Expr) -> tirx.Stmt:
                left = [tirx.BufferLoad(r, at) for r in results]
                right = [tirx.BufferLoad(s, [place(i + self.number(1))]) for s in shared]
                return self._stored(results, combine(left, right), at)

            kind = tirx.ForKind.UNROLLED if parts <= _MOST_UNROLLED_PARTS else tirx.ForKind.SERIAL
            return sequence([*first, repeated(parts - 1, self.dtype, more, kind)])

        return results, [self.threads(publish), self.threads(fold)]

    def _stored(
        self, buffers: Sequence[tirx.Buffer], values: Sequence[tvm.ir.Expr], at: list[tvm.ir.Expr]
    ) -> tirx.Stmt:
        """Stores all values, none of which is to see what another one stores."""
        if len(buffers) == 1:
            return tirx.BufferStore(buffers[0], values[0], at)
        news = [self.arrays.registers("new", 1, str(b.dtype), self.mine()) for b in buffers]
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


# Steps of a thread along a row that are written out; more are a loop.
_MOST_UNROLLED = 16


class ThreadRows(RowCombining):
    """The statements of a row kernel under a launch."""

    def write(self) -> tirx.Stmt:
        """The grid."""

        def block(index: tvm.ir.Expr) -> tirx.Stmt:
            self.block = index
            return sequence([stmt for b in self.kernel.blocks for stmt in self._block(b)])

        return bound("blockIdx.x", self.blocks(), self.dtype, block)

    def blocks(self) -> Any:
        """How many blocks of threads there are: an int, or an expression."""
        count, rows = self.kernel.count, self.launch.rows
        if isinstance(count, int):
            return -(-count // rows)
        return tirx.floordiv(count + (rows - 1), rows) if rows > 1 else count

    def fits(self, width: int) -> bool:
        """Whether all blocks along the rows can move vectors of ``width`` elements."""
        if width == 1:
            return True
        for block in (b for b in self.kernel.blocks if b.columns):
            if block.length % width or len(block.stores) > 1:
                return False
            if block.limit is not None and block.limit.length % width:
                return False
            step = step_axis("step", block.length // width, self.dtype)
            row = step_axis("row", self.kernel.count, self.dtype)
            lane = tirx.Var("lane", self.dtype)
            store = self.flat(self._update(block, 0), block, row.var, step.var * width + lane, 0)
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

    def _block(self, block: RowBlock) -> list[tirx.Stmt]:
        if block.starts:
            return self._reduction(block)
        if not block.columns:
            return [self.threads(lambda: self._values(block))]
        return [self.threads(lambda: self._columns(block, None))]

    def _values(self, block: RowBlock) -> tirx.Stmt:
        """A value of the row: by every thread for itself, by the first one to memory."""
        row, inside = self.row()
        statements = []
        for store in block.stores:
            flat = self.flat(store, block, row, self.number(0), None)
            if buffer_key(store.buffer) in self.kernel.inner:
                statements.append(flat)
                continue
            first = self.part == self.number(0)
            condition = first if inside is None else tirx.And(first, inside)
            statements.append(guarded(condition, flat))
        return sequence(statements)

    def _columns(self, block: RowBlock, partial: Sequence[Any] | None) -> tirx.Stmt:
        """A pass of the thread over its part of the row; a reduction adds to ``partial``."""
        launch = self.launch
        row, inside = self.row()
        steps = launch.steps(block.length)
        vectors = block.length // launch.vector

        def iteration(i: tvm.ir.Expr) -> tirx.Stmt:
            at = i * self.number(launch.parts) + self.part
            whole = steps * launch.parts == vectors
            condition = None if whole else at < self.number(vectors)
            if partial is None and not self.is_inner(block) and inside is not None:
                condition = inside if condition is None else tirx.And(condition, inside)
            if block.limit is not None:
                ends = self._within(block, row, at)
                condition = ends if condition is None else tirx.And(condition, ends)
            return guarded(condition, self._group(block, partial, row, at, i))

        unrolled = steps <= _MOST_UNROLLED or any(
            self.sizes.get(buffer_key(buffer), 1) > 1 for buffer, _ in _accesses(block)
        )
        kind = tirx.ForKind.UNROLLED if unrolled else tirx.ForKind.SERIAL
        return repeated(steps, self.dtype, iteration, kind)

    def _within(self, block: RowBlock, row: tirx.Expr, at: tirx.Expr) -> tirx.Expr:
        """Whether the row has a vector number ``at`` in this block."""
        if block.limit is None:
            return tirx.const(True, "bool")
        column = at * self.number(self.launch.vector)
        values = {
            **unfused(row, self.kernel.rows, self.dtype),
            **unfused(column, block.columns, self.dtype),
        }
        length = self.number(block.limit.length)
        return substituted(block.limit.position, values) < length

    def _group(
        self,
        block: RowBlock,
        partial: Sequence[Any] | None,
        row: tvm.ir.Expr,
        at: tvm.ir.Expr,
        step: tvm.ir.Expr,
    ) -> tirx.Stmt:
        """``vector`` neighbouring elements of a row, number ``at`` among the row's vectors."""
        width = self.launch.vector
        if len(block.stores) > 1:
            return self._together(block, partial, row, at, step)
        lane = tirx.Var("lane", self.dtype)
        columns = step_axis("at", max(1, block.length // width), self.dtype)
        rows = step_axis("row", self.kernel.count, self.dtype)
        store = block.stores[0] if partial is None else self._update(block, 0, partial)
        flat = self.flat(store, block, rows.var, columns.var * width + lane, step * width + lane)
        ranges = [(rows.var, rows.extent), (columns.var, columns.extent)]
        code = Lanes(flat, lane, width, ranges).code(self.arrays, self.mine())
        return substituted(code, {buffer_key(rows.var): row, buffer_key(columns.var): at})

    def _together(
        self,
        block: RowBlock,
        partial: Sequence[Any] | None,
        row: tvm.ir.Expr,
        at: tvm.ir.Expr,
        step: tvm.ir.Expr,
    ) -> tirx.Stmt:
        """Several results of one element, none of which is to see what another one stores."""
        news = []
        statements = []
        for number, store in enumerate(block.stores):
            moved = store if partial is None else self._update(block, number, partial)
            flat = self.flat(moved, block, row, at, step)
            held = self.arrays.registers("new", 1, str(store.buffer.dtype), self.mine())
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

        statements = [self.threads(own)]
        results: Sequence[Any] = partial
        if self.launch.across and self.launch.parts > 1:
            results, more = self.through_shared_memory(partial, combine)
            statements += more
        elif self.launch.parts > 1:
            statements += self.by_shuffles(partial, combine)

        def finish() -> tirx.Stmt:
            return self._results(block, results, [self.y, self.x, self.number(0)])

        return [*statements, self.threads(finish)]

    def _results(
        self, block: RowBlock, results: Sequence[tirx.Buffer], index: list[tvm.ir.Expr]
    ) -> tirx.Stmt:
        """What was reduced goes where later blocks, or the caller, look for it."""
        names = [tirx.BufferLoad(result, index) for result in results]
        stores = tuple(
            Store(store.buffer, store.indices, name)
            for store, name in zip(block.stores, names, strict=True)
        )
        return self._values(RowBlock((), stores, ()))


def _accesses(block: RowBlock) -> list[tuple[Any, Any]]:
    return list(accesses(block.stores))

"""Runs a row kernel one row after the other, with vectors along the row."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_equal

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.llvm.row_code import Writer, assign, sequence, stretches
from tvm_ext.tir_schedules.llvm.row_combine import Combine, accumulated, combine_of
from tvm_ext.tir_schedules.llvm.row_decision import RowDecision
from tvm_ext.tir_schedules.llvm.row_kernel import (
    Axis,
    RowBlock,
    RowKernel,
    Store,
    buffer_key,
    loads_of,
    product,
    substituted,
)
from tvm_ext.tir_schedules.llvm.row_strides import dense_suffix, unfused

SERIAL = tirx.ForKind.SERIAL
ColumnBody = Callable[[dict[int, Any], Any], tirx.Stmt]
Columns = tuple[Sequence[Axis], Sequence[Axis]]
Pass = tuple[RowBlock | None, RowBlock]


class AlongRows(Writer):
    """Some rows at a time, each on its own; what is left over runs row by row."""

    def write(self) -> tirx.Stmt:
        """The loop over all rows."""
        nests = []
        for part in stretches(self.kernel.count, [self.decision.together, 1]):
            # Only the first of them is worth handing to threads.
            decision = self.decision if part[0] == 0 else replace(self.decision, chunks=1)
            nests.append(AlongRows(self.kernel, decision)._rows(part))
        return sequence(nests)

    def _rows(self, part: tuple[int, int, int]) -> tirx.Stmt:
        start, count, width = part
        passes = passes_of(self.kernel)
        rows = [_Row(self.kernel, self.decision) for _ in range(width)]

        def some(i: Any) -> tirx.Stmt:
            base = self.number(start) + i * self.number(width)
            at = [
                unfused(base + self.number(k), self.kernel.rows, self.dtype) for k in range(width)
            ]
            # Block by block: while one row waits for a result, another one has work.
            return sequence(
                [
                    stmt
                    for before, block in passes
                    for row, values in zip(rows, at, strict=True)
                    for stmt in row.block(block, before, values)
                ]
            )

        return self.in_chunks(
            count, some, lambda: [stmt for row in rows for stmt in row.allocated([])]
        )


class _Row(Writer):
    """Vectors of neighbours in one row, in whole registers, and one shorter vector for the rest."""

    def __init__(self, kernel: RowKernel, decision: RowDecision) -> None:
        super().__init__(kernel, decision)
        if decision.in_output:
            self._use_output()

    def _use_output(self) -> None:
        """Lets the row that the last block only reads where it writes wait in the output."""
        last = self.kernel.blocks[-1]
        store = last.stores[0]
        out = buffer_key(store.buffer)
        if last.starts or out in self.kernel.inner or not last.columns:
            return
        writers = [s for block in self.kernel.blocks for s in block.stores]
        if sum(buffer_key(s.buffer) == out for s in writers) > 1:
            return
        if any(buffer_key(load.source) == out for load in self.kernel.loads()):
            return
        for load in loads_of(store.value):
            if self._fits_output(load, store):
                self.aliases[buffer_key(load.source)] = store.buffer
                return

    def _fits_output(self, load: tvm.ir.TensorLoad, store: Store) -> bool:
        buffer = load.source
        key = buffer_key(buffer)
        reads = [n for n in loads_of(store.value) if buffer_key(n.source) == key]
        return (
            key in self.kernel.inner
            and str(buffer.dtype) == str(store.buffer.dtype)
            and [static_extent(s) for s in buffer.shape]
            == [static_extent(s) for s in store.buffer.shape]
            and all(structural_equal(list(n.indices), list(store.indices)) for n in reads)
        )

    def block(
        self, block: RowBlock, before: RowBlock | None, values: dict[int, Any]
    ) -> list[tirx.Stmt]:
        """What ``block`` does in the row at ``values``, and in the same pass, ``before`` it."""
        combine = combine_of(block) if block.starts else None
        if combine is not None:
            return self._reduce(block, before, combine, values)
        columns = self._split_columns([block])

        def element(at: dict[int, Any], lane: Any) -> tirx.Stmt:
            return sequence(self._elements(block, {**values, **at}))

        return [self._over_columns(columns, [self.decision.lanes], element)]

    def _elements(self, block: RowBlock, point: dict[int, Any]) -> list[tirx.Stmt]:
        return [self.put(s, self.at(s.value, point, None), point, None) for s in block.stores]

    def _split_columns(self, blocks: Sequence[RowBlock]) -> Columns:
        """Loops around the vectors, and those that vectors run along, fused."""
        columns = blocks[0].columns
        first = dense_suffix(self.kernel, columns, blocks)
        return columns[:first], columns[first:]

    def _over_columns(self, columns: Columns, widths: Sequence[int], body: ColumnBody) -> tirx.Stmt:
        """Loops over a row, in vectors of ``widths``; the body gets the columns and the lane.

        Vectors narrower than the first of ``widths`` count their lanes on from one to the next.
        """
        outer, inner = columns
        parts = stretches(product(axis.extent for axis in inner), widths)

        def row(at: dict[int, Any]) -> tirx.Stmt:
            def at_row(columns: dict[int, Any], lane: Any) -> tirx.Stmt:
                return body({**at, **columns}, lane)

            done = []
            narrow = 0
            for part in parts:
                whole = part[2] == widths[0]
                lanes = None if whole else narrow
                done.append(self._piece(part, lanes, inner, at_row))
                narrow += 0 if whole else part[1] * part[2]
            return sequence(done)

        return self.nest(outer, row)

    def _piece(
        self,
        part: tuple[int, int, int],
        lanes: int | None,
        inner: Sequence[Axis],
        body: ColumnBody,
    ) -> tirx.Stmt:
        start, count, width = part

        def step(i: Any) -> tirx.Stmt:
            offset = i * self.number(width)

            def counted(lane: Any) -> Any:
                return lane if lanes is None else self.number(lanes) + offset + lane

            def one(lane: Any) -> tirx.Stmt:
                position = self.number(start) + offset + lane
                return body(unfused(position, inner, self.dtype), counted(lane))

            return self.vector(width, one)

        # Positions among partial results must be constants for these to stay in registers.
        return self.loop(count, step, SERIAL if lanes is None else tirx.ForKind.UNROLLED)

    def _reduce(
        self, block: RowBlock, before: RowBlock | None, combine: Combine, values: dict[int, Any]
    ) -> list[tirx.Stmt]:
        """Partial results in the lanes of several vectors, then one of them by halving."""
        columns = self._split_columns([block] if before is None else [block, before])
        # What comes before takes long enough to hide the latency of one accumulator.
        registers = self.decision.registers if before is None else 1
        lanes, size = self._partial_size(columns[1], registers)
        partial = self.partial(block, size)
        buffers = [store.buffer for store in block.stores]

        def update(at: dict[int, Any], lane: Any) -> tirx.Stmt:
            old = [tirx.BufferLoad(p, [lane]) for p in partial]
            point = {**values, **at}
            first = [] if before is None else self._elements(before, point)
            new = [self.at(accumulated(s.value, buffers, old), point, None) for s in block.stores]
            return sequence([*first, assign(partial, new, lane)])

        return [
            *self.started(partial, block, size),
            self._over_columns(columns, [size, lanes] if size > lanes else [size], update),
            *self._halved(partial, combine, size),
            *(
                self.put(s, tirx.BufferLoad(p, [self.number(0)]), values, None)
                for s, p in zip(block.stores, partial, strict=True)
            ),
        ]

    def _partial_size(self, inner: Sequence[Axis], registers: int) -> tuple[int, int]:
        """Lanes of a vector and of all partial results: powers of two, no more than the row has."""
        length = product(axis.extent for axis in inner)
        lanes = min(self.decision.lanes, 1 << (length - 1).bit_length())
        while registers > 1 and registers * lanes > length:
            registers //= 2
        return lanes, registers * lanes

    def _halved(
        self, partial: Sequence[tvm.ir.Var], combine: Combine, size: int
    ) -> list[tirx.Stmt]:
        """The first of ``size`` partial results becomes that of all."""
        steps = []
        while size > 1:
            size //= 2

            def step(lane: Any, half: int = size) -> tirx.Stmt:
                left = [tirx.BufferLoad(p, [lane]) for p in partial]
                right = [tirx.BufferLoad(p, [lane + self.number(half)]) for p in partial]
                return assign(partial, combine(left, right), lane)

            steps.append(self.vector(size, step))
        return steps


def passes_of(kernel: RowKernel) -> list[Pass]:
    """The blocks, each with the one before it when both can share a pass over the row.

    That is so when a reduction reads exactly the element that was just computed: the exponentials
    of a softmax and their sum.
    """
    passes: list[Pass] = []
    for block in kernel.blocks:
        before = _shared(passes[-1][1], block) if passes and passes[-1][0] is None else None
        if before is not None:
            passes.pop()
        passes.append((before, block))
    return passes


def _shared(before: RowBlock, block: RowBlock) -> RowBlock | None:
    """``before`` in the columns of ``block``; None when they cannot share a pass."""
    extents = [axis.extent for axis in block.columns]
    if before.starts or not block.starts or [a.extent for a in before.columns] != extents:
        return None
    if not extents or len(before.stores) != 1:
        return None
    pairs = zip(before.columns, block.columns, strict=True)
    values: dict[int, Any] = {buffer_key(old.var): new.var for old, new in pairs}
    (store,) = before.stores
    indices = tuple(substituted(index, values) for index in store.indices)
    key = buffer_key(store.buffer)
    loads = [load for s in block.stores for load in loads_of(s.value)]
    reads = [list(load.indices) for load in loads if buffer_key(load.source) == key]
    if not reads or not all(structural_equal(read, list(indices)) for read in reads):
        return None
    moved = Store(store.buffer, indices, substituted(store.value, values))
    return RowBlock(block.columns, (moved,), ())

"""Runs a row kernel one row after the other, with vectors along the row."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.llvm.row_code import Writer, assign
from tvm_ext.tir_schedules.llvm.row_decision import RowDecision
from tvm_ext.tir_schedules.llvm.row_passes import partial_size, passes_of, row_in_output
from tvm_ext.tir_schedules.llvm.row_stretches import Stretch, open_stretches
from tvm_ext.tir_schedules.rows.row_combine import Combine, accumulated, combine_of
from tvm_ext.tir_schedules.rows.row_kernel import (
    Axis,
    RowBlock,
    RowKernel,
    buffer_key,
    product,
)
from tvm_ext.tir_schedules.rows.row_strides import dense_suffix, unfused
from tvm_ext.tir_schedules.statements import sequence

SERIAL = tirx.ForKind.SERIAL
ColumnBody = Callable[[dict[int, Any], Any], tirx.Stmt]
Columns = tuple[Sequence[Axis], Sequence[Axis]]


class AlongRows(Writer):
    """Some rows at a time, each on its own; what is left over runs row by row."""

    def write(self) -> tirx.Stmt:
        """The loop over all rows."""
        nests = []
        widths = [self.decision.together, 1]
        for part in open_stretches(self.kernel.count, widths, self.dtype):
            # Only the first of them is worth handing to threads.
            is_first = isinstance(part[0], int) and part[0] == 0
            decision = self.decision if is_first else replace(self.decision, chunks=1)
            nests.append(AlongRows(self.kernel, decision)._rows(part))
        return sequence(nests)

    def _rows(self, part: Stretch) -> tirx.Stmt:
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
        waiting = row_in_output(kernel) if decision.in_output else None
        if waiting is not None:
            self.aliases[buffer_key(waiting[0])] = waiting[1]

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
        length = product(axis.extent for axis in inner)
        is_open = not isinstance(length, int)
        parts = open_stretches(length, [*widths, 1] if is_open else widths, self.dtype)

        def row(at: dict[int, Any]) -> tirx.Stmt:
            def at_row(columns: dict[int, Any], lane: Any) -> tirx.Stmt:
                return body({**at, **columns}, lane)

            done = []
            narrow = 0
            for part in parts:
                # How many narrower vectors there are is not known: all count their lanes from 0.
                whole = is_open or part[2] == widths[0]
                lanes = None if whole else narrow
                done.append(self._piece(part, lanes, inner, at_row))
                narrow += 0 if whole else part[1] * part[2]
            return sequence(done)

        return self.nest(outer, row)

    def _piece(
        self,
        part: Stretch,
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
        length = product(axis.extent for axis in columns[1])
        lanes, size = partial_size(length, self.decision.lanes, registers)
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

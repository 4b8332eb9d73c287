"""Writes the loops of a row kernel: one row after the other in vectors, or a row in each lane."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis, nodes, static_extent
from tvm_ext.tir_schedules.analysis.row_kernel import (
    Combine,
    RowBlock,
    RowKernel,
    Store,
    accumulated,
    buffer_key,
    combine_of,
    dense_suffix,
    index_in_row,
    sized,
    substituted,
    unfused,
)
from tvm_ext.tir_schedules.cpu.parallel_vectorize import largest_divisor
from tvm_ext.tir_schedules.cpu.row_decision import (
    RowDecision,
    Stretch,
    narrower,
    partial_size,
    passes_of,
    row_in_output,
    stretches,
    stretches_across,
    symbolic_stretches,
)
from tvm_ext.tir_schedules.statements import sequence

Body = Callable[[Any], tirx.Stmt]


class Writer:
    """Turns the blocks of a kernel into statements for some row, or for some rows at once."""

    # Rows that one copy of a buffer holds.
    width = 1

    def __init__(self, kernel: RowKernel, decision: RowDecision) -> None:
        self.kernel = kernel
        self.decision = decision
        self.dtype = kernel.index_dtype
        self.locals: dict[int, tvm.ir.Var] = {}
        self.aliases: dict[int, tvm.ir.Var] = {}

    def number(self, value: tirx.Expr | int) -> tvm.ir.Expr:
        """A number of the type of the loops, or an expression for one."""
        return sized(value, self.dtype)

    def loop(
        self, extent: tirx.Expr | int, body: Body, kind: tirx.ForKind = tirx.ForKind.SERIAL
    ) -> tirx.Stmt:
        """A loop from 0; the body alone when it runs once."""
        if static_extent(extent) == 1:
            return body(self.number(0))
        var = tirx.Var("i", self.dtype)
        return tirx.For(var, self.number(0), self.number(extent), kind, body(var))

    def vector(self, length: int, body: Body) -> tirx.Stmt:
        """A vectorised loop."""
        return self.loop(length, body, tirx.ForKind.VECTORIZED)

    def nest(
        self, axes: Sequence[LoopAxis], body: Callable[[dict[int, Any]], tirx.Stmt]
    ) -> tirx.Stmt:
        """Serial loops over ``axes``; the body gets their values."""
        if not axes:
            return body({})
        first, *rest = axes
        return self.loop(
            first.extent,
            lambda i: self.nest(rest, lambda v: body({buffer_key(first.var): i, **v})),
        )

    def allocate(self, name: str, size: int, dtype: str) -> tvm.ir.Var:
        """A buffer of this kernel in one dimension."""
        return tirx.decl_buffer([self.number(size)], dtype, name)

    def local(self, buffer: tvm.ir.Var) -> tvm.ir.Var:
        """The copy of an inner buffer that holds ``width`` rows."""
        key = buffer_key(buffer)
        if key not in self.locals:
            shape = [static_extent(buffer.shape[d]) or 1 for d in self.kernel.inner[key]]
            size = math.prod(shape) * self.width
            self.locals[key] = self.allocate(buffer.name, size, str(buffer.dtype))
        return self.locals[key]

    def at(self, expr: tvm.ir.Expr, values: dict[int, Any], lane: Any) -> tvm.ir.Expr:
        """``expr`` at some row and column, with inner buffers replaced by their copies."""

        def load(node: tvm.ir.TensorLoad) -> tvm.ir.Expr:
            buffer, indices = self.place(node.source, list(node.indices), lane)
            return tirx.BufferLoad(buffer, indices)

        return substituted(expr, values, load)

    def place(
        self, buffer: tvm.ir.Var, indices: list[tvm.ir.Expr], lane: Any
    ) -> tuple[Any, list[Any]]:
        """Where an element really is."""
        key = buffer_key(buffer)
        if key in self.aliases:
            return self.aliases[key], indices
        if key not in self.kernel.inner:
            return buffer, indices
        index = index_in_row(self.kernel, buffer, indices)
        if self.width > 1:
            index = index * self.number(self.width) + lane
        return self.local(buffer), [index]

    def put(self, store: Store, value: tvm.ir.Expr, values: dict[int, Any], lane: Any) -> tirx.Stmt:
        """Stores ``value`` where ``store`` says."""
        indices = [substituted(index, values) for index in store.indices]
        buffer, indices = self.place(store.buffer, indices, lane)
        return tirx.BufferStore(buffer, value, indices)

    def allocated(self, body: Sequence[tirx.Stmt]) -> list[tirx.Stmt]:
        """``body`` after the declarations of all inner buffers."""
        return [*(tirx.AllocBuffer(buffer) for buffer in self.locals.values()), *body]

    def partial(self, block: RowBlock, size: int) -> list[tvm.ir.Var]:
        """A buffer of ``size`` partial results for each result of a reduction."""
        return [
            self.allocate(f"{store.buffer.name}_partial", size, str(store.buffer.dtype))
            for store in block.stores
        ]

    def started(self, partial: Sequence[tvm.ir.Var], block: RowBlock, size: int) -> list[tirx.Stmt]:
        """Declarations of ``partial``, and the values it starts from."""
        width = largest_divisor(size, 4 * self.decision.lanes)

        def fill(i: tvm.ir.Expr) -> tirx.Stmt:
            return self.vector(
                width,
                lambda lane: sequence(
                    [
                        tirx.BufferStore(p, start, [i * self.number(width) + lane])
                        for p, start in zip(partial, block.starts, strict=True)
                    ]
                ),
            )

        return [*(tirx.AllocBuffer(p) for p in partial), self.loop(size // width, fill)]

    def in_chunks(self, count: Any, body: Body, around: Callable[[], list[tirx.Stmt]]) -> tirx.Stmt:
        """A loop from 0 to ``count``, in parts on threads when the decision says so.

        ``around`` gives declarations, asked for after the body is written, for each part.
        """
        is_symbolic = not isinstance(count, int)
        chunks = self.decision.chunks if is_symbolic else min(self.decision.chunks, count)
        if chunks <= 1:
            loop = self.loop(count, body)
            return sequence([*around(), loop])
        if is_symbolic:
            return self._in_symbolic_chunks(self.number(count), chunks, body, around)
        size = -(-count // chunks)

        def part(chunk: tvm.ir.Expr) -> tirx.Stmt:
            start = chunk * self.number(size)
            length: Any = self.number(size)
            if count % size:
                length = tirx.Min(length, self.number(count) - start)
            loop = self.loop(length, lambda i: body(start + i))
            return sequence([*around(), loop])

        return self.loop(-(-count // size), part, tirx.ForKind.PARALLEL)

    def _in_symbolic_chunks(
        self, count: tvm.ir.Expr, chunks: int, body: Body, around: Callable[[], list[tirx.Stmt]]
    ) -> tirx.Stmt:
        size = tirx.truncdiv(count + (chunks - 1), self.number(chunks))

        def part(chunk: tvm.ir.Expr) -> tirx.Stmt:
            length = tirx.Max(tirx.Min(size, count - chunk * size), self.number(0))
            loop = self.loop(length, lambda i: body(chunk * size + i))
            return sequence([*around(), loop])

        return self.loop(chunks, part, tirx.ForKind.PARALLEL)


def with_body(
    func: tirx.PrimFunc, body: tirx.Stmt, buffers: Sequence[tvm.ir.Var] = ()
) -> tirx.PrimFunc:
    """``func`` with another body that needs ``buffers``, in a root block as schedules expect it."""
    root = s_tir.SBlock([], [], [], "root", body, None, list(buffers))
    return func.with_body(s_tir.SBlockRealize([], tirx.const(True, "bool"), root))


def assign(
    buffers: Sequence[tvm.ir.Var], values: Sequence[tvm.ir.Expr], index: tvm.ir.Expr
) -> tirx.Stmt:
    """Stores all values, none of which is to see what another one stores."""
    stores = []
    left = list(zip(buffers, values, strict=True))
    while left:
        last = next((pair for pair in left if not _is_read_by_others(pair[0], left)), None)
        if last is None:
            break
        stores.append(tirx.BufferStore(last[0], last[1], [index]))
        left = [pair for pair in left if pair is not last]
    # What reads each other needs names first. They cost TVM's passes much time, so only then.
    names = [tirx.Var(f"new{i}", str(value.ty)) for i, (_, value) in enumerate(left)]
    binds = [tirx.Bind(name, value) for name, (_, value) in zip(names, left, strict=True)]
    named = [tirx.BufferStore(b, name, [index]) for name, (b, _) in zip(names, left, strict=True)]
    return sequence([*stores, *binds, *named])


def _is_read_by_others(buffer: tvm.ir.Var, stores: Sequence[tuple[tvm.ir.Var, Any]]) -> bool:
    key = buffer_key(buffer)
    return any(
        buffer_key(load.source) == key
        for other, value in stores
        if not other.same_as(buffer)
        for load in nodes(value, tvm.ir.TensorLoad)
    )


# Runs several rows of a row kernel at once, one in each lane of a vector.


# Vectors of one statement: accumulators of a reduction stay in registers, and hide its latency.
IN_REGISTERS = 8

# Steps of a reduction between loading and storing partial results that are not in registers.
STEPS = 4


class AcrossRows(Writer):
    """Tiles of neighbouring rows; the tail runs in narrower tiles."""

    def write(self) -> tirx.Stmt:
        """The loops over all rows."""
        rows = self.kernel.rows
        first = dense_suffix(self.kernel, rows, self.kernel.blocks)
        outer, inner = rows[:first], rows[first:]
        count = math.prod(axis.extent for axis in outer)
        decision = self.decision
        length = math.prod(axis.extent for axis in inner)
        if not (isinstance(count, int) and isinstance(length, int)):
            return self._symbolic(outer, inner, count, length)
        parts = stretches_across(length, count, decision.lanes, decision.registers, decision.chunks)
        if count >= decision.chunks:
            # Whole groups of rows for each thread: the narrow tiles are spread as well.
            return self._over_groups(outer, inner, count, parts)
        nests = [self._over_tiles(outer, inner, count, part) for part in parts]
        return sequence(nests)

    def _symbolic(
        self, outer: Sequence[LoopAxis], inner: Sequence[LoopAxis], count: Any, length: Any
    ) -> tirx.Stmt:
        """Wide tiles of all groups for threads, then the tails, of which each thread has groups."""
        lanes = self.decision.lanes
        widths = [lanes * self.decision.registers, lanes, *narrower(lanes)]
        wide, *tails = symbolic_stretches(length, widths, self.dtype)
        nests = [self._over_tiles(outer, inner, count, wide)]
        nests += [self._over_groups(outer, inner, count, [part]) for part in tails]
        return sequence(nests)

    def _over_groups(
        self, outer: Sequence[LoopAxis], inner: Sequence[LoopAxis], count: int, parts: Any
    ) -> tirx.Stmt:
        tiles = [(_AcrossRows(self.kernel, self.decision, part[2]), part) for part in parts]

        def group(i: tvm.ir.Expr) -> tirx.Stmt:
            values = unfused(i, outer, self.dtype)
            return sequence([tile.loop_over(part, inner, values) for tile, part in tiles])

        return self.in_chunks(
            count, group, lambda: [stmt for tile, _ in tiles for stmt in tile.allocated([])]
        )

    def _over_tiles(
        self,
        outer: Sequence[LoopAxis],
        inner: Sequence[LoopAxis],
        count: int,
        part: tuple[int, int, int],
    ) -> tirx.Stmt:
        """One width of tiles of all groups; only whole tiles are worth handing to threads."""
        start, many, width = part
        serial = replace(self.decision, chunks=1)
        decision = self.decision if start == 0 else serial
        tile = _AcrossRows(self.kernel, decision, width)
        alone = isinstance(count, int) and count == 1
        # Never zero inside of the loop, at which TVM would stop in a branch for few elements.
        each = self.number(many if isinstance(many, int) else tirx.max(many, self.number(1)))

        def iteration(i: tvm.ir.Expr) -> tirx.Stmt:
            group, place = (self.number(0), i) if alone else (i // each, i % each)
            base = self.number(start) + place * self.number(width)
            return tile.rows(base, inner, unfused(group, outer, self.dtype))

        return tile.in_chunks(count * many, iteration, lambda: tile.allocated([]))


class _AcrossRows(Writer):
    """As many neighbouring rows as there are lanes in work."""

    def __init__(self, kernel: RowKernel, decision: RowDecision, width: int) -> None:
        super().__init__(kernel, decision)
        self.width = width

    def loop_over(
        self, part: tuple[int, int, int], inner: Sequence[LoopAxis], values: dict[int, Any]
    ) -> tirx.Stmt:
        """All tiles of one width."""
        start, many, width = part

        def iteration(i: tvm.ir.Expr) -> tirx.Stmt:
            return self.rows(self.number(start) + i * self.number(width), inner, values)

        return self.loop(many, iteration)

    def rows(
        self, base: tvm.ir.Expr, inner: Sequence[LoopAxis], values: dict[int, Any]
    ) -> tirx.Stmt:
        """All blocks for the rows from ``base`` on."""

        def at_lane(lane: tvm.ir.Expr) -> dict[int, Any]:
            return {**values, **unfused(base + lane, inner, self.dtype)}

        return sequence(
            [
                stmt
                for block in self.kernel.blocks
                for stmt in (self._reduce if block.starts else self._each)(block, at_lane)
            ]
        )

    def _each(self, block: RowBlock, at_lane: Any) -> list[tirx.Stmt]:
        def element(columns: dict[int, Any], lane: tvm.ir.Expr) -> tirx.Stmt:
            point = {**at_lane(lane), **columns}
            return sequence(
                [self.put(s, self.at(s.value, point, lane), point, lane) for s in block.stores]
            )

        return [self.nest(block.columns, lambda v: self._vectors(lambda lane: element(v, lane)))]

    def _nest_by_steps(
        self, columns: Sequence[LoopAxis], update: Callable[[dict[int, Any], Any], tirx.Stmt]
    ) -> tirx.Stmt:
        """The loops of a reduction, innermost the vectors of the tile.

        A tile wider than the registers keeps its partial results in cache: they are loaded and
        stored once for several steps along the last of the loops.
        """
        if not columns or self.width <= IN_REGISTERS * self.decision.lanes:
            return self.nest(columns, lambda v: self._vectors(lambda lane: update(v, lane)))
        last = columns[-1]

        def steps(values: dict[int, Any]) -> tirx.Stmt:
            done = []
            for start, count, size in stretches(last.extent, [STEPS]):

                def part(i: tvm.ir.Expr, s: int = start, n: int = size) -> tirx.Stmt:
                    first = self.number(s) + i * self.number(n)

                    def some(lane: tvm.ir.Expr) -> tirx.Stmt:
                        at = [first + self.number(k) for k in range(n)]
                        return sequence(
                            [update({**values, buffer_key(last.var): k}, lane) for k in at]
                        )

                    return self._vectors(some)

                done.append(self.loop(count, part))
            return sequence(done)

        return self.nest(columns[:-1], steps)

    def _vectors(self, body: Body) -> tirx.Stmt:
        """Vectors over all rows of the tile."""
        done = []
        # Powers of two: LLVM keeps longer vectors of other lengths in memory.
        widths = [self.decision.lanes * n for n in (IN_REGISTERS, 4, 2, 1)]
        for start, count, width in stretches(self.width, widths):

            def part(i: tvm.ir.Expr, s: int = start, w: int = width) -> tirx.Stmt:
                begin = self.number(s) + i * self.number(w)
                return self.vector(w, lambda lane: body(begin + lane))

            done.append(self.loop(count, part))
        return sequence(done)

    def _reduce(self, block: RowBlock, at_lane: Any) -> list[tirx.Stmt]:
        partial = self.partial(block, self.width)
        buffers = [store.buffer for store in block.stores]

        def update(columns: dict[int, Any], lane: tvm.ir.Expr) -> tirx.Stmt:
            point = {**at_lane(lane), **columns}
            old = [tirx.BufferLoad(p, [lane]) for p in partial]
            new = [self.at(accumulated(s.value, buffers, old), point, lane) for s in block.stores]
            return assign(partial, new, lane)

        def finish(lane: tvm.ir.Expr) -> tirx.Stmt:
            point = at_lane(lane)
            return sequence(
                [
                    self.put(s, tirx.BufferLoad(p, [lane]), point, lane)
                    for s, p in zip(block.stores, partial, strict=True)
                ]
            )

        return [
            *self.started(partial, block, self.width),
            self._nest_by_steps(block.columns, update),
            self._vectors(finish),
        ]


# Runs a row kernel one row after the other, with vectors along the row.


SERIAL = tirx.ForKind.SERIAL
ColumnBody = Callable[[dict[int, Any], Any], tirx.Stmt]
Columns = tuple[Sequence[LoopAxis], Sequence[LoopAxis]]


class AlongRows(Writer):
    """Some rows at a time, each on its own; the tail runs row by row."""

    def write(self) -> tirx.Stmt:
        """The loop over all rows."""
        nests = []
        widths = [self.decision.together, 1]
        for part in symbolic_stretches(self.kernel.count, widths, self.dtype):
            # Only the first of them is worth handing to threads.
            is_first = isinstance(part[0], int) and part[0] == 0
            decision = self.decision if is_first else replace(self.decision, chunks=1)
            nests.append(AlongRows(self.kernel, decision)._rows(part))
        return sequence(nests)

    def _rows(self, part: Stretch) -> tirx.Stmt:
        start, count, width = part
        passes = passes_of(self.kernel)
        rows = [_Row(self.kernel, self.decision) for _ in range(width)]

        def some(i: tvm.ir.Expr) -> tirx.Stmt:
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

        def element(at: dict[int, Any], lane: tvm.ir.Expr) -> tirx.Stmt:
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
        length = math.prod(axis.extent for axis in inner)
        is_symbolic = not isinstance(length, int)
        widths = [*widths, *narrower(self.decision.lanes)] if is_symbolic else widths
        parts = symbolic_stretches(length, widths, self.dtype)

        def row(at: dict[int, Any]) -> tirx.Stmt:
            def at_row(columns: dict[int, Any], lane: tvm.ir.Expr) -> tirx.Stmt:
                return body({**at, **columns}, lane)

            done = []
            narrow = 0
            for part in parts:
                # How many narrower vectors there are is not known: all count their lanes from 0.
                whole = is_symbolic or part[2] == widths[0]
                lanes = None if whole else narrow
                done.append(self._piece(part, lanes, inner, at_row))
                narrow += 0 if whole else part[1] * part[2]
            return sequence(done)

        return self.nest(outer, row)

    def _piece(
        self, part: Stretch, lanes: int | None, inner: Sequence[LoopAxis], body: ColumnBody
    ) -> tirx.Stmt:
        start, count, width = part

        def step(i: tvm.ir.Expr) -> tirx.Stmt:
            offset = i * self.number(width)

            def counted(lane: tvm.ir.Expr) -> tvm.ir.Expr:
                return lane if lanes is None else self.number(lanes) + offset + lane

            def iteration(lane: tvm.ir.Expr) -> tirx.Stmt:
                position = self.number(start) + offset + lane
                return body(unfused(position, inner, self.dtype), counted(lane))

            return self.vector(width, iteration)

        # Positions among partial results must be constants for these to stay in registers.
        return self.loop(count, step, SERIAL if lanes is None else tirx.ForKind.UNROLLED)

    def _reduce(
        self, block: RowBlock, before: RowBlock | None, combine: Combine, values: dict[int, Any]
    ) -> list[tirx.Stmt]:
        """Partial results in the lanes of several vectors, then one of them by halving."""
        columns = self._split_columns([block] if before is None else [block, before])
        # What comes before takes long enough to hide the latency of one accumulator.
        registers = self.decision.registers if before is None else 1
        length = math.prod(axis.extent for axis in columns[1])
        lanes, size = partial_size(length, self.decision.lanes, registers)
        partial = self.partial(block, size)
        buffers = [store.buffer for store in block.stores]

        def update(at: dict[int, Any], lane: tvm.ir.Expr) -> tirx.Stmt:
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

            def step(lane: tvm.ir.Expr, half: int = size) -> tirx.Stmt:
                left = [tirx.BufferLoad(p, [lane]) for p in partial]
                right = [tirx.BufferLoad(p, [lane + self.number(half)]) for p in partial]
                return assign(partial, combine(left, right), lane)

            steps.append(self.vector(size, step))
        return steps


# The loops of a row kernel as a decision wants them.


def rows_nest(kernel: RowKernel, decision: RowDecision) -> tirx.Stmt:
    """All loops of ``kernel``."""
    writer = AcrossRows if decision.across else AlongRows
    return writer(kernel, decision).write()

"""Writes the loops of a row kernel: what running along the rows and across them share."""

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.llvm.loop_nest import largest_divisor
from tvm_ext.tir_schedules.llvm.row_decision import RowDecision
from tvm_ext.tir_schedules.rows.row_kernel import (
    Axis,
    RowBlock,
    RowKernel,
    Store,
    buffer_key,
    loads_of,
    product,
    substituted,
)
from tvm_ext.tir_schedules.rows.row_strides import index_in_row, sized
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

    def number(self, value: Any) -> tvm.ir.Expr:
        """A number of the type of the loops, or an expression for one."""
        return sized(value, self.dtype)

    def loop(self, extent: Any, body: Body, kind: tirx.ForKind = tirx.ForKind.SERIAL) -> tirx.Stmt:
        """A loop from 0; the body alone when it runs once."""
        if static_extent(extent) == 1:
            return body(self.number(0))
        var = tirx.Var("i", self.dtype)
        return tirx.For(var, self.number(0), self.number(extent), kind, body(var))

    def vector(self, length: int, body: Body) -> tirx.Stmt:
        """A vectorised loop."""
        return self.loop(length, body, tirx.ForKind.VECTORIZED)

    def nest(self, axes: Sequence[Axis], body: Callable[[dict[int, Any]], tirx.Stmt]) -> tirx.Stmt:
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
            size = product(shape) * self.width
            self.locals[key] = self.allocate(buffer.name, size, str(buffer.dtype))
        return self.locals[key]

    def at(self, expr: Any, values: dict[int, Any], lane: Any) -> Any:
        """``expr`` at some row and column, with inner buffers replaced by their copies."""

        def load(node: tvm.ir.TensorLoad) -> Any:
            buffer, indices = self.place(node.source, list(node.indices), lane)
            return tirx.BufferLoad(buffer, indices)

        return substituted(expr, values, load)

    def place(self, buffer: tvm.ir.Var, indices: list[Any], lane: Any) -> tuple[Any, list[Any]]:
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

    def put(self, store: Store, value: Any, values: dict[int, Any], lane: Any) -> tirx.Stmt:
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

        def fill(i: Any) -> tirx.Stmt:
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
        is_open = not isinstance(count, int)
        chunks = self.decision.chunks if is_open else min(self.decision.chunks, count)
        if chunks <= 1:
            loop = self.loop(count, body)
            return sequence([*around(), loop])
        if is_open:
            return self._in_open_chunks(self.number(count), chunks, body, around)
        size = -(-count // chunks)

        def part(chunk: Any) -> tirx.Stmt:
            start = chunk * self.number(size)
            length: Any = self.number(size)
            if count % size:
                length = tirx.Min(length, self.number(count) - start)
            loop = self.loop(length, lambda i: body(start + i))
            return sequence([*around(), loop])

        return self.loop(-(-count // size), part, tirx.ForKind.PARALLEL)

    def _in_open_chunks(
        self, count: Any, chunks: int, body: Body, around: Callable[[], list[tirx.Stmt]]
    ) -> tirx.Stmt:
        size = tirx.truncdiv(count + (chunks - 1), self.number(chunks))

        def part(chunk: Any) -> tirx.Stmt:
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


def assign(buffers: Sequence[tvm.ir.Var], values: Sequence[Any], index: Any) -> tirx.Stmt:
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
        for load in loads_of(value)
    )

"""One result from the partial results of a row's threads: by shuffles, or in shared memory."""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.tir_schedules.cuda.launch import repeated
from tvm_ext.tir_schedules.cuda.row_places import RowPlaces
from tvm_ext.tir_schedules.rows.row_combine import Combine
from tvm_ext.tir_schedules.rows.row_kernel import RowBlock
from tvm_ext.tir_schedules.statements import sequence

# Partial results whose folding is written out; more are a loop.
_MOST_UNROLLED = 16
_WARP = 32


class RowCombining(RowPlaces):
    """The combination of the results of several threads."""

    def by_shuffles(
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

        statements = [self.threads(all_threads)]
        if parts <= _WARP:
            return results, statements
        own, copy = self._in_registers(results)
        return own, [*statements, copy]

    def _in_registers(self, results: Sequence[Any]) -> tuple[list[Any], tirx.Stmt]:
        """A copy for every thread of what a reduction over a block leaves.

        TVM moves that result to shared memory only after it has decided which arrays share their
        place, and by then a value that is computed from it, like a reciprocal, may have its place:
        all threads would write there. Arrays of different types never share, so the copy goes
        through one of another type, which costs nothing.
        """
        shape = [*self.extents, 1]
        triples = []
        for result in results:
            name, dtype = str(result.name), str(result.dtype)
            bits = self.arrays.allocated(f"{name}_bits", shape, _other_type(dtype), "local")
            triples.append((result, bits, self.arrays.allocated(name, shape, dtype, "local")))

        def copy() -> tirx.Stmt:
            at = [self.y, self.x, self.number(0)]
            statements = []
            for result, bits, own in triples:
                there = _in_bits_of(str(bits.dtype), tirx.BufferLoad(result, [self.y]))
                back = _in_bits_of(str(own.dtype), tirx.BufferLoad(bits, at))
                stores = [tirx.BufferStore(bits, there, at), tirx.BufferStore(own, back, at)]
                statements += stores
            return sequence(statements)

        return [own for _, _, own in triples], self.threads(copy)

    def through_shared_memory(
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

            def more(i: Any) -> tirx.Stmt:
                left = [tirx.BufferLoad(r, at) for r in results]
                right = [tirx.BufferLoad(s, [place(i + self.number(1))]) for s in shared]
                return self._stored(results, combine(left, right), at)

            kind = tirx.ForKind.UNROLLED if parts <= _MOST_UNROLLED else tirx.ForKind.SERIAL
            return sequence([*first, repeated(parts - 1, self.dtype, more, kind)])

        return results, [self.threads(publish), self.threads(fold)]

    def _stored(self, buffers: Sequence[Any], values: Sequence[Any], at: list[Any]) -> tirx.Stmt:
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


def _iteration(var: Any, extent: int, kind: int, dtype: str) -> tirx.IterVar:
    domain = tvm.ir.Range(tirx.const(0, dtype), tirx.const(extent, dtype))
    return tirx.IterVar(domain, var, kind)


def _other_type(dtype: str) -> str:
    """A type as wide as ``dtype``."""
    if dtype == "bool":
        return "int8"
    width = tvm.DataType(dtype).bits
    return f"uint{width}" if dtype.startswith("int") else f"int{width}"


def _in_bits_of(dtype: str, value: Any) -> Any:
    """The same bits as a value of another type; bool is one byte that is 0 or 1."""
    if "bool" in (dtype, str(value.ty)):
        return tirx.Cast(dtype, value)
    return tirx.reinterpret(dtype, value)

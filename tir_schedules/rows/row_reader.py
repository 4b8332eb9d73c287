"""Reads from a kernel what it does row by row: which loops run over the rows, which along them.

Softmax and the normalisations reduce rows and then use the results for the same rows again. When
every block reads of other blocks only what belongs to its own row, the whole kernel can run for one
row after the other.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tvm
from tvm import s_tir, sym, tirx

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.rows.row_kernel import (
    Axis,
    RowBlock,
    RowKernel,
    Store,
    accesses,
    buffer_key,
    loads_of,
    substituted,
)
from tvm_ext.tir_schedules.template import NotMine


class _Mismatch(Exception):
    """The kernel is not a row kernel; carries the reason."""


def simplifier(axes: Any) -> Callable[[Any], Any]:
    """Simplifies the indices of all loads in an expression, knowing the range of each axis."""
    analyzer = sym.Analyzer()
    for axis in axes:
        analyzer.bind(axis.var, tvm.ir.Range(0, axis.extent))

    def simplified(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        return tirx.BufferLoad(load.source, [analyzer.simplify(i) for i in load.indices])

    def simplify(expr: Any) -> Any:
        if not loads_of(expr):
            return analyzer.simplify(expr)
        return substituted(expr, {}, simplified)

    return simplify


def read_rows(
    blocks: Sequence[s_tir.SBlock],
    outside: Iterable[tvm.ir.Var],
    open_rows: bool = False,
    open_columns: bool = False,
) -> RowKernel | NotMine:
    """What ``blocks`` do row by row, or why they cannot run that way.

    ``outside`` are the buffers that others see as well: parameters of the kernel, for one. With
    ``open_rows``, how many rows there are may be known in the run only; with ``open_columns``, how
    long they are as well.
    """
    try:
        return _Reader(blocks, outside, open_rows, open_columns).kernel()
    except _Mismatch as mismatch:
        return NotMine(str(mismatch))


class _Reader:
    """Finds out which variable of each block, and which dimension of each buffer, is a row."""

    def __init__(
        self,
        blocks: Sequence[s_tir.SBlock],
        outside: Iterable[tvm.ir.Var],
        open_rows: bool,
        open_columns: bool,
    ) -> None:
        self.blocks = blocks
        self.outside = {buffer_key(buffer) for buffer in outside}
        self.bodies = [_body(block) for block in blocks]
        self.written = {buffer_key(s.buffer) for stores, _ in self.bodies for s in stores}
        # Variable -> (row axis, how many of its iterations make one step of that axis).
        self.bound: dict[int, tuple[int, int]] = {}
        self.dimensions: dict[tuple[int, int], int] = {}
        self.extents = {
            buffer_key(v.var): _extent(v, open_rows, open_columns)
            for block in blocks
            for v in block.iter_vars
        }
        self.open_columns = open_columns
        dtypes = {str(v.var.ty) for block in blocks for v in block.iter_vars}
        if len(dtypes) != 1:
            raise _Mismatch("loops count in several integer types, or there are none")
        self.dtype = dtypes.pop()

    def kernel(self) -> RowKernel:
        rows = self._bind_first_reduction()
        while self._propagate(rows):
            pass
        blocks = [
            self._block(block, body, rows)
            for block, body in zip(self.blocks, self.bodies, strict=True)
        ]
        kernel = RowKernel(tuple(rows), tuple(blocks), {}, self.dtype)
        self._check_rows(kernel)
        return kernel

    def _bind_first_reduction(self) -> list[Axis]:
        first = next((b for b in self.blocks if not _is_data_parallel(b)), None)
        if first is None:
            raise _Mismatch("the kernel has no reduction")
        rows: list[Axis] = []
        for iter_var in first.iter_vars:
            extent = self.extents[buffer_key(iter_var.var)]
            several = not isinstance(extent, int) or extent > 1
            if iter_var.iter_type == tirx.IterVar.DataPar and several:
                self.bound[buffer_key(iter_var.var)] = (len(rows), 1)
                rows.append(Axis(tirx.Var(f"row{len(rows)}", self.dtype), extent))
        return rows

    def _propagate(self, rows: list[Axis]) -> bool:
        """From variables to the dimensions that they index, and back; whether that found any."""
        before = len(self.bound) + len(self.dimensions)
        for (stores, _), block in zip(self.bodies, self.blocks, strict=True):
            axes = [Axis(v.var, self.extents[buffer_key(v.var)]) for v in block.iter_vars]
            simplify = simplifier(axes)
            for buffer, indices in accesses(stores):
                if buffer_key(buffer) in self.written:
                    for dimension, index in enumerate(indices):
                        self._match(buffer_key(buffer), dimension, simplify(index), rows)
        return len(self.bound) + len(self.dimensions) > before

    def _match(self, buffer: int, dimension: int, index: Any, rows: list[Axis]) -> None:
        """Makes ``index`` and the dimension that it indexes know of each other."""
        step = 1
        if isinstance(index, tirx.FloorDiv) and static_extent(index.b) is not None:
            index, step = index.a, static_extent(index.b) or 1
        if not isinstance(index, tirx.Var):
            return
        axis = self.dimensions.get((buffer, dimension))
        known = self.bound.get(buffer_key(index))
        if axis is None and known is not None and known[1] == step:
            self.dimensions[buffer, dimension] = known[0]
            return
        if axis is None or known is not None:
            return
        if _same_count(self.extents[buffer_key(index)], rows[axis].extent * step):
            self.bound[buffer_key(index)] = (axis, step)

    def _block(
        self, block: s_tir.SBlock, body: tuple[list[Store], list[Any]], rows: list[Axis]
    ) -> RowBlock:
        """The block in the variables of rows and columns."""
        values: dict[int, Any] = {}
        columns: list[Axis] = []
        seen: list[int] = []
        for iter_var in block.iter_vars:
            key = buffer_key(iter_var.var)
            axis, step = self.bound.get(key, (None, self.extents[key]))
            if not (isinstance(step, int) or self.open_columns):
                raise _Mismatch("a loop along the rows has a symbolic extent")
            value: Any = tirx.const(0, self.dtype)
            several = not isinstance(step, int) or step > 1
            if several:
                value = tirx.Var(f"column{len(columns)}", self.dtype)
                columns.append(Axis(value, step))
            if axis is not None:
                seen.append(axis)
                value = rows[axis].var * tirx.const(step, self.dtype) + value
            elif several and _is_result_axis(block, iter_var):
                raise _Mismatch("a reduction has several results for one row")
            values[key] = value
        if sorted(seen) != list(range(len(rows))):
            raise _Mismatch("a block does not run over the rows that another one reduces")
        simplify = simplifier([*rows, *columns])
        stores, starts = body
        moved = [
            Store(
                store.buffer,
                tuple(simplify(substituted(index, values)) for index in store.indices),
                simplify(substituted(store.value, values)),
            )
            for store in stores
        ]
        return RowBlock(tuple(columns), tuple(moved), tuple(starts))

    def _check_rows(self, kernel: RowKernel) -> None:
        """Every read of what the kernel itself writes stays in its row."""
        read = {buffer_key(load.source) for load in kernel.loads()}
        for block in kernel.blocks:
            for buffer, indices in accesses(block.stores):
                key = buffer_key(buffer)
                outside = key in self.outside
                if key not in self.written or (outside and key not in read):
                    continue
                self._check_access(kernel, key, indices)
                if not outside:
                    kernel.inner[key] = tuple(
                        d for d in range(len(indices)) if (key, d) not in self.dimensions
                    )

    def _check_access(self, kernel: RowKernel, key: int, indices: Sequence[Any]) -> None:
        rows = [buffer_key(axis.var) for axis in kernel.rows]
        found = []
        for dimension, index in enumerate(indices):
            axis = self.dimensions.get((key, dimension))
            if axis is not None:
                if not isinstance(index, tirx.Var) or buffer_key(index) != rows[axis]:
                    raise _Mismatch("a block reads other rows than its own")
                found.append(axis)
            elif {buffer_key(v) for v in tirx.analysis.undefined_vars(index)} & set(rows):
                raise _Mismatch("a block mixes rows and columns in one index")
        if sorted(found) != list(range(len(rows))):
            raise _Mismatch("a buffer inside the kernel is shared by several rows")


def _extent(iter_var: tirx.IterVar, open_rows: bool, open_columns: bool) -> Any:
    extent, start = static_extent(iter_var.dom.extent), static_extent(iter_var.dom.min)
    parallel = iter_var.iter_type == tirx.IterVar.DataPar
    may_be_open = open_rows if parallel else open_columns
    if start != 0 or (extent is None and not may_be_open):
        raise _Mismatch("a loop has a symbolic extent")
    if extent == 0:
        raise _Mismatch("a loop has no iterations")
    if extent is None:
        return iter_var.dom.extent
    if iter_var.iter_type not in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce):
        raise _Mismatch("a loop is neither data-parallel nor a reduction")
    return extent


def _same_count(count: Any, other: Any) -> bool:
    if isinstance(count, int) and isinstance(other, int):
        return count == other
    return bool(sym.Analyzer().can_prove_equal(count, other))


def _is_data_parallel(block: s_tir.SBlock) -> bool:
    return all(v.iter_type == tirx.IterVar.DataPar for v in block.iter_vars)


def _is_result_axis(block: s_tir.SBlock, iter_var: tirx.IterVar) -> bool:
    return not _is_data_parallel(block) and iter_var.iter_type == tirx.IterVar.DataPar


def _body(block: s_tir.SBlock) -> tuple[list[Store], list[Any]]:
    """What a block stores, and the values a reduction starts from."""
    names: dict[int, Any] = {}
    stores: list[Store] = []
    for stmt in _flat(block.body):
        if isinstance(stmt, tirx.Bind):
            names[buffer_key(stmt.var)] = stmt.value
        elif isinstance(stmt, tirx.BufferStore):
            value = substituted(stmt.value, names)
            stores.append(Store(stmt.buffer, tuple(stmt.indices), value))
        else:
            raise _Mismatch("a block holds more than stores")
    if block.init is None:
        return stores, []
    starts = {buffer_key(stmt.buffer): stmt.value for stmt in _flat(block.init)}
    return stores, [starts[buffer_key(store.buffer)] for store in stores]


def _flat(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    return list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else [stmt]

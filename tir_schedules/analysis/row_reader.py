"""Recognises row kernels: softmax, normalisations, reductions.

Softmax and the normalisations reduce rows and then use the results for the same rows again. When
every block reads of other blocks only what belongs to its own row, the whole kernel can run for one
row after the other. What does not change along a row is computed once; products and windows are
left to templates that tile.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import s_tir, sym, tirx
from tvm_ffi import structural_equal, structural_mutate

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    flat_address,
    is_compact,
    is_conditional,
    kernel_blocks,
    nodes,
    operands_of,
    runs_in_any_order,
    slope,
    static_extent,
    static_product,
)
from tvm_ext.tir_schedules.analysis.row_kernel import (
    RowBlock,
    RowKernel,
    Store,
    accesses,
    buffer_key,
    combine_of,
    substituted,
)


def simplifier(axes: Any) -> Callable[[Any], Any]:
    """Simplifies the indices of all loads in an expression, knowing the range of each axis."""
    analyzer = sym.Analyzer()
    for axis in axes:
        analyzer.bind(axis.var, tvm.ir.Range(0, axis.extent))

    def simplified(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        return tirx.BufferLoad(load.source, [analyzer.simplify(i) for i in load.indices])

    def simplify(expr: tvm.ir.Expr) -> tvm.ir.Expr:
        if not nodes(expr, tvm.ir.TensorLoad):
            return analyzer.simplify(expr)
        return substituted(expr, {}, simplified)

    return simplify


def result_strides(store: tirx.BufferStore, axes: Sequence[LoopAxis]) -> list[int | None]:
    """Elements by which the address of a result moves with each axis; None where by no number."""
    if not is_compact(store.buffer):
        return [None] * len(axes)
    address = simplifier(axes)(flat_address(store.buffer, store.indices))
    return [slope(address, axis.var) for axis in axes]


def read_rows(
    blocks: Sequence[s_tir.SBlock],
    outside: Iterable[tvm.ir.Var],
    symbolic_rows: bool = False,
    symbolic_columns: bool = False,
) -> RowKernel:
    """What ``blocks`` do row by row. Raises NotApplicable where they cannot run that way.

    ``outside`` are the buffers that others see as well: parameters of the kernel, for one. With
    ``symbolic_rows``, how many rows there are may be known in the run only; with
    ``symbolic_columns``, how long they are as well.
    """
    return _RowReader(blocks, outside, symbolic_rows, symbolic_columns).kernel()


def _variable_and_step(index: tvm.ir.Expr) -> tuple[tvm.ir.Var | None, int]:
    """``index`` as a variable over a number; None for one that is anything else."""
    step = 1
    if isinstance(index, tirx.FloorDiv) and static_extent(index.b) is not None:
        index, step = index.a, static_extent(index.b) or 1
    return (index if isinstance(index, tirx.Var) else None), step


class _RowReader:
    """Finds out which variable of each block, and which dimension of each buffer, is a row."""

    def __init__(
        self,
        blocks: Sequence[s_tir.SBlock],
        outside: Iterable[tvm.ir.Var],
        symbolic_rows: bool,
        symbolic_columns: bool,
    ) -> None:
        self.blocks = blocks
        self.outside = {buffer_key(buffer) for buffer in outside}
        self.bodies = [_body(block) for block in blocks]
        self.written = {buffer_key(s.buffer) for stores, _ in self.bodies for s in stores}
        # Variable -> (row axis, how many of its iterations make one step of that axis).
        self.bound: dict[int, tuple[int, int]] = {}
        self.dimensions: dict[tuple[int, int], int] = {}
        self.extents = {
            buffer_key(v.var): _extent(v, symbolic_rows, symbolic_columns)
            for block in blocks
            for v in block.iter_vars
        }
        self.symbolic_columns = symbolic_columns
        dtypes = {str(v.var.ty) for block in blocks for v in block.iter_vars}
        if len(dtypes) != 1:
            raise NotApplicable("loops count in several integer types, or there are none")
        self.dtype = dtypes.pop()

    def kernel(self) -> RowKernel:
        rows = self._bind_first_reduction()
        self._propagate(rows)
        blocks = [
            self._block(block, body, rows)
            for block, body in zip(self.blocks, self.bodies, strict=True)
        ]
        kernel = RowKernel(tuple(rows), tuple(blocks), {}, self.dtype)
        self._check_rows(kernel)
        return kernel

    def _bind_first_reduction(self) -> list[LoopAxis]:
        first = next((b for b in self.blocks if not runs_in_any_order(b)), None)
        if first is None:
            raise NotApplicable("the kernel has no reduction")
        rows: list[LoopAxis] = []
        for iter_var in first.iter_vars:
            extent = self.extents[buffer_key(iter_var.var)]
            several = not isinstance(extent, int) or extent > 1
            if iter_var.iter_type == tirx.IterVar.DataPar and several:
                self.bound[buffer_key(iter_var.var)] = (len(rows), 1)
                rows.append(LoopAxis(tirx.Var(f"row{len(rows)}", self.dtype), extent))
        return rows

    def _indexed(self) -> list[tuple[int, int, tvm.ir.Var, int]]:
        """Buffers inside of the kernel, their dimensions, and the variables that index these.

        The number says how many iterations of the variable go to one position.
        """
        found: dict[tuple[int, int, int, int], tvm.ir.Var] = {}
        for (stores, _), block in zip(self.bodies, self.blocks, strict=True):
            axes = [LoopAxis(v.var, self.extents[buffer_key(v.var)]) for v in block.iter_vars]
            simplify = simplifier(axes)
            for buffer, indices in accesses(stores):
                if buffer_key(buffer) not in self.written:
                    continue
                for dimension, index in enumerate(indices):
                    variable, step = _variable_and_step(simplify(index))
                    if variable is not None:
                        key = (buffer_key(buffer), dimension, buffer_key(variable), step)
                        found[key] = variable
        return [(buffer, d, variable, step) for (buffer, d, _, step), variable in found.items()]

    def _propagate(self, rows: list[LoopAxis]) -> None:
        """From variables to the dimensions that they index, and back, as long as that finds any."""
        indexed, before = self._indexed(), -1
        while len(self.bound) + len(self.dimensions) > before:
            before = len(self.bound) + len(self.dimensions)
            for buffer, dimension, variable, step in indexed:
                self._match(buffer, dimension, variable, step, rows)

    def _match(
        self, buffer: int, dimension: int, variable: tvm.ir.Var, step: int, rows: list[LoopAxis]
    ) -> None:
        """Makes a variable and the dimension that it indexes know of each other."""
        axis = self.dimensions.get((buffer, dimension))
        known = self.bound.get(buffer_key(variable))
        if axis is None and known is not None and known[1] == step:
            self.dimensions[buffer, dimension] = known[0]
            return
        if axis is None or known is not None:
            return
        if _same_count(self.extents[buffer_key(variable)], rows[axis].extent * step):
            self.bound[buffer_key(variable)] = (axis, step)

    def _block(
        self, block: s_tir.SBlock, body: tuple[list[Store], list[Any]], rows: list[LoopAxis]
    ) -> RowBlock:
        """The block in the variables of rows and columns."""
        values: dict[int, Any] = {}
        columns: list[LoopAxis] = []
        seen: list[int] = []
        for iter_var in block.iter_vars:
            key = buffer_key(iter_var.var)
            axis, step = self.bound.get(key, (None, self.extents[key]))
            if not (isinstance(step, int) or self.symbolic_columns):
                raise NotApplicable("a loop along the rows has a symbolic extent")
            value: Any = tirx.const(0, self.dtype)
            several = not isinstance(step, int) or step > 1
            if several:
                value = tirx.Var(f"column{len(columns)}", self.dtype)
                columns.append(LoopAxis(value, step))
            if axis is not None:
                seen.append(axis)
                value = rows[axis].var * tirx.const(step, self.dtype) + value
            elif several and _is_result_axis(block, iter_var):
                raise NotApplicable("a reduction has several results for one row")
            values[key] = value
        if sorted(seen) != list(range(len(rows))):
            raise NotApplicable("a block does not run over the rows that another one reduces")
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

    def _check_access(self, kernel: RowKernel, key: int, indices: Sequence[tvm.ir.Expr]) -> None:
        rows = [buffer_key(axis.var) for axis in kernel.rows]
        found = []
        for dimension, index in enumerate(indices):
            axis = self.dimensions.get((key, dimension))
            if axis is not None:
                if not isinstance(index, tirx.Var) or buffer_key(index) != rows[axis]:
                    raise NotApplicable("a block reads other rows than its own")
                found.append(axis)
            elif {buffer_key(v) for v in tirx.analysis.undefined_vars(index)} & set(rows):
                raise NotApplicable("a block mixes rows and columns in one index")
        if sorted(found) != list(range(len(rows))):
            raise NotApplicable("a buffer inside the kernel is shared by several rows")


def _extent(iter_var: tirx.IterVar, symbolic_rows: bool, symbolic_columns: bool) -> Any:
    extent, start = static_extent(iter_var.dom.extent), static_extent(iter_var.dom.min)
    parallel = iter_var.iter_type == tirx.IterVar.DataPar
    may_be_symbolic = symbolic_rows if parallel else symbolic_columns
    if start != 0 or (extent is None and not may_be_symbolic):
        raise NotApplicable("a loop has a symbolic extent")
    if extent == 0:
        raise NotApplicable("a loop has no iterations")
    if extent is None:
        return iter_var.dom.extent
    if iter_var.iter_type not in (tirx.IterVar.DataPar, tirx.IterVar.CommReduce):
        raise NotApplicable("a loop is neither data-parallel nor a reduction")
    return extent


def _same_count(count: Any, other: Any) -> bool:
    if isinstance(count, int) and isinstance(other, int):
        return count == other
    return bool(sym.Analyzer().can_prove_equal(count, other))


def _is_result_axis(block: s_tir.SBlock, iter_var: tirx.IterVar) -> bool:
    return not runs_in_any_order(block) and iter_var.iter_type == tirx.IterVar.DataPar


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
            raise NotApplicable("a block holds more than stores")
    if block.init is None:
        return stores, []
    starts = {buffer_key(stmt.buffer): stmt.value for stmt in _flat(block.init)}
    return stores, [starts[buffer_key(store.buffer)] for store in stores]


def _flat(stmt: tirx.Stmt) -> list[tirx.Stmt]:
    return list(stmt.seq) if isinstance(stmt, tirx.SeqStmt) else [stmt]


# Which row kernels are better left to templates that tile: products and windows.


_SEVERAL_ROWS = "a reduction reads its input for several rows, as windows do"
PRODUCT = "a reduction multiplies with something that other rows need as well"


def refuse_early(sch: s_tir.Schedule) -> None:
    """Raises what ``refuse_rows`` would for convolutions and matmuls, at little cost."""
    for block in kernel_blocks(sch):
        stmt = sch.get(block)
        if runs_in_any_order(stmt):
            continue
        iterations = static_product(v.dom.extent for v in stmt.iter_vars)
        sizes = [static_product(read.source.shape) for read in operands_of(stmt)]
        if iterations is not None and all(size not in (None, iterations) for size in sizes):
            raise NotApplicable(_SEVERAL_ROWS)


def refuse_rows(kernel: RowKernel, most_mixed: int = 1) -> None:
    """Raises NotApplicable where running along or across the rows is not good for ``kernel``.

    ``most_mixed`` is how many indices of an input may mix rows and columns, as the channel of a
    group normalisation does; with more of them it is a window, even where windows do not overlap.
    """
    for block in kernel.blocks:
        if block.starts and combine_of(block) is None:
            raise NotApplicable("partial results of a reduction cannot be combined")
        if block.starts and not _reads_once(kernel, block, most_mixed):
            raise NotApplicable(_SEVERAL_ROWS)
        if block.starts and is_matmul(kernel, block):
            raise NotApplicable(PRODUCT)


def is_matmul(kernel: RowKernel, block: RowBlock) -> bool:
    """Whether a factor of the reduced terms serves several rows, as in a matmul."""
    rows = {buffer_key(axis.var) for axis in kernel.rows}
    columns = {buffer_key(axis.var) for axis in block.columns}
    factors = [
        side
        for store in block.stores
        for node in nodes(store.value, tirx.Mul)
        for side in (node.a, node.b)
    ]
    for load in (load for factor in factors for load in nodes(factor, tvm.ir.TensorLoad)):
        used = {
            buffer_key(v) for index in load.indices for v in tirx.analysis.undefined_vars(index)
        }
        if used & columns and not rows <= used:
            return True
    return False


def _reads_once(kernel: RowKernel, block: RowBlock, most_mixed: int) -> bool:
    """Whether some input has exactly one element for every step of the reduction."""
    rows = {buffer_key(axis.var) for axis in kernel.rows}
    columns = {buffer_key(axis.var) for axis in block.columns}
    steps = [axis.extent for axis in (*kernel.rows, *block.columns)]
    own = {buffer_key(store.buffer) for store in block.stores}
    loads = [load for store in block.stores for load in nodes(store.value, tvm.ir.TensorLoad)]
    for load in (load for load in loads if buffer_key(load.source) not in own):
        used = [_variables(index) for index in load.indices]
        mixed = sum(bool(u & rows and u & columns) for u in used)
        if not rows | columns <= set().union(*used) or mixed > most_mixed:
            continue
        if _same_product(load.source.shape, steps):
            return True
    return False


def _same_product(sizes: Iterable[Any], others: Iterable[Any]) -> bool:
    """Whether two products of sizes are equal, their symbolic factors in any order."""
    known, factors = _factors(sizes)
    other_known, other_factors = _factors(others)
    rest = []
    for factor in factors:
        equal = (i for i, f in enumerate(other_factors) if structural_equal(f, factor))
        position = next(equal, None)
        if position is None:
            rest.append(factor)
        else:
            del other_factors[position]
    left, right = math.prod(rest, start=known), math.prod(other_factors, start=other_known)
    return _same_count(left, right)


def _factors(sizes: Iterable[Any]) -> tuple[int, list[tvm.ir.Expr]]:
    """What is known of a product, and its other factors."""
    known, factors = 1, []
    waiting = list(sizes)
    while waiting:
        size = waiting.pop()
        if isinstance(size, tirx.Mul):
            waiting += [size.a, size.b]
            continue
        count = size if isinstance(size, int) else static_extent(size)
        if count is None:
            factors.append(size)
        else:
            known *= count
    return known, factors


def _variables(index: tvm.ir.Expr) -> set[int]:
    return {buffer_key(v) for v in tirx.analysis.undefined_vars(index)}


# Computes once a row what does not change along it.


_RECIPROCAL_TYPES = ("float32", "float64")


def hoisted(kernel: RowKernel) -> RowKernel:
    """The kernel with calls and divisions that only depend on the row in blocks of their own.

    ``x / s`` with the same ``s`` for the whole row becomes ``x * (1 / s)``: one more rounding, and
    a division, ten times as slow as a product, less for every element. It differs by more only
    where ``1 / s`` is no normal number (``s`` below 3e-39 or above 8e37).
    """
    blocks: list[RowBlock] = []
    inner = dict(kernel.inner)
    for block in kernel.blocks:
        if not block.columns:
            blocks.append(block)
            continue
        visitor = _Hoist(block, kernel.index_dtype)
        stores = tuple(replace(s, value=visitor.visited(s.value)) for s in block.stores)
        for store in visitor.hoisted:
            inner[buffer_key(store.buffer)] = (0,)
            blocks.append(RowBlock((), (store,), ()))
        blocks.append(replace(block, stores=stores))
    return replace(kernel, blocks=tuple(blocks), inner=inner)


class _Hoist:
    def __init__(self, block: RowBlock, index_dtype: str) -> None:
        # What a reduction has accumulated changes along the row as well.
        changing = [axis.var for axis in block.columns]
        changing += [store.buffer for store in block.stores] if block.starts else []
        self.changing = {buffer_key(var) for var in changing}
        self.zero = tirx.const(0, index_dtype)
        self.hoisted: list[Store] = []

    def visited(self, value: tvm.ir.Expr) -> tvm.ir.Expr:
        return structural_mutate(value, [(tvm.ir.Expr, self._visit)])

    def _visit(self, node: tvm.ir.Expr, mutator: Any) -> tvm.ir.Expr:
        if isinstance(node, tvm.ir.TensorLoad | tvm.ir.Var):
            return node
        if is_conditional(node):
            # What is under a condition may only be computed where it holds.
            return node
        if self._is_fixed(node):
            return self._once(node) if _is_costly(node) else node
        if isinstance(node, tirx.Div) and self._is_fixed(node.b) and _has_reciprocal(node.b):
            one = tirx.const(1.0, str(node.b.ty))
            return mutator.mutate(node.a) * self._once(tirx.Div(one, node.b))
        return mutator.default_mutate(node)

    def _is_fixed(self, node: tvm.ir.Expr) -> bool:
        used = {buffer_key(var) for var in tirx.analysis.undefined_vars(node)}
        return not used & self.changing

    def _once(self, value: tvm.ir.Expr) -> tvm.ir.Expr:
        buffer = tirx.decl_buffer([1], str(value.ty), "once")
        self.hoisted.append(Store(buffer, (self.zero,), value))
        return tirx.BufferLoad(buffer, [self.zero])


def _is_costly(node: tvm.ir.Expr) -> bool:
    return bool(nodes(node, tvm.ir.Call, tirx.Div))


def _has_reciprocal(node: tvm.ir.Expr) -> bool:
    """Whether a denominator is worth its reciprocal: a constant would be rounded for nothing."""
    return str(node.ty) in _RECIPROCAL_TYPES and not isinstance(node, tirx.FloatImm)

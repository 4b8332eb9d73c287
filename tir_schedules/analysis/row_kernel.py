"""A kernel as blocks that all run over the same rows: its axes, strides and combining operators."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import sym, tirx
from tvm_ffi import WalkResult, structural_equal, structural_map, structural_mutate, structural_walk

from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    flat_address,
    linear_form,
    nodes,
    slope,
    static_extent,
)


@dataclass(frozen=True)
class Store:
    """One element that a block writes, in the variables of rows and columns."""

    buffer: tvm.ir.Var
    indices: tuple[tvm.ir.Expr, ...]
    value: tvm.ir.Expr


@dataclass(frozen=True)
class Limit:
    """Where a block has an element: ``position``, in rows and columns, is below ``length``."""

    position: tvm.ir.Expr
    length: int


@dataclass(frozen=True)
class RowBlock:
    """What one block does to one row.

    Attributes
    ----------
    columns : tuple[LoopAxis, ...]
        Its loops along the row; none for a value a row.
    stores : tuple[Store, ...]
        More than one when several results are reduced together (argmax).
    starts : tuple[Expr, ...]
        The values a reduction starts from; empty when the block does not reduce.
    limit : Limit or None
        Where the block ends, of a row whose last part is shorter than the others.
    """

    columns: tuple[LoopAxis, ...]
    stores: tuple[Store, ...]
    starts: tuple[tvm.ir.Expr, ...]
    limit: Limit | None = None

    @property
    def length(self) -> Any:
        """Elements of the row that the block works on; an expression where they are symbolic."""
        return math.prod(axis.extent for axis in self.columns)


@dataclass(frozen=True)
class RowKernel:
    """A kernel as blocks that all run over the same rows.

    Attributes
    ----------
    rows : tuple[LoopAxis, ...]
        The loops over rows, outermost first, those of extent 1 left out.
    blocks : tuple[RowBlock, ...]
        In program order.
    inner : dict[int, tuple[int, ...]]
        For each buffer that only the kernel sees, by ``buffer_key``: its dimensions that do not
        select the row.
    index_dtype : str
        Type of all loop variables.
    """

    rows: tuple[LoopAxis, ...]
    blocks: tuple[RowBlock, ...]
    inner: dict[int, tuple[int, ...]]
    index_dtype: str

    @property
    def count(self) -> Any:
        """Number of rows; an expression where it is known in the run only."""
        return math.prod(axis.extent for axis in self.rows)

    @property
    def length(self) -> int:
        """Elements of the longest row."""
        return max(block.length for block in self.blocks)

    def loads(self) -> Iterator[tvm.ir.TensorLoad]:
        """All that the blocks read."""
        for block in self.blocks:
            for store in block.stores:
                yield from nodes(store.value, tvm.ir.TensorLoad)


def is_reduction_only(kernel: RowKernel) -> bool:
    """Whether the kernel computes nothing but values of whole rows."""
    return all(block.starts or not block.columns for block in kernel.blocks)


def has_waiting_rows(kernel: RowKernel) -> bool:
    """Whether something of each column, and not of the whole row, waits between two blocks."""
    buffers = (store.buffer for block in kernel.blocks for store in block.stores)
    return any(
        static_extent(buffer.shape[dimension]) != 1
        for buffer in buffers
        for dimension in kernel.inner.get(buffer_key(buffer), ())
    )


def buffer_key(buffer: tvm.ir.Var) -> int:
    """What a dictionary knows a buffer or a variable by: comparing them makes an expression."""
    return hash(buffer)


def accesses(stores: Iterable[Store]) -> Iterator[tuple[tvm.ir.Var, tuple[Any, ...]]]:
    """All that ``stores`` write and read: buffers with indices."""
    for store in stores:
        yield store.buffer, store.indices
        for load in nodes(store.value, tvm.ir.TensorLoad):
            yield load.source, tuple(load.indices)


def substituted(
    expr: Any,
    values: Mapping[int, tvm.ir.Expr],
    load: Callable[[tvm.ir.TensorLoad], tvm.ir.Expr] = lambda node: node,
) -> Any:
    """``expr`` with other values for variables (by ``buffer_key``) and loads passed through."""
    return structural_map(
        expr,
        [
            (tvm.ir.TensorLoad, load),
            (tvm.ir.Var, lambda var: values.get(buffer_key(var), var)),
        ],
    )


# By how much the addresses of a row kernel move with its loops.


def unfused(value: tvm.ir.Expr, axes: Sequence[LoopAxis], dtype: str) -> dict[int, Any]:
    """The values of ``axes`` at one iteration of the loop that they are fused into."""
    values: dict[int, Any] = {}
    step: Any = 1
    for position, axis in enumerate(reversed(axes)):
        # A constant or an expression; of no loops inside, nothing is to be divided by.
        whole = position == 0 or (isinstance(step, int) and step == 1)
        part = value if whole else tirx.FloorDiv(value, sized(step, dtype))
        if position < len(axes) - 1:
            part = tirx.FloorMod(part, sized(axis.extent, dtype))
        values[buffer_key(axis.var)] = part
        step = step * axis.extent
    return values


def sized(count: Any, dtype: str) -> tvm.ir.Expr:
    """A number of iterations as an expression of a type."""
    return tirx.const(count, dtype) if isinstance(count, int) else count.astype(dtype)


def index_in_row(
    kernel: RowKernel, buffer: tvm.ir.Var, indices: Sequence[tvm.ir.Expr]
) -> tvm.ir.Expr:
    """The position in its row of an element of an inner buffer."""
    index: Any = tirx.const(0, kernel.index_dtype)
    for d in kernel.inner[buffer_key(buffer)]:
        size = tirx.const(static_extent(buffer.shape[d]) or 1, kernel.index_dtype)
        index = index * size + indices[d].astype(kernel.index_dtype)
    return index


def dense_suffix(kernel: RowKernel, axes: Sequence[LoopAxis], blocks: Iterable[RowBlock]) -> int:
    """Position of the first of the innermost ``axes`` that all buffers walk as if one loop.

    Loads and stores along them are then of whole vectors, or of one element. When there are none,
    the position of the first of those that at least have some stride; else of the last one.
    """
    blocks = list(blocks)
    walked = [strides(kernel, axes[first:], blocks) for first in range(len(axes))]
    for first, found in enumerate(walked):
        if all(stride in (0, 1) for stride in found):
            return first
    for first, found in enumerate(walked):
        if None not in found:
            return first
    return max(len(axes) - 1, 0)


def is_dense(kernel: RowKernel, axes: Sequence[LoopAxis], blocks: Iterable[RowBlock]) -> bool:
    """Whether the innermost of ``axes`` loads and stores whole vectors, or one element."""
    return bool(axes) and all(s in (0, 1) for s in strides(kernel, axes[-1:], blocks))


def strides(
    kernel: RowKernel, axes: Sequence[LoopAxis], blocks: Iterable[RowBlock]
) -> list[int | None]:
    """By how much each address moves with the fused loop of ``axes``; None: not by a number."""
    dtype = kernel.index_dtype
    fused = LoopAxis(tirx.Var("fused", dtype), math.prod(axis.extent for axis in axes))
    values = unfused(fused.var, axes, dtype)
    found: list[int | None] = []
    for block in blocks:
        analyzer = sym.Analyzer()
        for axis in [*kernel.rows, *block.columns, fused]:
            analyzer.bind(axis.var, tvm.ir.Range(0, axis.extent))
        for buffer, indices in accesses(block.stores):
            address = substituted(element_address(kernel, buffer, indices), values)
            found.append(slope(analyzer.simplify(address), fused.var))
    return found


def element_address(
    kernel: RowKernel, buffer: tvm.ir.Var, indices: Sequence[tvm.ir.Expr]
) -> tvm.ir.Expr:
    """The flat position of an element in the buffer, or in its row when it is an inner one."""
    if buffer_key(buffer) in kernel.inner:
        return index_in_row(kernel, buffer, indices)
    return flat_address(buffer, indices, kernel.index_dtype)


# How two partial results of a reduction become one.


Values = Sequence[tvm.ir.Expr]
Combine = Callable[[Values, Values], list[tvm.ir.Expr]]

_COMMUTATIVE = (tirx.Add, tirx.Mul, tirx.Max, tirx.Min, tirx.And, tirx.Or)


def combine_of(block: RowBlock) -> Combine | None:
    """A function of two lists of partial results, one value for each store of ``block``.

    Known are results that each accumulate on their own (sums, maxima), and results that are picked
    together by comparing (argmax); None for anything else.
    """
    operations = [_operation(block, number) for number in range(len(block.stores))]
    if all(operation is not None for operation in operations):
        return lambda left, right: [
            operation(a, b)
            for operation, a, b in zip(operations, left, right, strict=True)
            if operation is not None
        ]
    return _picking(block)


def accumulated(value: tvm.ir.Expr, buffers: Sequence[tvm.ir.Var], values: Values) -> tvm.ir.Expr:
    """``value`` with other accumulators: loads of ``buffers`` become ``values``."""
    by_key = {buffer_key(b): new for b, new in zip(buffers, values, strict=True)}

    def load(node: tvm.ir.TensorLoad, mutator: Any) -> tvm.ir.Expr:
        new = by_key.get(buffer_key(node.source))
        return mutator.default_mutate(node) if new is None else new

    return structural_mutate(value, [(tvm.ir.TensorLoad, load)])


def _operation(block: RowBlock, number: int) -> Callable[[Any, Any], Any] | None:
    """The operator of ``acc = acc + x`` and the like, when only this accumulator is in it."""
    value = block.stores[number].value
    if not isinstance(value, _COMMUTATIVE):
        return None
    keys = [buffer_key(store.buffer) for store in block.stores]
    sides = [_accumulators(side, keys) for side in (value.a, value.b)]
    own = {keys[number]}
    for accumulator, other in ((0, 1), (1, 0)):
        side = (value.a, value.b)[accumulator]
        if isinstance(side, tvm.ir.TensorLoad) and sides[accumulator] == own and not sides[other]:
            return type(value)
    return None


def _accumulators(expr: tvm.ir.Expr, keys: list[int]) -> set[int]:
    return {buffer_key(v) for v in tirx.analysis.undefined_vars(expr)} & set(keys)


def _picking(block: RowBlock) -> Combine | None:
    """``acc = select(better(acc, new), acc, new)``, each result by the same kind of comparison."""
    values = [store.value for store in block.stores]
    if not all(isinstance(value, tirx.Select) for value in values):
        return None
    buffers = [store.buffer for store in block.stores]
    keys = [buffer_key(buffer) for buffer in buffers]
    for value, key in zip(values, keys, strict=True):
        kept = value.true_value
        if not isinstance(kept, tvm.ir.TensorLoad) or buffer_key(kept.source) != key:
            return None
    candidates = [value.false_value for value in values]
    if any(_accumulators(candidate, keys) for candidate in candidates):
        return None

    def combine(left: Values, right: Values) -> list[tvm.ir.Expr]:
        return [accumulated(_replaced(value, candidates, right), buffers, left) for value in values]

    placeholders = [tirx.Var(f"other{i}", str(c.ty)) for i, c in enumerate(candidates)]
    left_over = [combine(placeholders, placeholders)[i] for i in range(len(values))]
    return None if _depends_on(left_over, block.columns) else combine


def _replaced(value: tvm.ir.Expr, old: Values, new: Values) -> tvm.ir.Expr:
    def visit(node: Any, mutator: Any) -> Any:
        for candidate, replacement in zip(old, new, strict=True):
            if structural_equal(node, candidate):
                return replacement
        return mutator.default_mutate(node)

    return structural_mutate(value, [(tvm.ir.Expr, visit)])


def _depends_on(exprs: Values, axes: Sequence[LoopAxis]) -> bool:
    keys = {buffer_key(axis.var) for axis in axes}
    return any(buffer_key(v) in keys for expr in exprs for v in tirx.analysis.undefined_vars(expr))


# Neighbouring loops of a row kernel as one, where every address moves as if they were one.
#
# No division by a size of the run is then needed to tell them apart.


def with_joined_loops(kernel: RowKernel) -> RowKernel:
    """The kernel with as few loops over rows, and along them, as its addresses allow.

    Indices of its buffers are then right as addresses only: ``x[a, b]`` becomes ``x[0, ab]``.
    Leaves alone: loops along rows that wait inside of the kernel.
    """
    rows, moved = _joined(kernel, kernel.rows, kernel.blocks)
    kernel = replace(kernel, rows=rows, blocks=moved)
    if has_waiting_rows(kernel):
        return kernel
    blocks = []
    for block in kernel.blocks:
        columns, (alone,) = _joined(kernel, block.columns, (block,))
        blocks.append(replace(alone, columns=columns))
    return replace(kernel, blocks=tuple(blocks))


def _joined(
    kernel: RowKernel, axes: tuple[LoopAxis, ...], blocks: tuple[RowBlock, ...]
) -> tuple[tuple[LoopAxis, ...], tuple[RowBlock, ...]]:
    groups: list[list[LoopAxis]] = []
    for axis in axes:
        if groups and all(_is_dense(kernel, b, groups[-1][-1], axis) for b in blocks):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    values: dict[int, Any] = {}
    found = []
    for group in groups:
        last = group[-1].var
        joined = LoopAxis(
            tirx.Var(last.name, str(last.ty)), math.prod(axis.extent for axis in group)
        )
        values |= {buffer_key(axis.var): tirx.const(0, str(last.ty)) for axis in group}
        values[buffer_key(last)] = joined.var
        found.append(joined)
    return tuple(found), tuple(_moved(block, values) for block in blocks)


def _moved(block: RowBlock, values: dict[int, Any]) -> RowBlock:
    stores = tuple(
        Store(
            store.buffer,
            tuple(substituted(index, values) for index in store.indices),
            substituted(store.value, values),
        )
        for store in block.stores
    )
    return replace(block, stores=stores)


def _is_dense(kernel: RowKernel, block: RowBlock, outer: LoopAxis, inner: LoopAxis) -> bool:
    """Whether a step of ``outer`` moves every address as far as all steps of ``inner``."""
    if any(_is_free(store.value, (outer, inner)) for store in block.stores):
        return False
    analyzer = sym.Analyzer()
    for buffer, indices in accesses(block.stores):
        if buffer_key(buffer) in kernel.inner:
            continue
        address = element_address(kernel, buffer, indices)
        linear = linear_form(analyzer.simplify(address), [outer.var, inner.var])
        if linear is None:
            return False
        (far, near), _ = linear
        if not analyzer.can_prove_equal(far, near * inner.extent):
            return False
    return True


def _is_free(value: tvm.ir.Expr, axes: Sequence[LoopAxis]) -> bool:
    """Whether a value uses one of some loops other than in an address."""
    keys = {buffer_key(axis.var) for axis in axes}
    found: list[bool] = []

    def look(node: Any) -> Any:
        if isinstance(node, tvm.ir.TensorLoad):
            return WalkResult.SKIP
        if isinstance(node, tvm.ir.Var) and buffer_key(node) in keys:
            found.append(True)
        return None

    structural_walk(value, look, order="pre")
    return bool(found)


# Loads of a row kernel by address where indices would divide.


def with_plain_addresses(kernel: RowKernel) -> RowKernel:
    """The kernel with the address in place of indices that divide, where that does not.

    ``x[i // 8, i % 8]`` becomes ``x[0, i]``: a vector of such elements is one load.
    """
    return replace(kernel, blocks=tuple(_plain(kernel, block) for block in kernel.blocks))


def _plain(kernel: RowKernel, block: RowBlock) -> RowBlock:
    analyzer = sym.Analyzer()
    for axis in (*kernel.rows, *block.columns):
        analyzer.bind(axis.var, tvm.ir.Range(0, axis.extent))

    def moved(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        indices = list(load.indices)
        if buffer_key(load.source) in kernel.inner or not any(map(_divides, indices)):
            return load
        address = analyzer.simplify(element_address(kernel, load.source, indices))
        if _divides(address):
            return load
        zeros = [tirx.const(0, str(address.ty))] * (len(indices) - 1)
        return tirx.BufferLoad(load.source, [*zeros, address])

    stores = (replace(store, value=substituted(store.value, {}, moved)) for store in block.stores)
    return replace(block, stores=tuple(stores))


def _divides(index: tvm.ir.Expr) -> bool:
    return bool(nodes(index, tirx.FloorDiv, tirx.FloorMod))

"""What a kernel of a dynamic batch computes for one item: a kernel whose sizes are known.

Most models are exported with a batch of any size. A kernel of such a model does the same for each
item, and knows all other sizes: it can be scheduled as if the batch were one.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import (
    among,
    depends,
    nodes,
    slope,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.loop_nest import substitute
from tvm_ext.tir_schedules.statements import with_sizes

# Statements other than assignments that kernels of tensor expressions do not consist of, and loops.
_STEPS = (
    tirx.AllocBuffer,
    tirx.AttrStmt,
    tirx.Bind,
    tirx.DeclBuffer,
    tirx.Evaluate,
    tirx.For,
    tirx.While,
)


@dataclass(frozen=True)
class BatchItem:
    """A kernel for one item of a dynamic batch.

    Attributes
    ----------
    func : tirx.PrimFunc
        The kernel with a batch of one: all its sizes are numbers, and all its parameters tensors.
    size : tirx.Var
        How many items the whole kernel has.
    parts : tuple[BatchPart or None, ...]
        Where each tensor has the batch; None for one that all items share, such as weights.
    """

    func: tirx.PrimFunc
    size: tirx.Var
    parts: tuple["BatchPart | None", ...]


@dataclass(frozen=True)
class BatchPart:
    """Where an array has the batch: ``[64, 12 * N]`` has 12 indices of axis 1 for each item."""

    axis: int
    indices: int


def batch_item(func: tirx.PrimFunc) -> BatchItem:
    """The kernel for one item of the only size of ``func`` that is not known.

    All that depends on an item has it as a part of one dimension: in parameters, of the outermost,
    so that what belongs to an item is one piece of memory.

    Raises
    ------
    NotApplicable
        Other sizes are symbolic as well, or items meet: their sum is taken, say.
    """
    tensors = _tensors(func)
    size = _symbolic_size(tensors)
    if any(not param.same_as(size) for param in func.params if not among(param, tensors)):
        raise NotApplicable("it has parameters that are no tensors")
    parts = batch_parts(func, size)
    for param, part in zip(tensors, parts, strict=True):
        if part is not None and any(static_extent(n) != 1 for n in param.shape[: part.axis]):
            raise NotApplicable("a parameter has the batch inside of another dimension")
    if not all(_batch_loops(block, size) for block in nodes(func.body.block.body, s_tir.SBlock)):
        raise NotApplicable("a part of it is computed for all items together")
    return BatchItem(with_sizes(func, {size: tirx.const(1, str(size.ty))}), size, parts)


def _tensors(func: tirx.PrimFunc) -> list[tvm.ir.Var]:
    return [param for param in func.params if isinstance(param.ty, tirx.BufferType)]


# Templates ask for a kernel's, and after them what looks at the whole graph.
@lru_cache(maxsize=256)
def batch_parts(func: tirx.PrimFunc, size: tirx.Var) -> "tuple[BatchPart | None, ...]":
    """Where each tensor parameter has the items of ``size``, each of which is computed by itself.

    Raises
    ------
    NotApplicable
        Items meet: their sum is taken, say.
    """
    if not isinstance(func.body, s_tir.SBlockRealize):
        raise NotApplicable("it has no blocks")
    root, tensors = func.body.block, _tensors(func)
    parts = {buffer: _batch_part(buffer, size) for buffer in (*tensors, *root.alloc_buffers)}
    loops = {loop.loop_var: loop.extent for loop in nodes(root.body, tirx.For)}
    realizes = nodes(root.body, s_tir.SBlockRealize)
    inside = [nodes(realize.block, tirx.BufferStore) for realize in realizes]
    is_outside = len(nodes(root.body, tirx.BufferStore)) > sum(map(len, inside))
    if not realizes or is_outside or len(nodes(root.body, *_STEPS)) > len(loops):
        raise NotApplicable("it consists of more than blocks of assignments")
    for realize in realizes:
        _check_block(realize, size, parts, loops)
    return tuple(parts[param] for param in tensors)


def _symbolic_size(tensors: Sequence[tvm.ir.Var]) -> tirx.Var:
    """The only variable among the sizes of the tensors."""
    found: list[tirx.Var] = []
    for tensor in tensors:
        for var in nodes(list(tensor.shape), tirx.Var):
            if not among(var, found):
                found.append(var)
    if len(found) != 1:
        raise NotApplicable("all sizes are known" if not found else "several sizes are symbolic")
    return found[0]


def _batch_part(buffer: tvm.ir.Var, size: tirx.Var) -> BatchPart | None:
    if buffer.strides or static_extent(buffer.elem_offset) not in (None, 0):
        raise NotApplicable("a buffer has strides")
    symbolic = [axis for axis, n in enumerate(buffer.shape) if depends(n, size)]
    if len(symbolic) > 1:
        raise NotApplicable("several dimensions of an array are symbolic")
    return next((BatchPart(axis, _multiple(buffer.shape[axis], size)) for axis in symbolic), None)


def _multiple(extent: Any, size: tirx.Var) -> int:
    """The number that ``size`` is multiplied by in ``extent``, and by which nothing else is."""
    times = slope(extent, size)
    if times is None or times < 1 or not _is_zero(substitute(extent, {size: _zero(size)})):
        raise NotApplicable("a dimension is no multiple of the symbolic size")
    return times


def _zero(like: tirx.Var) -> Any:
    return tirx.const(0, str(like.ty))


def _is_zero(expr: Any) -> bool:
    return static_extent(Analyzer().simplify(expr)) == 0


def _check_block(
    realize: s_tir.SBlockRealize,
    size: tirx.Var,
    parts: Mapping[tvm.ir.Var, BatchPart | None],
    loops: Mapping[tirx.Var, Any],
) -> None:
    """Raises NotApplicable where the block does not stay within the item that it computes."""
    block = realize.block
    mixing = NotApplicable("what is computed for one item depends on others")
    if static_extent(realize.predicate) != 1:
        raise NotApplicable("a block of it has a condition")
    if nodes(block.body, s_tir.SBlockRealize, tirx.For):
        raise NotApplicable("a block of it holds others, or loops")
    batch = _batch_loops(block, size)
    if not batch and _is_for_all_items(block, size, parts):
        return
    if len(batch) != 1:
        raise mixing
    (iter_var,) = batch
    values = zip(block.iter_vars, realize.iter_values, strict=True)
    extent = next(loops.get(value) for own, value in values if own.same_as(iter_var))
    if iter_var.iter_type != tirx.IterVar.DataPar or extent is None:
        raise mixing
    times = _multiple(iter_var.dom.extent, size)
    if _multiple(extent, size) != times or not _is_zero(iter_var.dom.min):
        raise mixing
    _check_accesses(block, size, parts, iter_var, times)


def _check_accesses(
    block: s_tir.SBlock,
    size: tirx.Var,
    parts: Mapping[tvm.ir.Var, BatchPart | None],
    iter_var: tirx.IterVar,
    times: int,
) -> None:
    """Raises NotApplicable where the block reads or writes what is another item's.

    ``iter_var`` goes over ``times`` indices for each item.
    """
    item, row = tirx.Var("item", str(iter_var.var.ty)), tirx.Var("row", str(iter_var.var.ty))
    split = _Split(item, size, parts, Analyzer())
    split.analyzer.bind(item, tvm.ir.Range(0, size))
    split.analyzer.bind(row, tvm.ir.Range(0, times))
    for other in block.iter_vars:
        if not other.var.same_as(iter_var.var):
            split.analyzer.bind(other.var, other.dom)
    place = item * tirx.const(times, str(item.ty)) + row
    for statement in (block.body, block.init):
        if statement is not None:
            split.check(substitute(statement, {iter_var.var: place}))


def _batch_loops(block: s_tir.SBlock, size: tirx.Var) -> list[tirx.IterVar]:
    return [iter_var for iter_var in block.iter_vars if depends(iter_var.dom.extent, size)]


def _is_for_all_items(
    block: s_tir.SBlock, size: tirx.Var, parts: Mapping[tvm.ir.Var, BatchPart | None]
) -> bool:
    """Whether a block computes what items share, of what they share."""
    stores, loads = nodes(block, tirx.BufferStore), nodes(block, tvm.ir.TensorLoad)
    arrays = [*(store.buffer for store in stores), *(load.source for load in loads)]
    return all(parts[array] is None for array in arrays) and not depends(block.body, size)


@dataclass(frozen=True)
class _Split:
    """Tells what an access of one item is in a kernel of that item alone."""

    item: tirx.Var
    size: tirx.Var
    parts: Mapping[tvm.ir.Var, BatchPart | None]
    analyzer: Any

    def check(self, statement: tirx.Stmt) -> None:
        """Raises NotApplicable unless ``statement`` stays within ``item`` of each buffer."""
        for store in nodes(statement, tirx.BufferStore):
            if self.parts[store.buffer] is None:
                raise NotApplicable("all items write to one place")
            self._check_place(store.buffer, store.indices)
        for load in nodes(statement, tvm.ir.TensorLoad):
            self._check_place(load.source, load.indices)
        for call in nodes(statement, tvm.ir.Call):
            if any(isinstance(arg, tvm.ir.Var) and arg in self.parts for arg in call.args):
                raise NotApplicable("a function gets a whole array")
        for expr in self._beside(statement):
            if depends(self.analyzer.simplify(expr), self.item, self.size):
                raise NotApplicable("what is computed depends on the number of the item")

    def _check_place(self, buffer: tvm.ir.Var, indices: Any) -> None:
        part = self.parts[buffer]
        # What an index is read from is looked at as a place of its own.
        simple = [self._simplified(_without_loads(index)) for index in indices]
        if part is not None:
            start = self.item * tirx.const(part.indices, str(self.item.ty))
            row = self.analyzer.simplify(simple[part.axis] - start)
            if not self.analyzer.can_prove(tirx.all(row >= 0, row < part.indices)):
                raise NotApplicable("an item reads what belongs to others")
            simple[part.axis] = row
        if any(depends(index, self.item, self.size) for index in simple):
            raise NotApplicable("a place depends on the number of the item")

    def _simplified(self, index: Any) -> Any:
        """``index``, in which a place of its own for a batch of one is what it is for others."""

        def chosen(select: tirx.Select) -> Any:
            alone = isinstance(select.condition, tirx.EQ) and select.condition.a.same_as(self.size)
            if alone and static_extent(select.condition.b) == 1:
                first = substitute(select.false_value, {self.item: _zero(self.item)})
                if self.analyzer.can_prove_equal(first, select.true_value):
                    return select.false_value
            return select

        return self.analyzer.simplify(structural_map(index, (tirx.Select, chosen)))

    def _beside(self, statement: tirx.Stmt) -> Iterator[Any]:
        """What ``statement`` computes, without the places that it reads and writes."""

        yield from (_without_loads(store.value) for store in nodes(statement, tirx.BufferStore))


def _without_loads(value: Any) -> Any:
    """An expression with a variable for each element that it reads."""

    def element(load: tvm.ir.TensorLoad) -> tirx.Var:
        return tirx.Var("element", str(load.ty))

    return structural_map(value, (tvm.ir.TensorLoad, element))

"""A contraction as one batched matmul, convolution too: loops of the same kind are fused."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.analysis.buffer_access import (
    BlockAccess,
    nodes,
    operands_of,
    read_position,
)
from tvm_ext.tir_schedules.analysis.contraction import (
    Contraction,
    contraction_of,
    loops_of_dimensions,
)
from tvm_ext.tir_schedules.statements import changed_block

LANES, SECTOR_BYTES = 32, 32


@dataclass(frozen=True)
class MatmulAxes(Contraction):
    """A contraction with its loops in the order in which they are fused.

    Attributes
    ----------
    depth_last : tuple[bool, bool]
        For A and B whether neighbours in memory are neighbours in ``k``.
    """

    depth_last: tuple[bool, bool]

    def swapped(self) -> Self:
        """See ``Contraction.swapped``."""
        return replace(super().swapped(), depth_last=self.depth_last[::-1])

    def order(self, operand: int) -> tuple[tuple[int, ...], ...]:
        """The fused dimensions of A (0) or B (1) as they are kept in shared memory."""
        selecting = self.n if operand else self.m
        if self.depth_last[operand]:
            return (self.batch, selecting, self.k)
        return (self.batch, self.k, selecting)


def matmul_axes(access: BlockAccess, block: s_tir.SBlock) -> MatmulAxes:
    """The axes of a reduction; ``access`` and ``block`` are of the same block."""
    found = contraction_of(block)
    if any(access.write_strides[axis] == 1 for axis in found.m):
        found = found.swapped()
    k = _in_order(found.k, access.read_strides[found.operands[0]])
    batch, m, n = (
        _in_order(axes, access.write_strides) for axes in (found.batch, found.m, found.n)
    )
    a, b = (
        _depth_last(access, operand, selecting, k)
        for operand, selecting in zip(found.operands, (m, n), strict=True)
    )
    return MatmulAxes(batch, m, n, k, found.operands, found.extents, (a, b))


def fused_map(
    positions: Sequence[int | None], dimensions: tuple[tuple[int, ...], ...], block: s_tir.SBlock
) -> tirx.IndexMap:
    """The index map from the loops of ``block`` at ``positions`` to fused ``dimensions``."""
    dtype = str(block.iter_vars[0].var.ty)
    initial = [tirx.Var(f"i{number}", dtype) for number in range(len(positions))]
    indices = dict(zip(positions, initial, strict=True))
    zero = tirx.IntImm(dtype, 0)
    fused = []
    for dimension in dimensions:
        index: Any = zero
        for axis in dimension:
            extent = block.iter_vars[axis].dom.extent
            index = indices[axis] if index is zero else index * extent + indices[axis]
        fused.append(index)
    return tirx.IndexMap(initial, fused, None)


def _in_order(axes: tuple[int, ...], strides: list[int | None]) -> tuple[int, ...]:
    """The loops with the largest step in memory first; one of unknown step goes outermost."""
    return tuple(sorted(axes, key=lambda axis: -abs(strides[axis] or 1 << 60)))


def _depth_last(
    access: BlockAccess, operand: int, selecting: tuple[int, ...], steps: tuple[int, ...]
) -> bool:
    """Whether an operand's tile is kept, and copied, with the steps as neighbours.

    Windows of an image have neighbours in memory along the steps, a kernel's width of them, and
    along the pixels. Unless of bytes, which matrix instructions cannot turn, a tile is kept in the
    order in which a warp touches fewer sectors.
    """
    strides = access.read_strides[operand]
    unit = [axis for axis, stride in enumerate(strides) if stride == 1 and access.extents[axis] > 1]
    if unit and not any(access.is_reduction[axis] for axis in unit):
        return False
    if access.element_bytes == 1:
        return True
    along = [_sectors(access, strides, axes) for axes in (steps, selecting)]
    return along[0] <= along[1]


def _run(access: BlockAccess, strides: list[int | None], axes: tuple[int, ...]) -> tuple[int, int]:
    """How many neighbours along fused axes are equally far apart, and how far, in elements."""
    if not axes or strides[axes[-1]] is None:
        return 1, LANES
    stride, length = abs(strides[axes[-1]] or 0), access.extents[axes[-1]]
    for axis in reversed(axes[:-1]):
        if strides[axis] != stride * length:
            break
        length *= access.extents[axis]
    return length, stride


def _sectors(access: BlockAccess, strides: list[int | None], axes: tuple[int, ...]) -> float:
    """Sectors of memory that 32 lanes touch along fused axes."""
    length, stride = _run(access, strides, axes)
    length = min(length, LANES)
    return LANES / length * max(1.0, length * stride * access.element_bytes / SECTOR_BYTES)


def as_matmul(
    sch: s_tir.Schedule, main: SBlockRV, axes: MatmulAxes, accumulator: str
) -> tuple[s_tir.Schedule, SBlockRV]:
    """The reduction as ``C[b, i, j] += A[b, i, k] * B[b, j, k]``, added up in one wide type.

    A matmul of float16 that is written in float16 is added up in float32 and rounded once.
    """
    block = sch.get(main)
    positions = [read_position(block, region.source) for region in operands_of(block)]
    operands = [sch.reindex(main, ("read", positions[index])) for index in axes.operands]
    result = sch.reindex(main, ("write", 0))
    block = sch.get(main)
    for operand, reindexed in enumerate(operands):
        used = loops_of_dimensions(block.reads[positions[axes.operands[operand]]], block)
        order = fused_map(used, axes.order(operand), block)
        sch.transform_layout(reindexed, ("write", 0), order)
    dimensions = (axes.batch, axes.m, axes.n)
    used = loops_of_dimensions(block.writes[0], block)
    sch.transform_layout(result, ("read", 0), fused_map(used, dimensions, block))
    everything = list(range(len(axes.extents)))
    whole = fused_map(everything, (*dimensions, axes.k), block)
    sch.transform_block_layout(main, whole)
    if str(sch.get(main).writes[0].source.dtype) != accumulator:
        sch.unsafe_set_dtype(main, 0, accumulator)
    name = sch.get(main).name_hint
    buffers = [sch.get(reindexed).writes[0].source for reindexed in operands]
    sch = s_tir.Schedule(_with_plain_matmuls(sch, main, buffers, accumulator))
    return sch, sch.get_sblock(name)


def _with_plain_matmuls(
    sch: s_tir.Schedule, main: SBlockRV, operands: list[tirx.Buffer], accumulator: str
) -> tirx.PrimFunc:
    """The kernel with the matmul written as the matrix instructions describe theirs.

    The block's reads get the order of the operands, which is how schedules name them.
    """
    func, total = sch.mod["main"], sch.get(main).writes[0].source

    def plain(store: tirx.BufferStore) -> tirx.BufferStore:
        loads = nodes(store.value, tvm.ir.TensorLoad)
        if store.buffer.same_as(total) and not loads:
            return tirx.BufferStore(total, tirx.const(0, accumulator), store.indices)
        found = [next((x for x in loads if x.source.same_as(o)), None) for o in operands]
        first, second = found
        if not store.buffer.same_as(total) or first is None or second is None:
            return store
        product = first.astype(accumulator) * second.astype(accumulator)
        own = tirx.BufferLoad(total, store.indices)
        return tirx.BufferStore(total, own + product, store.indices)

    def ordered(block: s_tir.SBlock) -> s_tir.SBlock:
        reads = [r for o in operands for r in block.reads if r.source.same_as(o)]
        if not any(write.source.same_as(total) for write in block.writes) or len(reads) < 2:
            return block
        return changed_block(block, reads=reads)

    body = structural_map(func.body, (tirx.BufferStore, plain))
    body = structural_map(body, (s_tir.SBlock, ordered))
    return func.with_body(_with_small_letters(body, [*operands, total]))


def _with_small_letters(body: tirx.Stmt, buffers: list[tirx.Buffer]) -> tirx.Stmt:
    """``body`` with other names for some buffers that it allocates.

    TVM 0.27 puts operands into the text of a matrix instruction at its letters A, B, C and D, those
    in names that it has put there before too.
    """
    renamed = [
        (old, tirx.decl_buffer(list(old.shape), str(old.dtype), old.name.lower()))
        for old in buffers
        if old.name != old.name.lower()
    ]

    def new(var: Any) -> Any:
        return next((new for old, new in renamed if old.same_as(var)), var)

    return structural_map(body, (tvm.ir.Var, new)) if renamed else body

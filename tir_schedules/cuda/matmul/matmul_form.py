"""A reduction as one batched matmul: which loop is of M, N, K or the batch.

Any contraction of two operands is one, convolution too: what a loop is follows from which
of the operands and the result it moves. Loops of the same kind are fused.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm.tirx.analysis import undefined_vars
from tvm_ffi import structural_map

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import BlockAccess, access_of, nodes
from tvm_ext.tir_schedules.inlining import kernel_blocks, reduction_blocks
from tvm_ext.tir_schedules.statements import changed_block

LANES, SECTOR_BYTES = 32, 32


@dataclass(frozen=True)
class MatmulAxes:
    """The loops of a block by what they are in ``C[b, i, j] += A[b, i, k] * B[b, j, k]``.

    Each is a tuple of positions among the block's loops, in the order in which they are fused.

    Attributes
    ----------
    batch, m, n, k : tuple[int, ...]
        ``b``, ``i``, ``j`` and ``k``. Loops of extent 1 are in none.
    operands : tuple[int, int]
        Which of the block's two operands is A, and which B.
    depth_last : tuple[bool, bool]
        For A and B whether neighbours in memory are neighbours in ``k``.
    extents : tuple[int, ...]
        Trip count of every loop.
    """

    batch: tuple[int, ...]
    m: tuple[int, ...]
    n: tuple[int, ...]
    k: tuple[int, ...]
    operands: tuple[int, int]
    depth_last: tuple[bool, bool]
    extents: tuple[int, ...]

    def size(self, positions: tuple[int, ...]) -> int:
        """Trip count of some loops together."""
        return reduce(lambda product, position: product * self.extents[position], positions, 1)

    def order(self, operand: int) -> tuple[tuple[int, ...], ...]:
        """The fused dimensions of A (0) or B (1) as they are kept in shared memory."""
        selecting = self.n if operand else self.m
        if self.depth_last[operand]:
            return (self.batch, selecting, self.k)
        return (self.batch, self.k, selecting)


def matmul_axes(access: BlockAccess, block: s_tir.SBlock) -> MatmulAxes | NotApplicable:
    """The axes of a reduction; ``access`` and ``block`` are of the same block."""
    if len(access.read_strides) != 2:
        return NotApplicable(
            f"it reads {len(access.read_strides)} operands besides the sum, not two"
        )
    moved = [_moved(region, block) for region in block.reads if not _is_sum(region, block)]
    written = _moved(block.writes[0], block)
    kinds: dict[str, list[int]] = {"batch": [], "first": [], "second": [], "steps": []}
    for axis, extent in enumerate(access.extents):
        if extent == 1:
            continue
        kind = _kind(axis, access.is_reduction[axis], moved, written)
        if kind is None:
            return NotApplicable(
                "a loop moves neither both operands nor one of them and the result"
            )
        kinds[kind].append(axis)
    swapped = _has_unit_stride(access, kinds["first"])
    rows, columns = ("second", "first") if swapped else ("first", "second")
    operands = (1, 0) if swapped else (0, 1)
    reduced = [axis for axis in access.reduction if access.extents[axis] > 1]
    depth = _in_order(reduced, access.read_strides[operands[0]])
    selecting = [_in_order(kinds[kind], access.write_strides) for kind in (rows, columns)]
    order = [_depth_last(access, *pair, depth) for pair in zip(operands, selecting, strict=True)]
    return MatmulAxes(
        batch=_in_order(kinds["batch"], access.write_strides),
        m=selecting[0],
        n=selecting[1],
        k=depth,
        operands=operands,
        depth_last=(order[0], order[1]),
        extents=tuple(access.extents),
    )


def fused_map(
    positions: list[int], dimensions: tuple[tuple[int, ...], ...], block: s_tir.SBlock
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


def _kind(axis: int, reduces: bool, moved: list[set[int]], written: set[int]) -> str | None:
    first, second, result = axis in moved[0], axis in moved[1], axis in written
    if reduces:
        return "steps" if first and second and not result else None
    if not result:
        return None
    if first and second:
        return "batch"
    if first or second:
        return "first" if first else "second"
    return None


def _moved(region: Any, block: s_tir.SBlock) -> set[int]:
    variables = [variable for dim in region.region for variable in undefined_vars(dim.min)]
    return {
        position
        for position, iter_var in enumerate(block.iter_vars)
        if any(iter_var.var.same_as(variable) for variable in variables)
    }


def moved_by_dimension(region: Any, block: s_tir.SBlock) -> list[int]:
    """For each dimension of a reindexed buffer the loop that moves it, -1 for none."""
    found = []
    for dim in region.region:
        variables = undefined_vars(dim.min)
        found.append(
            next(
                (
                    position
                    for position, iter_var in enumerate(block.iter_vars)
                    if any(iter_var.var.same_as(variable) for variable in variables)
                ),
                -1,
            )
        )
    return found


def _is_sum(region: Any, block: s_tir.SBlock) -> bool:
    return bool(region.source.same_as(block.writes[0].source))


def _has_unit_stride(access: BlockAccess, axes: list[int]) -> bool:
    return any(access.write_strides[axis] == 1 for axis in axes)


def _in_order(axes: list[int], strides: list[int | None]) -> tuple[int, ...]:
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


def loads_of(block: s_tir.SBlock) -> list[Any]:
    """The loads of the product that a block adds up, each under at most a cast; empty if other."""
    store = block.body
    if not isinstance(store, tirx.BufferStore) or not isinstance(store.value, tirx.Add):
        return []
    own, product = store.value.a, store.value.b
    if not isinstance(own, tvm.ir.TensorLoad) or not isinstance(product, tirx.Mul):
        return []
    factors = [f.value if isinstance(f, tirx.Cast) else f for f in (product.a, product.b)]
    if not all(isinstance(factor, tvm.ir.TensorLoad) for factor in factors):
        return []
    return factors if own.source.same_as(store.buffer) else []


def only_reduction(sch: s_tir.Schedule) -> SBlockRV | NotApplicable:
    """The kernel's only reduction."""
    reductions = reduction_blocks(sch)
    if len(reductions) != 1:
        return NotApplicable(f"the kernel has {len(reductions)} reductions, not one")
    return reductions[0]


def access_of_reduction(sch: s_tir.Schedule, main: SBlockRV) -> BlockAccess | NotApplicable:
    """What a reduction reads and writes, in a kernel all of whose blocks are as plain."""
    access = access_of(sch, main)
    if access is None or any(access_of(sch, block) is None for block in kernel_blocks(sch)):
        return NotApplicable("a loop is of unknown extent, scans, or writes several buffers")
    return access


def as_matmul(
    sch: s_tir.Schedule, main: SBlockRV, axes: MatmulAxes, accumulator: str
) -> tuple[s_tir.Schedule, SBlockRV]:
    """The reduction as ``C[b, i, j] += A[b, i, k] * B[b, j, k]``, added up in one wide type.

    A matmul of float16 that is written in float16 is added up in float32 and rounded once.
    """
    positions = [
        position
        for position, region in enumerate(sch.get(main).reads)
        if not region.source.same_as(sch.get(main).writes[0].source)
    ]
    operands = [sch.reindex(main, ("read", positions[index])) for index in axes.operands]
    result = sch.reindex(main, ("write", 0))
    block = sch.get(main)
    for operand, reindexed in enumerate(operands):
        used = moved_by_dimension(block.reads[positions[axes.operands[operand]]], block)
        order = fused_map(used, axes.order(operand), block)
        sch.transform_layout(reindexed, ("write", 0), order)
    dimensions = (axes.batch, axes.m, axes.n)
    used = moved_by_dimension(block.writes[0], block)
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
    sch: s_tir.Schedule, main: SBlockRV, operands: list[Any], accumulator: str
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


def _with_small_letters(body: tirx.Stmt, buffers: list[Any]) -> tirx.Stmt:
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

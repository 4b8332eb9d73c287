"""A reduction as a batched matrix product: which loop is a row, a column, a step or a batch.

Any sum of products of two operands is one, convolution too: what a loop is follows from which of
the operands and the result it moves. Rows, columns and steps of several loops are fused.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.tirx.analysis import undefined_vars

from tvm_ext.tir_schedules.block_access import BlockAccess
from tvm_ext.tir_schedules.template import NotMine

LANES, SECTOR_BYTES = 32, 32


@dataclass(frozen=True)
class ProductAxes:
    """The loops of a block by what they are in ``C[b, i, j] += A[b, i, k] * B[b, j, k]``.

    Each is a tuple of positions among the block's loops, in the order in which they are fused.

    Attributes
    ----------
    batch, rows, columns, steps : tuple[int, ...]
        ``b``, ``i``, ``j`` and ``k``. Loops of extent 1 are in none.
    operands : tuple[int, int]
        Which of the block's two operands is A, and which B.
    depth_last : tuple[bool, bool]
        For A and B whether neighbours in memory are neighbours in ``k``.
    extents : tuple[int, ...]
        Trip count of every loop.
    """

    batch: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    steps: tuple[int, ...]
    operands: tuple[int, int]
    depth_last: tuple[bool, bool]
    extents: tuple[int, ...]

    def size(self, positions: tuple[int, ...]) -> int:
        """Trip count of some loops together."""
        return reduce(lambda product, position: product * self.extents[position], positions, 1)

    def order(self, operand: int) -> tuple[tuple[int, ...], ...]:
        """The fused dimensions of A (0) or B (1) as they are kept in shared memory."""
        selecting = self.columns if operand else self.rows
        if self.depth_last[operand]:
            return (self.batch, selecting, self.steps)
        return (self.batch, self.steps, selecting)


def product_axes(access: BlockAccess, block: s_tir.SBlock) -> ProductAxes | NotMine:
    """The axes of a reduction; ``access`` and ``block`` are of the same block."""
    if len(access.read_strides) != 2:
        return NotMine(f"it reads {len(access.read_strides)} operands besides the sum, not two")
    moved = [_moved(region, block) for region in block.reads if not _is_sum(region, block)]
    written = _moved(block.writes[0], block)
    kinds: dict[str, list[int]] = {"batch": [], "first": [], "second": [], "steps": []}
    for axis, extent in enumerate(access.extents):
        if extent == 1:
            continue
        kind = _kind(axis, access.is_reduction[axis], moved, written)
        if kind is None:
            return NotMine("a loop moves neither both operands nor one of them and the result")
        kinds[kind].append(axis)
    swapped = _has_unit_stride(access, kinds["first"])
    rows, columns = ("second", "first") if swapped else ("first", "second")
    operands = (1, 0) if swapped else (0, 1)
    reduced = [axis for axis in access.reduction if access.extents[axis] > 1]
    depth = _in_order(reduced, access.read_strides[operands[0]])
    selecting = [_in_order(kinds[kind], access.write_strides) for kind in (rows, columns)]
    order = [_depth_last(access, *pair, depth) for pair in zip(operands, selecting, strict=True)]
    return ProductAxes(
        batch=_in_order(kinds["batch"], access.write_strides),
        rows=selecting[0],
        columns=selecting[1],
        steps=depth,
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

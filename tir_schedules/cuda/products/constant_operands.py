"""Constant operands padded to whole tiles while compiling, instead of in every run.

A constant whose rows are no whole pieces of 16 bytes, or no whole tiles, would be copied with
conditions or in narrow pieces, or by a kernel of its own. Its array is given to the kernel with
the product's axes and zeros at their ends, so that every copy of it is wide and unconditional.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV
from tvm_ffi import structural_walk

from tvm_ext.tir_schedules.block_access import (
    constant_parameter,
    element_bytes,
    static_extent,
)
from tvm_ext.tir_schedules.block_access import operands_of as regions_of
from tvm_ext.tir_schedules.cuda.products.product_axes import ProductAxes, moved_by_dimension
from tvm_ext.tir_schedules.cuda.products.shared_tile import (
    VECTOR_BYTES,
    inline_producers,
    widest_copy,
)
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.packing import PaddedOperand

MAX_GROWTH = 2.0
"""Times as large as the array that the padded one may be."""

MAX_GROWTH_OF_WIDE = 1.25
"""The same where copies are wide anyway, and only their conditions are saved."""


@dataclass(frozen=True)
class ConstantOperand:
    """An operand of a product that is a constant parameter of the kernel.

    Attributes
    ----------
    source : buffer
        The parameter.
    parameter : int
        Its position.
    order : tuple[int, ...]
        Its axes in the order of the product's.
    shape : tuple[int, int, int]
        Sizes of the fused axes: batch, and rows, columns or steps in the order of the tile.
    """

    source: Any
    parameter: int
    order: tuple[int, ...]
    shape: tuple[int, ...]


def constant_operands(
    func: tirx.PrimFunc, block: s_tir.SBlock, axes: ProductAxes
) -> list[ConstantOperand | None]:
    """For A and B of a product the constant that it is; None for others."""
    return [_constant(func, block, axes, operand) for operand in (0, 1)]


def _constant(
    func: tirx.PrimFunc, block: s_tir.SBlock, axes: ProductAxes, operand: int
) -> ConstantOperand | None:
    region = regions_of(block)[axes.operands[operand]]
    parameter = constant_parameter(func, region.source)
    if parameter is None or _reads(func, region.source) > 1:
        return None
    sizes = [static_extent(size) for size in region.source.shape]
    loops = moved_by_dimension(region, block)
    groups = axes.order(operand)
    wanted = [axis for group in groups for axis in group]
    # Every axis is a loop's, all of it, and every loop has an axis.
    for size, loop, dim in zip(sizes, loops, region.region, strict=True):
        if size == 1:
            continue
        if loop not in wanted or size != axes.extents[loop]:
            return None
        if not dim.min.same_as(block.iter_vars[loop].var):
            return None
    moving = [loop for size, loop in zip(sizes, loops, strict=True) if size != 1]
    if sorted(moving) != sorted(wanted):
        return None
    single = [dim for dim, size in enumerate(sizes) if size == 1]
    order = [*single, *(dim for loop in wanted for dim in _dims(loop, loops, sizes))]
    return ConstantOperand(
        region.source, parameter, tuple(order), tuple(axes.size(group) for group in groups)
    )


def _dims(loop: int, loops: list[int], sizes: list[int | None]) -> list[int]:
    return [dim for dim, found in enumerate(loops) if found == loop and sizes[dim] != 1]


def _reads(func: tirx.PrimFunc, buffer: Any) -> int:
    return sum(load.source.same_as(buffer) for load in nodes(func.body, tvm.ir.TensorLoad))


def with_padded_constant(
    sch: s_tir.Schedule, main: SBlockRV, constants: Sequence[ConstantOperand | None]
) -> tuple[s_tir.Schedule, SBlockRV]:
    """The product, padded to whole tiles, with a constant as a parameter that is padded too.

    ``constants``: of A and B. The same schedule where it is not worth it.
    """
    for operand, constant in enumerate(constants):
        changed = _padded(sch, main, operand, constant) if constant is not None else None
        if changed is not None:
            return changed
    return sch, main


def _padded(
    sch: s_tir.Schedule, main: SBlockRV, operand: int, constant: ConstantOperand
) -> tuple[s_tir.Schedule, SBlockRV] | None:
    name = sch.get(main).name_hint
    trial = sch.copy()
    main = trial.get_sblock(name)
    tile = trial.get(main).reads[operand].source
    padded = tuple(static_extent(size) for size in tile.shape)
    writer = next(
        (p for p in trial.get_producers(main) if trial.get(p).writes[0].source.same_as(tile)), None
    )
    if writer is None or None in padded or str(tile.dtype) != str(constant.source.dtype):
        return None
    inline_producers(trial, writer)
    block = trial.get(writer)
    growth = math.prod(size or 0 for size in padded) / math.prod(constant.shape)
    wide = widest_copy(block) * element_bytes(tile) == VECTOR_BYTES
    if padded == constant.shape and wide:
        return None
    if growth > (MAX_GROWTH_OF_WIDE if wide else MAX_GROWTH):
        return None
    if not all(read.source.same_as(constant.source) for read in block.reads):
        return None
    sizes = tuple(size or 0 for size in padded)
    note = PaddedOperand(constant.parameter, constant.order, constant.shape, sizes)
    changed = s_tir.Schedule(note.noted_on(_as_parameter(trial.mod["main"], constant, tile)))
    return changed, changed.get_sblock(name)


def _as_parameter(func: tirx.PrimFunc, constant: ConstantOperand, tile: Any) -> tirx.PrimFunc:
    """The kernel that gets ``tile`` as an argument instead of writing it."""
    root = func.body.block
    statements = list(root.body.seq) if isinstance(root.body, tirx.SeqStmt) else [root.body]
    kept = [statement for statement in statements if not _writes(statement, tile)]
    body = tirx.SeqStmt(kept) if len(kept) > 1 else kept[0]
    block = s_tir.SBlock(
        root.iter_vars,
        root.reads,
        root.writes,
        root.name_hint,
        body,
        root.init,
        [buffer for buffer in root.alloc_buffers if not buffer.same_as(tile)],
        root.match_buffers,
        root.annotations,
    )
    params = list(func.params)
    params[constant.parameter] = tile
    realized = s_tir.SBlockRealize([], tirx.const(True, "bool"), block)
    return tirx.PrimFunc(params, realized, func.ret_type, func.attrs)


def _writes(statement: tirx.Stmt, buffer: Any) -> bool:
    found: list[bool] = []

    def look(store: tirx.BufferStore) -> None:
        found.append(store.buffer.same_as(buffer))

    structural_walk(statement, (tirx.BufferStore, look), order="pre")
    return any(found)

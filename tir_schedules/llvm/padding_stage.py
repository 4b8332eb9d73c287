"""Where a convolution's padded input is written: a few rows at a time, right before they are read.

Padded as a whole, the input goes out to the next cache and comes back, and the threads meet once
more. Padded by blocks of rows, it stays in L2; rows that two blocks need are written twice.
"""

import math

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import (
    BlockAccess,
    buffer_bytes,
    operands_of,
    static_extent,
)
from tvm_ext.tir_schedules.llvm.borders import borders_of
from tvm_ext.tir_schedules.llvm.inlining import count_calls, is_data_parallel
from tvm_ext.tir_schedules.llvm.operand_stage import OperandStage

# Rows written for each row read, at most.
MAX_REPEATED = 1.6


def padding_stage(
    sch: s_tir.Schedule, access: BlockAccess, rows: dict[int, int], machine: CpuDescription
) -> OperandStage | None:
    """The stage for the only padded operand of ``access``; None where it would not pay.

    ``rows`` are the register tile's sizes along spatial loops.
    """
    found = [
        (index, block)
        for index, read in enumerate(operands_of(sch.get(access.block)))
        for block in sch.get_producers(access.block)
        if sch.get(block).writes[0].source.same_as(read.source)
    ]
    if len(found) != 1 or not _is_padding(sch, found[0][1]):
        return None
    index, block = found[0]
    axis = _row_axis(access, index)
    if axis is None:
        return None
    tiles = _tiles_per_block(sch, access, index, axis, rows.get(axis, 1), machine)
    return None if tiles is None else OperandStage(block, axis, tiles)


def _is_padding(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether it copies, with branches that are the same for all channels of a position."""
    if not is_data_parallel(sch, block) or len(sch.get_consumers(block)) != 1:
        return False
    return count_calls(sch.get(block).body) == 1 and not borders_of(sch, block)[-1]


def _row_axis(access: BlockAccess, operand: int) -> int | None:
    """The outermost spatial loop, but for the images, along which only the input moves."""
    others = [s for i, s in enumerate(access.read_strides) if i != operand]
    moving = [
        axis
        for axis in access.spatial[1:]
        if access.extents[axis] > 1
        and access.read_strides[operand][axis]
        and all(strides[axis] == 0 for strides in others)
    ]
    return moving[0] if moving else None


def _tiles_per_block(
    sch: s_tir.Schedule,
    access: BlockAccess,
    operand: int,
    axis: int,
    rows: int,
    machine: CpuDescription,
) -> int | None:
    """As many as L2 holds and the threads share evenly; None when too many rows repeat."""
    region = operands_of(sch.get(access.block))[operand]
    sizes = [static_extent(size) or 1 for size in region.source.shape]
    steps = -(-access.extents[axis] // rows)
    per_row = buffer_bytes(region.source) // (sizes[0] * sizes[axis])
    # Rows of input from the first to the last that one row of output reads, and its step.
    strides = access.read_strides[operand]
    unit = math.prod(sizes[axis + 1 :])
    step = (strides[axis] or 0) // unit
    reach = 1 + sum((access.extents[r] - 1) * ((strides[r] or 0) // unit) for r in access.reduction)
    for tiles in range(steps, 0, -1):
        blocks = access.extents[0] * -(-steps // tiles)
        needed = (tiles * rows - 1) * step + reach
        fits = needed * per_row <= machine.l2_bytes // 4
        shared = blocks % machine.cores == 0 or blocks >= 4 * machine.cores
        if fits and shared and steps % tiles == 0:
            return tiles if needed <= MAX_REPEATED * tiles * rows * step else None
    return None

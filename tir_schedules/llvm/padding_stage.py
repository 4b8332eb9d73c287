"""Where a convolution's padded input is written: a few rows at a time, right before they are read.

Padded as a whole, the input goes out to the next cache and comes back, and the threads meet once
more. Padded by blocks of rows, it stays in L2; rows that two blocks need are written twice.
"""

import math
from dataclasses import dataclass

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import (
    BlockAccess,
    buffer_bytes,
    operands_of,
    static_extent,
)
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.inlining import count_calls, is_data_parallel
from tvm_ext.tir_schedules.llvm.borders import borders_of
from tvm_ext.tir_schedules.llvm.operand_stage import OperandStage

# Rows written for each row read, at most, and at most in what a tuner may try.
MAX_REPEATED, MAX_REPEATED_TRIED = 1.6, 2.5


def padding_stage(
    sch: s_tir.Schedule,
    access: BlockAccess,
    rows: dict[int, int],
    machine: CpuDescription,
    decisions: Decisions = CLOSED_FORM,
) -> OperandStage | None:
    """The stage for the only padded operand of ``access``; None where it would not pay.

    ``rows`` are the register tile's sizes along spatial loops. The decision ``padding_tiles`` is
    the number of register tiles that a piece of the operand is for, 0 without a stage.
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
    pieces = _pieces(sch, access, index, axis, rows.get(axis, 1))
    tried = [
        piece.tiles
        for piece in pieces
        if piece.blocks >= machine.cores
        and piece.nbytes <= machine.l2_bytes
        and piece.repeated <= MAX_REPEATED_TRIED
    ]
    tiles = decisions.pick("padding_tiles", (0, *tried), _closed_form(pieces, machine))
    return OperandStage(block, axis, tiles) if tiles else None


@dataclass(frozen=True)
class _Piece:
    """What is padded at a time: for how many register tiles, of how many blocks of them in all, its
    size, and the rows it has for each row of the input that it adds."""

    tiles: int
    blocks: int
    nbytes: int
    repeated: float


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


def _pieces(
    sch: s_tir.Schedule, access: BlockAccess, operand: int, axis: int, rows: int
) -> list[_Piece]:
    """Ways to cut the tiles along ``axis`` into equal blocks, the largest blocks first."""
    region = operands_of(sch.get(access.block))[operand]
    sizes = [static_extent(size) or 1 for size in region.source.shape]
    steps = -(-access.extents[axis] // rows)
    per_row = buffer_bytes(region.source) // (sizes[0] * sizes[axis])
    # Rows of input from the first to the last that one row of output reads, and its step.
    strides = access.read_strides[operand]
    unit = math.prod(sizes[axis + 1 :])
    step = (strides[axis] or 0) // unit
    reach = 1 + sum((access.extents[r] - 1) * ((strides[r] or 0) // unit) for r in access.reduction)
    pieces = []
    for tiles in range(steps, 0, -1):
        if steps % tiles == 0:
            needed = (tiles * rows - 1) * step + reach
            blocks = access.extents[0] * (steps // tiles)
            repeated = needed / (tiles * rows * step) if step > 0 else math.inf
            pieces.append(_Piece(tiles, blocks, needed * per_row, repeated))
    return pieces


def _closed_form(pieces: list[_Piece], machine: CpuDescription) -> int:
    """As many tiles as L2 holds and the threads share evenly; 0 when too many rows repeat."""
    for piece in pieces:
        shared = piece.blocks % machine.cores == 0 or piece.blocks >= 4 * machine.cores
        if shared and piece.nbytes <= machine.l2_bytes // 4:
            return piece.tiles if piece.repeated <= MAX_REPEATED else 0
    return 0

"""Blocks of rows, for which all columns of register tiles pass before the next is begun.

This is the blocking along M in Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication" (2008). Weights that do not stay in L2 are taken by columns of tiles: those of one
stay in L1 while all rows pass. An input that does not stay in L2 either would come from L3 for each
column anew; of a convolution it comes in short pieces, which no prefetcher follows.
"""

from dataclasses import dataclass

from tvm import s_tir

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import BlockAccess, buffer_bytes, operands_of
from tvm_ext.tir_schedules.cpu.register_blocking import RegisterTileDecision
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Bytes in a row from which on prefetchers bring them from L3 as fast as they are used.
LONG_RUN = 2048

# Bytes read from L3 without blocks, at least, for each that is read with them.
_LEAST_SAVED = 2


@dataclass(frozen=True)
class RowBlock:
    """The rows that a block holds.

    Attributes
    ----------
    axis : int
        The spatial loop that is cut. Blocks hold one iteration of the loops around it, and all of
        those within.
    tiles : int
        Register tiles along it that a block holds.
    """

    axis: int
    tiles: int


def decide_row_block(
    sch: s_tir.Schedule,
    access: BlockAccess,
    tile: RegisterTileDecision,
    machine: CpuDescription,
    decisions: Decisions = DEFAULT_DECISIONS,
) -> RowBlock | None:
    """None where all rows stay in L2, or where less is read without blocks.

    The decision ``row_block`` is whether there are blocks.
    """
    found = _rows(sch, access, tile)
    if found is None:
        return None
    nbytes, rows, run = found
    limit = machine.l2_bytes // 2
    columns = -(-access.extents[tile.vector_axis] // tile.columns)
    whole, weights, blocks = nbytes * columns, _weight_bytes(sch, access, tile), 1
    for axis in rows:
        if nbytes <= limit:
            return None
        steps = -(-access.extents[axis] // tile.rows.get(axis, 1))
        tiles = limit * steps // nbytes
        if tiles < 1:
            blocks, nbytes = blocks * steps, nbytes // steps
            continue
        # Even parts: a short one at the end would read all weights for a few rows.
        parts = -(-steps // tiles)
        pays = run < LONG_RUN and weights * blocks * parts * _LEAST_SAVED < whole
        chosen = decisions.pick("row_block", (0, 1), int(pays))
        return RowBlock(axis, -(-steps // parts)) if chosen else None
    return None


def _rows(
    sch: s_tir.Schedule, access: BlockAccess, tile: RegisterTileDecision
) -> tuple[int, list[int], int] | None:
    """Bytes of the operand that the rows select, the loops that move it, from the outside in, and
    the bytes of it that a sum takes one after the other.

    None where a loop moves both operands, or where there are others than these two.
    """
    operands = operands_of(sch.get(access.block))
    if len(operands) != 2:
        return None
    along = [strides[tile.vector_axis] for strides in access.read_strides]
    if sorted(step != 0 for step in along) != [False, True]:
        return None
    selected, others = access.read_strides[along.index(0)], access.read_strides[1 - along.index(0)]
    loops = [a for a in access.spatial if a != tile.vector_axis and access.extents[a] > 1]
    if any(others[axis] != 0 for axis in loops):
        return None
    rows = [axis for axis in loops if selected[axis] != 0]
    run = 1
    for axis in reversed(access.reduction):
        if access.extents[axis] > 1 and selected[axis] != run:
            break
        run *= access.extents[axis]
    return buffer_bytes(operands[along.index(0)].source), rows, run * access.element_bytes


def _weight_bytes(sch: s_tir.Schedule, access: BlockAccess, tile: RegisterTileDecision) -> int:
    operands = operands_of(sch.get(access.block))
    return sum(
        buffer_bytes(read.source)
        for read, strides in zip(operands, access.read_strides, strict=True)
        if strides[tile.vector_axis] != 0
    )

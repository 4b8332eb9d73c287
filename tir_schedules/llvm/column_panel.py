"""Columns of a matrix that is no constant, packed for one column of register tiles at a time.

A tile reads a few columns of each row: a line here and a line there, each in a page of its own.
Copied next to each other they stay in L2 while all rows of the other operand pass. This is the
packing of B in Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication" (2008).
"""

import math

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import (
    BlockAccess,
    access_of,
    operands_of,
    read_position,
    static_extent,
)
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.inlining import count_calls, is_data_parallel
from tvm_ext.tir_schedules.llvm.operand_stage import OperandStage
from tvm_ext.tir_schedules.llvm.register_tile_decision import TileDecision

# Tiles that read a panel, at least: below, the copy takes longer than it saves.
LEAST_TILES = 4

# What copying a panel takes, in register tiles that are computed in the same time.
_TILES_PER_COPY = 1


def column_panel(
    sch: s_tir.Schedule,
    access: BlockAccess,
    decision: TileDecision,
    machine: CpuDescription,
    is_large: bool,
    decisions: Decisions = CLOSED_FORM,
) -> OperandStage | None:
    """The stage for the operand that the columns select; None where a copy would not pay.

    ``is_large``: the operand does not stay in L2. A smaller one is only copied if it is padded.
    Decisions: ``column_panel``, whether there is one, and ``panel_tiles``, the tiles that read it.
    """
    operand = _matrix(sch, access, decision.vector_axis)
    if operand is None or access.constant_reads[operand]:
        return None
    strides = access.read_strides[operand]
    rows = [a for a in access.spatial if strides[a] == 0 and access.extents[a] > 1]
    matrices = [
        axis
        for axis in access.spatial
        if strides[axis] and access.extents[axis] > 1 and axis != decision.vector_axis
    ]
    if not rows or any(axis > rows[0] for axis in matrices):
        return None
    steps = -(-access.extents[rows[0]] // decision.rows.get(rows[0], 1))
    producer = _producer(sch, access, operand)
    if steps < 2 or (producer is not None and not _is_padding(sch, producer)):
        return None
    pays = steps >= LEAST_TILES and (producer is not None or is_large)
    if not decisions.pick("column_panel", (0, 1), int(pays)):
        return None
    panels = math.prod(access.extents[axis] for axis in matrices)
    panels *= -(-access.extents[decision.vector_axis] // decision.columns)
    parts = _parts(steps, machine.cores)
    shares = min(parts, key=lambda n: _makespan(steps, panels, n, machine.cores))
    tiles = decisions.pick("panel_tiles", [steps // n for n in parts], steps // shares)
    if producer is None:
        source = operands_of(sch.get(access.block))[operand].source
        position = read_position(sch.get(access.block), source)
        producer = sch.cache_read(access.block, position, "global")
    return OperandStage(producer, rows[0], tiles, per_column=True)


def _producer(sch: s_tir.Schedule, access: BlockAccess, operand: int) -> SBlockRV | None:
    """The block that writes the operand; None for a parameter of the kernel."""
    source = operands_of(sch.get(access.block))[operand].source
    producers = (
        block
        for block in sch.get_producers(access.block)
        if sch.get(block).writes[0].source.same_as(source)
    )
    return next(producers, None)


def _is_padding(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether it copies rows, with a border: what turns a matrix reads it across the rows."""
    if not is_data_parallel(sch, block) or len(sch.get_consumers(block)) != 1:
        return False
    access = access_of(sch, block)
    if access is None or count_calls(sch.get(block).body) > 1 or len(access.read_strides) != 1:
        return False
    return access.read_strides[0][-1] == 1


def _matrix(sch: s_tir.Schedule, access: BlockAccess, vector_axis: int) -> int | None:
    """The operand that has one element for each step of the loops along which it moves.

    A convolution's input is none: windows overlap.
    """
    for index, region in enumerate(operands_of(sch.get(access.block))):
        strides = access.read_strides[index]
        if strides[vector_axis] != 1 or None in strides:
            continue
        steps = math.prod(n for n, stride in zip(access.extents, strides, strict=True) if stride)
        if steps == math.prod(static_extent(size) or 0 for size in region.source.shape):
            return index
    return None


def _parts(steps: int, cores: int) -> list[int]:
    """Into how many parts the rows may be cut, each with a copy of the panel."""
    return [n for n in range(1, cores + 1) if steps % n == 0]


def _makespan(steps: int, panels: int, parts: int, cores: int) -> int:
    """Register tiles one after the other on the core that has the most to do."""
    return -(-panels * parts // cores) * (steps // parts + _TILES_PER_COPY)

"""Blocks of a long reduction, of which all register tiles add up one before the next is begun.

This is the blocking along K in Goto and van de Geijn, "Anatomy of High-Performance Matrix
Multiplication" (2008), for operands that lie across the reduction: with ``C[i, j] += A[k, i] *
B[k, j]``, as for the gradient of weights, each step opens a line of either operand, of which a
tile reads a few elements. Over a whole reduction these lines leave the caches before the next
tile wants them.
"""

import math

from tvm import s_tir
from tvm.s_tir.schedule import LoopRV

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import BlockAccess
from tvm_ext.tir_schedules.cpu.cache_traffic import LINE_BYTES
from tvm_ext.tir_schedules.cpu.parallel_vectorize import largest_divisor
from tvm_ext.tir_schedules.cpu.register_blocking import (
    L1_PERIOD,
    L1_WAYS,
    RegisterTileDecision,
)
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Half of L1: lines that lie apart do not fill its sets evenly.
_BLOCK_BYTES = L1_PERIOD * L1_WAYS // 2
# Each block reads and writes all results: fewer steps, of sizes with no fitting divisor, cost more.
_LEAST_BYTES = _BLOCK_BYTES // 8


def decide_reduction_blocking(
    access: BlockAccess,
    tile: RegisterTileDecision,
    machine: CpuDescription,
    decisions: Decisions = DEFAULT_DECISIONS,
) -> dict[int, int]:
    """By loop that reduces, the steps of a block, where these are fewer than the loop has.

    Empty where blocks would not pay. A block's lines stay in L1. The decision
    ``reduction_block`` is whether there are blocks.
    """
    nbytes = _bytes_per_step(access, tile)
    steps = math.prod(access.extents[axis] for axis in access.reduction)
    if nbytes is None or steps * nbytes <= _BLOCK_BYTES:
        return {}
    lengths = _lengths(access, _BLOCK_BYTES // nbytes)
    block = math.prod(lengths.get(axis, access.extents[axis]) for axis in access.reduction)
    if block * nbytes < _LEAST_BYTES:
        return {}
    pays = bool(lengths) and steps * nbytes > machine.l2_bytes // 4
    return lengths if decisions.pick("reduction_block", (0, 1), int(pays)) else {}


def _bytes_per_step(access: BlockAccess, tile: RegisterTileDecision) -> int | None:
    """Lines that a tile opens in each step; None where an operand lies along the reduction."""
    repeated = [axis for axis in access.reduction if access.extents[axis] > 1]
    if not repeated or len(access.read_strides) != 2:
        return None
    sizes = {**tile.rows, tile.vector_axis: tile.columns}
    total = 0
    for strides in access.read_strides:
        step = strides[repeated[-1]]
        if step is None or abs(step) * access.element_bytes < LINE_BYTES:
            return None
        read = [size for axis, size in sizes.items() if strides[axis] == 1]
        total += -(-math.prod(read) * access.element_bytes // LINE_BYTES) * LINE_BYTES
    return total


def _lengths(access: BlockAccess, limit: int) -> dict[int, int]:
    """Blocks of at most ``limit`` steps: inner loops whole, one in even parts, outer ones not."""
    lengths = {}
    for axis in reversed(access.reduction):
        extent = access.extents[axis]
        size = largest_divisor(extent, limit)
        if size < extent:
            lengths[axis] = size
        limit = limit // size if size == extent else 1
    return lengths


def split_reduction(
    sch: s_tir.Schedule, access: BlockAccess, loops: list[LoopRV], lengths: dict[int, int]
) -> tuple[list[LoopRV], list[LoopRV]]:
    """The loops over blocks, and those within one, in place of the loops that reduce."""
    around, within = [], []
    for axis in access.reduction:
        if axis not in lengths:
            within.append(loops[axis])
            continue
        outer, inner = sch.split(loops[axis], factors=[None, lengths[axis]])
        around.append(outer)
        within.append(inner)
    return around, within

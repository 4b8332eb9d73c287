"""Parallel and vectorised loops for one block: what all CPU templates share."""

import math

from tvm import s_tir
from tvm.s_tir.schedule import LoopRV

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import BlockAccess, static_extent

# Registers' worth of elements in one vectorised loop: enough independent work to hide latency.
REGISTERS_PER_VECTOR_LOOP = 4

# Threads pay when the serial loop takes this many times as long as waking the threads.
PARALLEL_GAIN = 4.0

# Cycles that a call (exp, tanh, erf, division) takes compared with an add, per vector.
CYCLES_PER_CALL = 16.0


def largest_divisor(extent: int, limit: int) -> int:
    """The largest divisor of ``extent`` that is not above ``limit``."""
    return next(size for size in range(min(extent, max(limit, 1)), 0, -1) if extent % size == 0)


def vector_length(extent: int, lanes: int, registers: int) -> int:
    """Length of the vectorised loop: whole registers when they divide ``extent``.

    Otherwise the largest divisor, whose tail LLVM splits into narrower registers; a loop with a
    predicate would be three times as slow.
    """
    for count in range(registers, 0, -1):
        if extent % (count * lanes) == 0:
            return count * lanes
    return largest_divisor(extent, registers * lanes)


def worth_threads(machine: CpuDescription, operations: float, lanes: int) -> bool:
    """Whether ``operations`` vectorised operations take long enough to split over threads."""
    if machine.cores < 2:
        return False
    seconds = operations / (lanes * machine.clock_ghz * 1e9)
    return seconds > PARALLEL_GAIN * machine.parallel_overhead_us * 1e-6


def schedule_data_parallel(
    sch: s_tir.Schedule, access: BlockAccess, machine: CpuDescription, dtype: str, calls: int
) -> None:
    """Fuses the outer loops, runs them on threads, and vectorises the innermost one."""
    loops = list(sch.get_loops(access.block))
    if not loops:
        return
    lanes = machine.vector_lanes(dtype)
    if _is_contiguous(access):
        inner = sch.fuse(*loops) if len(loops) > 1 else loops[0]
        outer: list[LoopRV] = []
        extent = access.trip_count()
    else:
        *outer, inner = loops
        extent = _common_segment(sch, access)
    length = vector_length(extent, lanes, REGISTERS_PER_VECTOR_LOOP)
    if length > 1:
        split, vector = sch.split(inner, factors=[None, length])
        sch.vectorize(vector)
        outer.append(split)
    else:
        outer.append(inner)
    operations = access.trip_count() * (1 + CYCLES_PER_CALL * calls)
    parallelize(sch, outer, machine, operations, lanes)


def parallelize(
    sch: s_tir.Schedule,
    outer: list[LoopRV],
    machine: CpuDescription,
    operations: float,
    lanes: int,
) -> None:
    """Fuses ``outer`` and hands it to the threads when the work is worth it."""
    if not outer or not worth_threads(machine, operations, lanes):
        return
    fused = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    extent = static_extent(sch.get(fused).extent)
    if extent is None or extent > 1:
        sch.parallel(fused)


def _is_contiguous(access: BlockAccess) -> bool:
    """Whether every buffer is walked in the same dense order (or not at all)."""
    dense = []
    step = 1
    for extent in reversed(access.extents):
        dense.insert(0, step)
        step *= extent
    wanted = [s if e > 1 else None for s, e in zip(dense, access.extents, strict=True)]
    for strides in [access.write_strides, *access.read_strides]:
        walked = [s if e > 1 else None for s, e in zip(strides, access.extents, strict=True)]
        if walked != wanted and any(walked):
            return False
    return True


def _common_segment(sch: s_tir.Schedule, access: BlockAccess) -> int:
    """Extent of the innermost loop, or the segment that concatenated inputs have in common.

    A vector that stays inside one input needs no branch per element.
    """
    segment = access.extents[-1]
    for read in sch.get(access.block).reads:
        shape = read.source.shape
        size = static_extent(shape[-1]) if len(shape) else None
        if size is not None and size > 1:
            segment = math.gcd(segment, size)
    return segment

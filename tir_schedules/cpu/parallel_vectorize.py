"""Parallel and vectorised loops for one block, split at borders: what all CPU templates share."""

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    BlockAccess,
    is_conditional,
    linear_numbers,
    slope,
    static_extent,
)
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Where a block that picks one of several inputs (concatenation, padding) changes its choice.


# More pieces than this are more code than they are worth.
MAX_PIECES = 32

COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)

# A comparison asks whether the difference of its sides is below these numbers.
_THRESHOLDS: dict[type, tuple[int, ...]] = {
    tirx.LT: (0,),
    tirx.GE: (0,),
    tirx.LE: (1,),
    tirx.GT: (1,),
    tirx.EQ: (0, 1),
    tirx.NE: (0, 1),
}


@dataclass(frozen=True)
class Borders:
    """Positions along one loop at which a condition changes.

    Attributes
    ----------
    positions : tuple[int, ...]
        First iterations after each change, ascending.
    known : bool
        False when a condition depends on the loop in a way that has no fixed positions.
    """

    positions: tuple[int, ...] = ()
    known: bool = True

    def __bool__(self) -> bool:
        return bool(self.positions) or not self.known


def borders_of(sch: s_tir.Schedule, block: SBlockRV) -> list[Borders]:
    """The borders along each iteration variable of ``block``."""
    stmt = sch.get(block)
    comparisons = branch_comparisons(stmt.body)
    return [_borders(comparisons, v.var, v.dom.extent) for v in stmt.iter_vars]


def split_at_borders(sch: s_tir.Schedule, loop: LoopRV, borders: Borders) -> None:
    """One loop for each piece in which the choice stays the same, so that none has a branch."""
    if not borders.positions or not borders.known or len(borders.positions) >= MAX_PIECES:
        return
    starts = (0, *borders.positions)
    lengths = [end - start for start, end in zip(starts, borders.positions, strict=False)]
    try:
        sch.loop_partition(loop, [*lengths, None])
    except ScheduleError:
        return


def branch_comparisons(root: Any) -> list[tvm.ir.Expr]:
    """The comparisons that the branches (not the selections) below ``root`` ask for."""
    conditions: list[Any] = []

    def look(call: tvm.ir.Call) -> None:
        if is_conditional(call):
            conditions.append(call.args[0])

    tvm_ffi.structural_walk(root, (tvm.ir.Call, look))
    found: list[Any] = []
    for condition in conditions:
        tvm_ffi.structural_walk(condition, (COMPARISONS, found.append))
    return found


def changes(
    comparison: tvm.ir.Expr, loops: Sequence[tuple[tirx.Var, int]]
) -> tuple[int, tuple[int, ...]] | None:
    """The loop that decides a comparison most, and the iterations of it where it changes.

    Between the positions the comparison holds throughout, or nowhere, or (next to each other)
    there is a stretch in which other loops decide. None when it is not linear in the loops.
    """
    difference = comparison.a - comparison.b
    linear = linear_numbers(difference, [var for var, _ in loops])
    if linear is None:
        return None
    slopes, offset = linear
    steepest = max(range(len(loops)), key=lambda i: abs(slopes[i]), default=None)
    if steepest is None or slopes[steepest] == 0:
        return 0, ()
    rest = [
        slope * (extent - 1)
        for i, (slope, (_, extent)) in enumerate(zip(slopes, loops, strict=True))
        if i != steepest
    ]
    low, high = offset + sum(r for r in rest if r < 0), offset + sum(r for r in rest if r > 0)
    found: set[int] = set()
    for threshold in _THRESHOLDS[type(comparison)]:
        found |= _crossings(slopes[steepest], low, high, threshold)
    return steepest, tuple(sorted(p for p in found if 0 < p < loops[steepest][1]))


def _crossings(slope: int, low: int, high: int, threshold: int) -> set[int]:
    """First iterations ``t`` after which ``slope * t + [low, high] < threshold`` changes."""
    if slope > 0:
        return {-((high - threshold) // slope), -((low - threshold) // slope)}
    return {(high - threshold) // -slope + 1, (low - threshold) // -slope + 1}


def _borders(comparisons: list[tvm.ir.Expr], variable: tirx.Var, extent: tvm.ir.Expr) -> Borders:
    size = static_extent(extent)
    if size == 1:
        return Borders()
    found: set[int] = set()
    for comparison in comparisons:
        positions = _positions(comparison, variable, size)
        if positions is None or size is None:
            return Borders(known=False)
        found.update(position for position in positions if 0 < position < size)
    return Borders(tuple(sorted(found)))


def _positions(
    comparison: tvm.ir.Expr, variable: tirx.Var, size: int | None
) -> tuple[int, ...] | None:
    """Where the comparison changes along ``variable``; None when that is not one number."""
    step = slope(comparison.a - comparison.b, variable)
    if step is None:
        return None
    if step == 0:
        return ()
    found = changes(comparison, [(variable, size)]) if size is not None else None
    return found[1] if found is not None else None


# Registers' worth of elements in one vectorised loop: enough independent work to hide latency.
REGISTERS_PER_VECTOR_LOOP = 4

# Threads pay when the serial loop takes this many times as long as waking the threads.
PARALLEL_GAIN = 4.0

# A strided vector is gathered element by element: longer ones are only more code.
REGISTERS_PER_GATHER = 1

# Cycles that a call (exp, tanh, erf, division) takes compared with an add, per vector.
CYCLES_PER_CALL = 16.0


def largest_divisor(extent: int, limit: int) -> int:
    """The largest divisor of ``extent`` that is not above ``limit``; 1 for an empty loop."""
    sizes = range(min(extent, max(limit, 1)), 0, -1)
    return next((size for size in sizes if extent % size == 0), 1)


def vector_length(extent: int, lanes: int, registers: int) -> int:
    """Length of the vectorised loop: whole registers when they divide ``extent``.

    Otherwise the divisor of it, up to one register, that moves the most elements an instruction.
    Longer odd lengths (24 with 16 lanes) make LLVM keep the tile in memory, twenty times slower; a
    loop with a predicate would be three times as slow.
    """
    if extent < 1:
        return 1
    for count in range(registers, 0, -1):
        if extent % (count * lanes) == 0:
            return count * lanes
    divisors = [size for size in range(1, min(extent, lanes) + 1) if extent % size == 0]
    return max(divisors, key=lambda size: (elements_per_instruction(size), size))


def elements_per_instruction(length: int) -> float:
    """Elements of a vector of ``length`` for each instruction that it takes.

    LLVM moves 11 elements as 8, 2 and 1: registers come in powers of two.
    """
    return length / length.bit_count()


def worth_threads(
    machine: CpuDescription, operations: float, lanes: int, nbytes: float = 0.0
) -> bool:
    """Whether loops take long enough to split over threads.

    They take as long as their ``operations``, of which a vector holds ``lanes``, or as the
    ``nbytes`` that they read and write. What threads have just written waits in the caches of
    several cores, from where one core reads it no faster than from memory.
    """
    if machine.cores < 2:
        return False
    computed = operations / (lanes * machine.clock_ghz * 1e9)
    seconds = max(computed, nbytes / (machine.core_memory_gbs * 1e9))
    return seconds > PARALLEL_GAIN * machine.parallel_overhead_us * 1e-6


def schedule_data_parallel(
    sch: s_tir.Schedule, access: BlockAccess, machine: CpuDescription, dtype: str, calls: int
) -> tuple[LoopRV, Borders] | None:
    """Fuses the outer loops, runs them on threads, and vectorises the innermost one.

    Returns the innermost loop and the borders along it where a branch keeps it scalar.
    """
    loops = list(sch.get_loops(access.block))
    if not loops or not access.trip_count():
        return None
    read = [str(region.source.dtype) for region in sch.get(access.block).reads]
    lanes = min(machine.vector_lanes(name) for name in [dtype, *read])
    borders = borders_of(sch, access.block)
    first = _dense_suffix(access, borders)
    outer = loops[:first]
    inner = sch.fuse(*loops[first:]) if len(loops) - first > 1 else loops[first]
    registers = REGISTERS_PER_VECTOR_LOOP if _is_unit_stride(access) else REGISTERS_PER_GATHER
    # A vector across a border is taken apart into single elements.
    length = 1 if borders[first] else _aligned_length(access.extents[first:], lanes, registers)
    if length > 1:
        split, vector = sch.split(inner, factors=[None, length])
        sch.vectorize(vector)
        outer.append(split)
    elif not borders[first] and math.prod(access.extents[:first]) == 1:
        outer.append(inner)
    operations = access.trip_count() * (1 + CYCLES_PER_CALL * calls)
    parallelize(sch, outer, machine, operations, lanes)
    return (inner, borders[first]) if borders[first] else None


def flatten(sch: s_tir.Schedule, loops: list[LoopRV]) -> None:
    """Vectorises the last of ``loops`` and unrolls the others; nothing for no loops."""
    if loops:
        sch.vectorize(loops[-1])
    for row in loops[:-1]:
        sch.unroll(row)


def parallelize(
    sch: s_tir.Schedule,
    outer: list[LoopRV],
    machine: CpuDescription,
    operations: float,
    lanes: int,
    decisions: Decisions = DEFAULT_DECISIONS,
    name: str = "threads",
) -> None:
    """Fuses ``outer`` and hands it to the threads when the work is worth it.

    The decision is called ``name``; it is none where there is one core or one iteration.
    """
    worth = worth_threads(machine, operations, lanes)
    extents = [static_extent(sch.get(loop).extent) for loop in outer]
    if machine.cores > 1 and any(extent != 1 for extent in extents):
        worth = bool(decisions.pick(name, (0, 1), int(worth)))
    outer = outer[: _joinable(sch, outer)]
    if not outer or not worth:
        return
    fused = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    extent = static_extent(sch.get(fused).extent)
    if extent is None or extent > 1:
        sch.parallel(fused)


def _joinable(sch: s_tir.Schedule, loops: list[LoopRV]) -> int:
    """How many of the first ``loops`` TVM can take apart again once they are one.

    It cannot prove that a sum like ``n + 2``, times the loops behind it, divides what it should.
    """
    for count, loop in enumerate(loops):
        extent = sch.get(loop).extent
        if not isinstance(extent, tirx.IntImm | tirx.Var):
            alone = all(static_extent(sch.get(before).extent) == 1 for before in loops[:count])
            return count + 1 if alone else count
    return len(loops)


def _all_strides(access: BlockAccess) -> list[list[int | None]]:
    return [access.write_strides, *access.read_strides]


def _dense_suffix(access: BlockAccess, borders: list[Borders]) -> int:
    """Position of the first of the innermost loops that all buffers walk as if they were one.

    A loop with borders is not joined with others.
    """
    axes = [axis for axis, extent in enumerate(access.extents) if extent > 1]
    first = axes[-1] if axes else 0
    if borders[first]:
        return first
    while first > 0 and _is_dense(access, first - 1, first) and not borders[first - 1]:
        first -= 1
    return first


def _is_dense(access: BlockAccess, axis: int, first: int) -> bool:
    """Whether one step of ``axis`` is as long as all loops from ``first`` on, in every buffer."""
    if access.extents[axis] == 1:
        return True
    inner = [i for i in range(first, len(access.extents)) if access.extents[i] > 1]
    if not inner:
        return True
    outermost = inner[0]
    length = access.extents[outermost]
    return all(
        (step := strides[outermost]) is not None and strides[axis] == step * length
        for strides in _all_strides(access)
    )


def _is_unit_stride(access: BlockAccess) -> bool:
    """Whether the innermost loop loads and stores whole vectors, or broadcasts one element."""
    axes = [axis for axis, extent in enumerate(access.extents) if extent > 1]
    return not axes or all(strides[axes[-1]] in (0, 1) for strides in _all_strides(access))


def _aligned_length(extents: list[int], lanes: int, registers: int) -> int:
    """Length of the vectorised loop over fused loops: all of the inner ones, and part of the next.

    With any other length the index of an element stays a division with a remainder, and a vector
    of such indices is a gather.
    """
    lengths = [1]
    inner = 1
    for extent in reversed(extents):
        limit = registers * lanes // inner
        lengths += [inner * n for n in range(1, min(extent, limit) + 1) if extent % n == 0]
        inner *= extent
    return max(lengths, key=lambda length: (length % lanes == 0, length))


# What templates share when they offer decisions: options that differ, threads, numbered blocks.


# Registers' worth of elements that one loop over vectors may have in its body.
VECTORS = (1, 2, 4, 8)


def distinct(
    options: Iterable[int], default: int, outcome: Callable[[int], Hashable]
) -> Iterator[int]:
    """Those of ``options`` that come to something else than the others; the default is kept.

    Found out only when they are looked at, which the default heuristic does not.
    """
    known = {outcome(default)}
    for option in options:
        if outcome(option) not in known:
            known.add(outcome(option))
            yield option


def pick_threads(
    decisions: Decisions, machine: CpuDescription, iterations: Callable[[], int], default: bool
) -> bool:
    """Whether loops run on threads: a choice where they have more than one iteration to share."""
    if machine.cores < 2:
        return False
    options = (option for option in (0, 1) if iterations() > 1)
    return bool(decisions.pick("threads", options, int(default)))

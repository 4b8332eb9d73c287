"""The generic schedule: every block in a loop nest of its own, on threads and in vectors.

It takes what no other template takes: operands that are walked with a stride (grouped or strided
convolutions), reductions over different rows in one kernel, symbolic extents, several results.
"""

import math
from collections.abc import Sequence

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    BlockAccess,
    access_of,
    count_calls,
    is_data_parallel,
    kernel_blocks,
    same_block,
    static_extent,
    static_product,
)
from tvm_ext.tir_schedules.cpu.parallel_vectorize import (
    REGISTERS_PER_VECTOR_LOOP,
    parallelize,
    schedule_data_parallel,
    vector_length,
)
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.reducers import rfactor
from tvm_ext.tir_schedules.template import Decisions


class Blockwise:
    """Any kernel made of blocks whose outer loops are data-parallel."""

    name = "blockwise"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``. It asks for no decision: a fallback has nothing to tune."""
        sch = inlined_schedule(func)
        blocks = kernel_blocks(sch)
        if not blocks:
            raise NotApplicable("the kernel has no blocks: its loops are written by hand")
        for block in blocks:
            schedule_block(sch, block, machine)
        return sch


def schedule_others(sch: s_tir.Schedule, done: Sequence[SBlockRV], machine: CpuDescription) -> None:
    """The blocks of a kernel that are not among ``done``, each in a loop nest of its own."""
    for block in kernel_blocks(sch):
        if not any(same_block(sch, block, known) for known in done):
            schedule_block(sch, block, machine)


def schedule_block(sch: s_tir.Schedule, block: SBlockRV, machine: CpuDescription) -> None:
    """Loops, vectors and threads for one block, in a loop nest of its own."""
    access = access_of(sch, block)
    if access is None:
        _schedule_symbolic(sch, block, machine)
        return
    if not access.trip_count():
        return
    dtype = str(sch.get(block).writes[0].source.dtype)
    calls = count_calls(sch.get(block).body)
    if is_data_parallel(sch, block):
        schedule_data_parallel(sch, access, machine, dtype, calls)
        return
    contiguous = [
        axis
        for axis in access.reduction
        if any(strides[axis] == 1 for strides in access.read_strides)
    ]
    inner = max(contiguous, key=lambda axis: access.extents[axis], default=None)
    lanes = machine.vector_lanes(dtype)
    if inner is None or access.extents[inner] < lanes:
        _vectorize_outputs(sch, access, machine, lanes)
        return
    _vectorize_reduction(sch, access, inner, machine, lanes)


def _vectorize_reduction(
    sch: s_tir.Schedule, access: BlockAccess, axis: int, machine: CpuDescription, lanes: int
) -> None:
    """Partial results in the lanes of vectors, combined at the end of each output."""
    loops = list(sch.get_loops(access.block))
    length = vector_length(access.extents[axis], lanes, REGISTERS_PER_VECTOR_LOOP)
    if length < 2:
        _vectorize_outputs(sch, access, machine, lanes)
        return
    partial = _partial_lanes(sch, access.block, loops[axis], length, len(access.spatial))
    if partial is None:
        _vectorize_outputs(sch, access, machine, lanes)
        return
    # The loops keep their order; the split one has become two.
    position = iter(sch.get_loops(partial))
    outer: list[LoopRV] = []
    inner: list[LoopRV] = []
    for index, reduces in enumerate(access.is_reduction):
        (inner if reduces else outer).append(next(position))
        if index == axis:
            lane_loop = next(position)
    sch.reorder(*outer, *inner, lane_loop)
    sch.vectorize(lane_loop)
    # Threads first: once the start value has a block of its own, TVM refuses to parallelise.
    if outer:
        row = sch.fuse(*outer) if len(outer) > 1 else outer[0]
        if _move_under(sch, access.block, row):
            parallelize(sch, [row], machine, access.trip_count(), lanes)
    _start_in_vectors(sch, partial, inner[0])


def _partial_lanes(
    sch: s_tir.Schedule, block: SBlockRV, loop: LoopRV, length: int, axis: int
) -> SBlockRV | None:
    """Partial results of every ``length``-th iteration of a loop, along a new ``axis``.

    None, and one loop as before, where a lane has no value to start from: results of several values
    at once (argmax).
    """
    outer, lane_loop = sch.split(loop, factors=[None, length])
    try:
        return rfactor(sch, block, lane_loop, axis)
    except ScheduleError:
        sch.fuse(outer, lane_loop)
        return None


def _start_in_vectors(sch: s_tir.Schedule, block: SBlockRV, outermost: LoopRV) -> None:
    """Start values ahead of the outermost loop that reduces, in vectors like the rest."""
    init = sch.decompose_reduction(block, outermost)
    sch.vectorize(sch.get_loops(init)[-1])


def _move_under(sch: s_tir.Schedule, block: SBlockRV, loop: LoopRV) -> bool:
    try:
        sch.reverse_compute_at(block, loop)
    except ScheduleError:
        return False
    return True


def _vectorize_outputs(
    sch: s_tir.Schedule, access: BlockAccess, machine: CpuDescription, lanes: int
) -> None:
    """Several outputs at once, each reduced in its own lane."""
    loops = list(sch.get_loops(access.block))
    spatial = [loops[axis] for axis in access.spatial]
    reduction = [loops[axis] for axis in access.reduction]
    if not spatial:
        return
    unit = [
        axis
        for axis in access.spatial
        if access.write_strides[axis] == 1 and access.extents[axis] > 1
    ]
    if not unit:
        sch.reorder(*spatial, *reduction)
        parallelize(sch, spatial, machine, access.trip_count(), 1)
        return
    length = vector_length(access.extents[unit[-1]], lanes, 1)
    outer, vector = sch.split(loops[unit[-1]], factors=[None, length])
    rest = [loops[axis] for axis in access.spatial if axis != unit[-1]]
    sch.reorder(*rest, outer, *reduction, vector)
    sch.vectorize(vector)
    row = sch.fuse(*rest, outer) if rest else outer
    parallelize(sch, [row], machine, access.trip_count(), lanes)
    _start_in_vectors(sch, access.block, reduction[0])


def _schedule_symbolic(sch: s_tir.Schedule, block: SBlockRV, machine: CpuDescription) -> None:
    """Extents are not known: outer data-parallel loops on threads, a static inner one in vectors.

    Blocks with several results (argmax) come here as well; their loops stay scalar.
    """
    stmt = sch.get(block)
    kinds = [v.iter_type for v in stmt.iter_vars]
    extents = [static_extent(sch.get(loop).extent) for loop in sch.get_loops(block)]
    if len(extents) != len(kinds) or not kinds or 0 in extents:
        return
    if tirx.IterVar.DataPar not in kinds and _reduce_in_lanes(sch, block, machine):
        return
    lanes = min(machine.vector_lanes(str(write.source.dtype)) for write in stmt.writes)
    if _reduces_rows(stmt) and _last_axis_in_lanes(sch, block, machine, lanes):
        return
    pairs = list(zip(sch.get_loops(block), kinds, strict=True))
    spatial = [loop for loop, kind in pairs if kind == tirx.IterVar.DataPar]
    others = [loop for loop, kind in pairs if kind != tirx.IterVar.DataPar]
    vector = None
    if spatial and len(stmt.writes) == 1:
        extent = static_extent(sch.get(spatial[-1]).extent)
        length = vector_length(extent, lanes, 1) if extent is not None else 1
        if length > 1:
            spatial[-1], vector = sch.split(spatial[-1], factors=[None, length])
    inner = [vector] if vector is not None else []
    sch.reorder(*spatial, *others, *inner)
    if vector is not None:
        sch.vectorize(vector)
    count = static_product(extents)
    operations = math.inf if count is None else count
    parallelize(sch, _rows(sch, spatial, machine), machine, operations, lanes)
    if not others:
        return
    # Outside of the reduction, so that one over nothing starts as well.
    init = sch.decompose_reduction(block, others[0])
    if vector is not None:
        sch.vectorize(sch.get_loops(init)[-1])


def _reduce_in_lanes(sch: s_tir.Schedule, block: SBlockRV, machine: CpuDescription) -> bool:
    """Partial results in vectors where all of a tensor is reduced, its last axis of a known size.

    Whether that could be done. As scalars, LLVM unrolls such loops for minutes.
    """
    stmt = sch.get(block)
    if len(stmt.writes) != 1 or len(stmt.reads) != 1:
        return False
    if not stmt.reads[0].region[-1].min.same_as(stmt.iter_vars[-1].var):
        return False
    return _last_axis_in_lanes(sch, block, machine, 2)


def _reduces_rows(stmt: s_tir.SBlock) -> bool:
    """Whether rows that lie in one piece are reduced, and outputs beside each other read no such.

    So a matrix is multiplied with a vector whose place, or whose matrix, the run chooses.
    """
    kinds = [one.iter_type for one in stmt.iter_vars]
    spatial = kinds.count(tirx.IterVar.DataPar)
    if not spatial or set(kinds[spatial:]) != {tirx.IterVar.CommReduce} or len(stmt.writes) != 1:
        return False
    last, output = stmt.iter_vars[-1].var, stmt.iter_vars[spatial - 1].var
    ends = [read.region[-1].min for read in stmt.reads if len(read.region)]
    if not any(end.same_as(last) for end in ends):
        return False
    return not any(output.same_as(one) for end in ends for one in tirx.analysis.undefined_vars(end))


def _last_axis_in_lanes(
    sch: s_tir.Schedule, block: SBlockRV, machine: CpuDescription, least: int
) -> bool:
    """Partial results in vectors of ``least`` lanes or more along the last axis, which is reduced.

    Whether that was done.
    """
    stmt = sch.get(block)
    spatial = sum(one.iter_type == tirx.IterVar.DataPar for one in stmt.iter_vars)
    lanes = machine.vector_lanes(str(stmt.writes[0].source.dtype))
    loops = list(sch.get_loops(block))
    extent = static_extent(sch.get(loops[-1]).extent)
    length = 1 if extent is None else vector_length(extent, lanes, REGISTERS_PER_VECTOR_LOOP)
    if length < least:
        return False
    partial = _partial_lanes(sch, block, loops[-1], length, spatial)
    if partial is None:
        return False
    *outer, lane_loop = sch.get_loops(partial)
    sch.vectorize(lane_loop)
    rows, inner = outer[:spatial], outer[spatial]
    if rows and _move_under(sch, block, rows[-1]):
        parallelize(sch, _rows(sch, rows, machine), machine, math.inf, lanes)
    _start_in_vectors(sch, partial, inner)
    return True


def _rows(sch: s_tir.Schedule, spatial: list[LoopRV], machine: CpuDescription) -> list[LoopRV]:
    """The outer loops that give every thread something to do.

    The innermost one stays by itself: to find its place in a joined loop takes a division for each
    of the others, in every iteration, which LLVM spends seconds on to bring into vectors.
    """
    for count, loop in enumerate(spatial[:-1]):
        extent = static_extent(sch.get(loop).extent)
        if extent is not None and extent >= machine.cores:
            return spatial[: count + 1]
    return spatial[:-1] or spatial

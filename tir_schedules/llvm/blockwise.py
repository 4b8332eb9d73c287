"""The generic schedule: every block in a loop nest of its own, on threads and in vectors.

It takes what no other template takes: several reductions in one kernel (softmax, normalisation),
symbolic extents, blocks with several results.
"""

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import BlockAccess, access_of
from tvm_ext.tir_schedules.llvm.inlining import (
    count_calls,
    inline_blocks,
    is_data_parallel,
    kernel_blocks,
)
from tvm_ext.tir_schedules.llvm.loop_nest import (
    REGISTERS_PER_VECTOR_LOOP,
    parallelize,
    schedule_data_parallel,
    vector_length,
)
from tvm_ext.tir_schedules.template import Machine, NotMine


class Blockwise:
    """Any kernel made of blocks whose outer loops are data-parallel."""

    name = "blockwise"

    def apply(self, func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, CpuDescription):
            return NotMine("the target is not a CPU")
        sch = s_tir.Schedule(func)
        inline_blocks(sch)
        blocks = kernel_blocks(sch)
        if not blocks:
            return NotMine("the kernel has no blocks: its loops are written by hand")
        for block in blocks:
            _schedule_block(sch, block, machine)
        return sch


def _schedule_block(sch: s_tir.Schedule, block: SBlockRV, machine: CpuDescription) -> None:
    access = access_of(sch, block)
    if access is None:
        _schedule_symbolic(sch, block, machine)
        return
    dtype = str(sch.get(block).writes[0].source.dtype)
    calls = count_calls(sch.get(block).body)
    if is_data_parallel(sch, block):
        schedule_data_parallel(sch, access, machine, dtype, calls)
        return
    contiguous = [axis for axis in access.reduction if _is_contiguous_read(access, axis)]
    inner = max(contiguous, key=lambda axis: access.extents[axis], default=None)
    lanes = machine.vector_lanes(dtype)
    if inner is None or access.extents[inner] < lanes:
        _vectorize_outputs(sch, access, machine, lanes)
        return
    _vectorize_reduction(sch, access, inner, machine, lanes)


def _is_contiguous_read(access: BlockAccess, axis: int) -> bool:
    return any(strides[axis] == 1 for strides in access.read_strides)


def _vectorize_reduction(
    sch: s_tir.Schedule, access: BlockAccess, axis: int, machine: CpuDescription, lanes: int
) -> None:
    """Partial results in the lanes of vectors, combined at the end of each output."""
    loops = list(sch.get_loops(access.block))
    length = vector_length(access.extents[axis], lanes, REGISTERS_PER_VECTOR_LOOP)
    if length < 2:
        _vectorize_outputs(sch, access, machine, lanes)
        return
    _, lane_loop = sch.split(loops[axis], factors=[None, length])
    try:
        partial = sch.rfactor(lane_loop, len(access.spatial))
    except ScheduleError:
        # Results of several values at once (argmax) have no identity to start a lane from.
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
    init = sch.decompose_reduction(partial, inner[0])
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
    unit = [axis for axis in access.spatial if access.write_strides[axis] == 1]
    if not unit or access.extents[unit[-1]] < 2:
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
    init = sch.decompose_reduction(access.block, reduction[0])
    sch.vectorize(sch.get_loops(init)[-1])


def _schedule_symbolic(sch: s_tir.Schedule, block: SBlockRV, machine: CpuDescription) -> None:
    """Extents are not known: outer data-parallel loops on threads, static inner ones in vectors."""
    loops = list(sch.get_loops(block))
    stmt = sch.get(block)
    if len(loops) != len(stmt.iter_vars) or not loops:
        return
    kinds = [v.iter_type for v in stmt.iter_vars]
    spatial = [
        loop for loop, kind in zip(loops, kinds, strict=True) if kind == tirx.IterVar.DataPar
    ]
    others = [loop for loop, kind in zip(loops, kinds, strict=True) if kind != tirx.IterVar.DataPar]
    sch.reorder(*spatial, *others)
    if others:
        if spatial and machine.cores > 1:
            sch.parallel(sch.fuse(*spatial) if len(spatial) > 1 else spatial[0])
        # Outside of the reduction, so that one over nothing starts as well.
        sch.decompose_reduction(block, others[0])
        return
    fused = sch.fuse(*spatial) if len(spatial) > 1 else spatial[0]
    dtype = str(stmt.writes[0].source.dtype) if stmt.writes else "float32"
    outer, vector = sch.split(fused, factors=[None, machine.vector_lanes(dtype)])
    sch.vectorize(vector)
    if machine.cores > 1:
        sch.parallel(outer)

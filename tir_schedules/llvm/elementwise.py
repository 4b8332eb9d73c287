"""Elementwise, broadcast and data-movement kernels: one vectorised, parallel loop nest a block."""

from tvm import s_tir, tirx

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import access_of
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.inlining import (
    count_calls,
    inlined_schedule,
    is_data_parallel,
    kernel_blocks,
)
from tvm_ext.tir_schedules.llvm.borders import split_at_borders
from tvm_ext.tir_schedules.llvm.data_parallel import plan_blocks, scheduled
from tvm_ext.tir_schedules.llvm.loop_nest import schedule_data_parallel
from tvm_ext.tir_schedules.llvm.open_elements import open_elements
from tvm_ext.tir_schedules.template import Machine, NotMine


class Elementwise:
    """Kernels in which every output element is computed on its own."""

    name = "elementwise"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, CpuDescription):
            return NotMine("the target is not a CPU")
        sch = inlined_schedule(func)
        if not all(is_data_parallel(sch, block) for block in kernel_blocks(sch)):
            return NotMine("the kernel reduces or scans")
        plan = plan_blocks(sch, machine, decisions)
        if isinstance(plan, NotMine):
            found = _block_by_block(sch, machine)
            return open_elements(func, machine) if isinstance(found, NotMine) else found
        return scheduled(func, plan, machine)


def _block_by_block(sch: s_tir.Schedule, machine: CpuDescription) -> s_tir.Schedule | NotMine:
    """For blocks that are more than one assignment: their loops stay in one piece."""
    branching = []
    for block in kernel_blocks(sch):
        access = access_of(sch, block)
        if access is None:
            return NotMine("a loop has a symbolic extent or a block writes several buffers")
        dtype = str(sch.get(block).writes[0].source.dtype)
        calls = count_calls(sch.get(block).body)
        branching.append(schedule_data_parallel(sch, access, machine, dtype, calls))
    # Last, since blocks cannot be found by their loops any more.
    for inner in branching:
        if inner is not None:
            split_at_borders(sch, *inner)
    return sch

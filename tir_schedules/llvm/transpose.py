"""Transposes, and what is computed on the way: kernels that read along one axis, write another."""

from tvm import s_tir, tirx

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.inlining import inlined_schedule, is_data_parallel, kernel_blocks
from tvm_ext.tir_schedules.llvm.data_parallel import plan_blocks, scheduled
from tvm_ext.tir_schedules.template import Machine, NotMine


class Transpose:
    """Kernels without a reduction, part of which is turned in registers."""

    name = "transpose"

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
            return plan
        if not any(block.decision.tiles for block in plan.blocks):
            return NotMine("every buffer is read along the axis along which the result is written")
        return scheduled(func, plan, machine)

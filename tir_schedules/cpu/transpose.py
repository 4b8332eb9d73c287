"""Transposes, and what is computed on the way: kernels that read along one axis, write another."""

from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import runs_in_any_order
from tvm_ext.tir_schedules.cpu.data_parallel import plan_blocks, scheduled
from tvm_ext.tir_schedules.inlining import inlined_blocks
from tvm_ext.tir_schedules.template import Decisions


class CpuTranspose:
    """Kernels without a reduction, part of which is transposed in registers."""

    name = "transpose"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        if not all(map(runs_in_any_order, inlined_blocks(func))):
            raise NotApplicable("the kernel reduces or scans")
        plan = plan_blocks(func, machine, decisions)
        if not any(block.decision.tiles for block in plan.blocks):
            raise NotApplicable(
                "every buffer is read along the axis along which the result is written"
            )
        return scheduled(func, plan, machine)

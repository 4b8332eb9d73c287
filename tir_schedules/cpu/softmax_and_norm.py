"""Softmax and normalisations: one loop over rows, in which every block passes over the row.

What waits between two blocks stays in cache: a row in the output or in a small buffer, and a value
of the whole row in a register.
"""

from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import kernel_blocks, schedule_of
from tvm_ext.tir_schedules.analysis.row_kernel import is_reduction_only, with_joined_loops
from tvm_ext.tir_schedules.analysis.row_reader import hoisted, read_rows, refuse_early, refuse_rows
from tvm_ext.tir_schedules.cpu.row_code import rows_nest, with_body
from tvm_ext.tir_schedules.cpu.row_decision import decide_rows, refuse_symbolic
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions


class SoftmaxAndNorm:
    """Reductions of rows, and blocks that use their results for every element of the row."""

    name = "softmax and norm"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        refuse_early(schedule_of(func))
        sch = inlined_schedule(func)
        blocks = [sch.get(block) for block in kernel_blocks(sch)]
        kernel = read_rows(blocks, func.params, symbolic_rows=True, symbolic_columns=True)
        refuse_rows(kernel)
        refuse_symbolic(kernel)
        if is_reduction_only(kernel):
            raise NotApplicable("no block uses a reduced row element by element")
        kernel = hoisted(with_joined_loops(kernel))
        nest = rows_nest(kernel, decide_rows(kernel, machine, decisions))
        return s_tir.Schedule(with_body(func, nest))

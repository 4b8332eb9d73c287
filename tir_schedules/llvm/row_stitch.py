"""Softmax and normalisations: one loop over rows, in which every block passes over the row.

What waits between two blocks stays in cache: a row in the output or in a small buffer, and a value
of the whole row in a register.
"""

from tvm import s_tir, tirx

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.inlining import inline_blocks, kernel_blocks
from tvm_ext.tir_schedules.llvm.row_code import with_body
from tvm_ext.tir_schedules.llvm.row_decision import decide_rows
from tvm_ext.tir_schedules.llvm.row_nest import rows_nest
from tvm_ext.tir_schedules.rows.row_hoist import hoisted
from tvm_ext.tir_schedules.rows.row_kernel import is_reduction_only
from tvm_ext.tir_schedules.rows.row_reader import read_rows
from tvm_ext.tir_schedules.rows.row_refusals import refuse_early, refuse_rows
from tvm_ext.tir_schedules.template import Machine, NotMine


class RowStitch:
    """Reductions of rows, and blocks that use their results for every element of the row."""

    name = "row stitch"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, CpuDescription):
            return NotMine("the target is not a CPU")
        sch = s_tir.Schedule(func)
        refusal = refuse_early(sch)
        if refusal is not None:
            return refusal
        inline_blocks(sch)
        kernel = read_rows([sch.get(block) for block in kernel_blocks(sch)], func.params)
        if isinstance(kernel, NotMine):
            return kernel
        refusal = refuse_rows(kernel)
        if refusal is not None:
            return refusal
        if is_reduction_only(kernel):
            return NotMine("no block uses a reduced row element by element")
        kernel = hoisted(kernel)
        nest = rows_nest(kernel, decide_rows(kernel, machine, decisions))
        return s_tir.Schedule(with_body(func, nest))

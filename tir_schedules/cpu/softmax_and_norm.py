"""Softmax and normalisations: one loop over rows, in which every block passes over the row.

What waits between two blocks stays in cache: a row in the output or in a small buffer, and a value
of the whole row in a register.
"""

from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import among, static_extent
from tvm_ext.tir_schedules.analysis.row_kernel import (
    RowKernel,
    buffer_key,
    is_dense,
    is_reduction_only,
)
from tvm_ext.tir_schedules.analysis.row_reader import hoisted, read_rows, refuse_early, refuse_rows
from tvm_ext.tir_schedules.cpu.row_code import rows_nest, with_body
from tvm_ext.tir_schedules.cpu.row_decision import decide_rows, is_symbolic, row_in_output
from tvm_ext.tir_schedules.inlining import inlined_schedule, kernel_blocks
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions


class SoftmaxAndNorm:
    """Reductions of rows, and blocks that use their results for every element of the row."""

    name = "row stitch"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule | NotApplicable:
        """See ``Template.apply``."""
        refusal = refuse_early(s_tir.Schedule(func))
        if refusal is not None:
            return refusal
        sch = inlined_schedule(func)
        blocks = [sch.get(block) for block in kernel_blocks(sch)]
        kernel = read_rows(blocks, func.params, symbolic_rows=True, symbolic_columns=True)
        if isinstance(kernel, NotApplicable):
            return kernel
        refusal = refuse_rows(kernel) or _refuse_symbolic(kernel)
        if refusal is not None:
            return refusal
        if is_reduction_only(kernel):
            return NotApplicable("no block uses a reduced row element by element")
        kernel = hoisted(kernel)
        nest = rows_nest(kernel, decide_rows(kernel, machine, decisions))
        return s_tir.Schedule(with_body(func, nest))


def _refuse_symbolic(kernel: RowKernel) -> NotApplicable | None:
    """Why rows of which the number or length is known in the run only cannot run along the row."""
    if not is_symbolic(kernel):
        return None
    if any(block.starts and len(block.stores) > 1 for block in kernel.blocks):
        return NotApplicable("several results are reduced together, of rows known in the run only")
    blocks = [block for block in kernel.blocks if block.columns]
    if not all(is_dense(kernel, block.columns, [block]) for block in blocks):
        return NotApplicable("rows known in the run only are not contiguous")
    waiting = row_in_output(kernel)
    kept = [waiting[0]] if waiting is not None else []
    buffers = [store.buffer for block in kernel.blocks for store in block.stores]
    for buffer in buffers:
        inside = kernel.inner.get(buffer_key(buffer), ())
        known = all(static_extent(buffer.shape[d]) is not None for d in inside)
        if not known and not among(buffer, kept):
            return NotApplicable(
                "a row of a length known in the run only waits outside of the output"
            )
    return None

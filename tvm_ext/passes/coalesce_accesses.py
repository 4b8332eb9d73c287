"""The pass that turns loops so that neighbouring elements are accessed together."""

import tvm
from tvm import tirx

from tvm_ext.compiler.graph_analysis import kernel_calls
from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied, record_refusal
from tvm_ext.relay_passes.spans import with_functions
from tvm_ext.tir_schedules.cpu.outer_vectors import coalesced, is_written_by_hand


@graph_pass
class CoalesceAccesses:
    """Gives loops written by hand vectors along the axis in which their tensors are contiguous.

    Before: ``for c in n: { s[0] = 0; for r in m: { s[0] += x[r, c]; y[r, c] = s[0] } }``
    After:  ``for g in n // 64: { s[:] = 0; for r in m: { s[:] += x[r, g * 64 :]; ... } }``

    The first form reads a cache line for each element, and the second uses all of it. The analysis
    of accesses counts the lines that both ask for: the loops are changed where these become less
    than half. CumSum along an axis that is not the last is such a kernel. Of tensors that L2 does
    not hold, groups are longer, and a loop goes over their vectors: memory is read in rows then.

    Leaves alone: kernels that a template schedules, whose accesses it has arranged; loops whose
    iterations are not known to be independent; sizes along the axis that a run decides; targets
    other than CPUs.

    Run after: ScheduleKernels. Run before: VectorMath, which takes calls out of loops.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when no kernel gains."""
        machine = current_cpu()
        if machine is None:
            return mod
        origins = {call.kernel: call.where for call in kernel_calls(mod)}
        changed: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
        for global_var, func in mod.functions.items():
            if not isinstance(func, tirx.PrimFunc) or not is_written_by_hand(func):
                continue
            where = origins.get(str(global_var.name_hint)) or str(global_var.name_hint)
            try:
                found = coalesced(func, machine)
            except NotApplicable as refusal:
                record_refusal("CoalesceAccesses", where, refusal.reason)
                continue
            lines = f"{found.lines:,.0f} cache lines instead of {found.lines_before:,.0f}"
            record_applied("CoalesceAccesses", where, f"vectors along another loop: {lines}")
            changed[global_var] = found.func
        return with_functions(mod, changed)

"""The pass that leaves threads alone where a run is too small for them."""

from functools import partial

import tvm
from tvm import tirx

from tvm_ext.compiler.compile_context import once_for_kernel
from tvm_ext.compiler.graph_analysis import kernel_calls
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied, record_refusal
from tvm_ext.relay_passes.spans import with_functions
from tvm_ext.tir_schedules.cpu.thread_choice import with_thread_choice


@graph_pass
class ThreadsForLargeRuns:
    """Runs loops of symbolic size on threads only where the sizes of a run are worth it.

    Before: ``for i in T.parallel(n): ...``
    After:  ``with T.attr(0, "tvm_ext.threads_if", n * 12 > 60000): for i in T.parallel(n): ...``,
    of which ``OutlineThreadChoices`` makes a function that threads call, or the kernel alone

    Handing work to threads takes microseconds, and waking them up tens of these: more than all
    kernels of a small model take for a single row.

    Leaves alone: loops of known size, for which the schedules decide; loops whose number of turns
    depends on other loops; targets other than CPUs.

    Run after: the schedules. Run before: nothing in particular.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when no kernel has such a loop."""
        machine = current_cpu()
        if machine is None or machine.cores < 2:
            return mod
        origins = {call.kernel: call.where for call in kernel_calls(mod)}
        changed: dict[tvm.ir.GlobalVar, tirx.PrimFunc] = {}
        for global_var, func in mod.functions.items():
            if not isinstance(func, tirx.PrimFunc):
                continue
            where = origins.get(str(global_var.name_hint)) or str(global_var.name_hint)
            result = once_for_kernel(
                "ThreadsForLargeRuns", func, partial(with_thread_choice, func, machine)
            )
            if result.loops:
                record_applied(
                    "ThreadsForLargeRuns", where, f"{result.loops} loops with threads in large runs"
                )
                changed[global_var] = result.func
            if result.left:
                record_refusal("ThreadsForLargeRuns", where, "its work is not known beforehand")
        return with_functions(mod, changed)

"""The schedule of a kernel around one window: the window's loops, and the blocks that follow."""

from tvm import s_tir, tirx

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.llvm.data_parallel import block_code, plan_nests, with_body
from tvm_ext.tir_schedules.template import NotMine
from tvm_ext.tir_schedules.windows.window_kernel import WindowKernel


def schedule_window(
    kernel: WindowKernel,
    func: tirx.PrimFunc,
    first: tirx.Stmt,
    machine: CpuDescription,
    decisions: Decisions = CLOSED_FORM,
) -> s_tir.Schedule | NotMine:
    """``func`` with ``first`` for the window, followed by the blocks that it leaves.

    Their decisions are numbered; the names without a number are those of the window.
    """
    nests = kernel.later_nests()
    if isinstance(nests, NotMine):
        return nests
    read = kernel.read_func()
    plans = plan_nests(nests, kernel.views, read, machine, decisions, alone=False)
    later = [block_code(plan, machine) for plan in plans]
    return with_body(func, kernel.views, [first, *later])

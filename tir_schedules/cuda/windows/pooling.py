"""Pooling on a GPU: each thread slides a window along a strip of results, in registers.

Rows of the input that windows share come from L1; padding is nowhere in memory. The limit is to
read the input and write the result once.
"""

from tvm import s_tir, tirx

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.windows.strip_schedule import schedule_strips
from tvm_ext.tir_schedules.cuda.windows.strip_window import strip_window
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.inlining import reduction_blocks
from tvm_ext.tir_schedules.template import Machine, NotMine
from tvm_ext.tir_schedules.windows.window_kernel import window_kernel


class Pooling:
    """Kernels that reduce a window which slides along at least one axis."""

    name = "pooling"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``. Decisions: those of ``schedule_strips``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not an NVIDIA GPU")
        sch = s_tir.Schedule(func)
        if len(reduction_blocks(sch)) != 1:
            return NotMine("it is not one reduction")
        kernel = window_kernel(func)
        if isinstance(kernel, NotMine):
            return kernel
        window = strip_window(kernel, weighted=False)
        if isinstance(window, NotMine):
            return window
        return schedule_strips(window, func, machine, decisions)

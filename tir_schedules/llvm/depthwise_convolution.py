"""Depthwise convolution: every channel with a window of its own, so that memory is the limit.

Nothing is padded in memory. With channels last, a vector holds channels: a row of results keeps
its sums in registers while the window's rows pass, and only tiles at the ends of a row are written
without the taps that fall on padding. With channels first, a vector holds neighbouring columns: a
few rows of one channel are copied into L1 with their borders, and stay there for all taps.
"""

from tvm import s_tir, tirx

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import access_of
from tvm_ext.tir_schedules.llvm.depthwise_channels_last import (
    ChannelsLast,
    ChannelsLastDecision,
    decide_channels_last,
    row_tiles,
)
from tvm_ext.tir_schedules.llvm.depthwise_window import depthwise_window
from tvm_ext.tir_schedules.llvm.inlining import is_data_parallel, kernel_blocks
from tvm_ext.tir_schedules.llvm.window_kernel import window_kernel
from tvm_ext.tir_schedules.template import Machine, NotMine

# Ends of rows that are written out, each with its own taps: more are too much code.
MAX_ENDS = 8


class DepthwiseConvolution:
    """Kernels that multiply a window over each channel by weights of that channel."""

    name = "depthwise convolution"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decision: ChannelsLastDecision | None = None
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``; ``decision`` replaces the closed-form choice."""
        if not isinstance(machine, CpuDescription):
            return NotMine("the target is not a CPU")
        sch = s_tir.Schedule(func)
        if not _every_result_has_its_own_input(sch):
            return NotMine("it is not one reduction in which no two channels share an input")
        kernel = window_kernel(sch, weighted=True)
        if isinstance(kernel, NotMine):
            return kernel
        window = depthwise_window(kernel.window)
        if isinstance(window, NotMine):
            return window
        if kernel.once:
            return NotMine("an element may not be computed twice")
        if window.channels is None:
            return NotMine("channels are not next to each other")
        chosen = decision or decide_channels_last(window, window.channels.extent, machine)
        if len(row_tiles(window.columns, chosen.columns)[0]) > MAX_ENDS:
            return NotMine("too much of each row is next to padding")
        code = ChannelsLast(window, window.channels, chosen, kernel.store, kernel.result)
        return kernel.schedule(func, code.statement(machine), machine)


def _every_result_has_its_own_input(sch: s_tir.Schedule) -> bool:
    """Whether the only reduction reads one input that moves with each of the result's loops.

    A product of matrices or a whole convolution has none: rows share columns.
    """
    reductions = [block for block in kernel_blocks(sch) if not is_data_parallel(sch, block)]
    if len(reductions) != 1:
        return False
    access = access_of(sch, reductions[0])
    if access is None or len(access.read_strides) != 2 or not access.trip_count():
        return False
    axes = [axis for axis in access.spatial if access.extents[axis] > 1]
    moving = [all(strides[axis] for axis in axes) for strides in access.read_strides]
    return sum(moving) == 1

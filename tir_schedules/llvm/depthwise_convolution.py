"""Depthwise convolution: every channel with a window of its own, so that memory is the limit.

Nothing is padded in memory. With channels last, a vector holds channels: a row of results keeps
its sums in registers while the window's rows pass, and only tiles at the ends of a row are written
without the taps that fall on padding. With channels first, a vector holds neighbouring columns: a
few rows of one channel are copied into L1 with their borders, and stay there for all taps.
"""

from tvm import s_tir, tirx

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import access_of
from tvm_ext.tir_schedules.llvm.depthwise_channels_first import (
    ChannelsFirst,
    ChannelsFirstDecision,
    decide_channels_first,
)
from tvm_ext.tir_schedules.llvm.depthwise_channels_last import (
    ChannelsLast,
    ChannelsLastDecision,
    decide_channels_last,
    row_tiles,
)
from tvm_ext.tir_schedules.llvm.depthwise_window import DepthwiseWindow, depthwise_window
from tvm_ext.tir_schedules.llvm.inlining import reduction_blocks
from tvm_ext.tir_schedules.llvm.window_kernel import WindowKernel, window_kernel
from tvm_ext.tir_schedules.template import Machine, NotMine

# Products that are written out: tiles at the ends of rows have their own, with their own taps.
MAX_PRODUCTS = 1024


class DepthwiseConvolution:
    """Kernels that multiply a window over each channel by weights of that channel."""

    name = "depthwise convolution"

    def apply(
        self,
        func: tirx.PrimFunc,
        machine: Machine,
        decision: ChannelsFirstDecision | ChannelsLastDecision | None = None,
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
        code = _code(kernel, window, machine, decision)
        if isinstance(code, NotMine):
            return code
        return kernel.schedule(func, code.statement(machine), machine)


def _code(
    kernel: WindowKernel,
    window: DepthwiseWindow,
    machine: CpuDescription,
    decision: ChannelsFirstDecision | ChannelsLastDecision | None,
) -> ChannelsFirst | ChannelsLast | NotMine:
    if window.channels is None:
        chosen = decision or decide_channels_first(window, machine)
        if not isinstance(chosen, ChannelsFirstDecision):
            return NotMine("the decision is for channels that are next to each other")
        if chosen.lanes < 2:
            return NotMine("rows are too short for vectors")
        return ChannelsFirst(window, chosen, kernel.store, kernel.result)
    chosen = decision or decide_channels_last(window, window.channels.extent, machine)
    if not isinstance(chosen, ChannelsLastDecision):
        return NotMine("the decision is for columns that are next to each other")
    ends, _ = row_tiles(window.columns, chosen.columns)
    products = chosen.columns * chosen.vectors * window.columns.position.extent
    if (len(ends) + 1) * products > MAX_PRODUCTS:
        return NotMine("too many different tiles at the ends of rows, or too wide a window")
    if chosen.lanes < 2:
        return NotMine("there are too few channels for vectors")
    return ChannelsLast(window, window.channels, chosen, kernel.store, kernel.result)


def _every_result_has_its_own_input(sch: s_tir.Schedule) -> bool:
    """Whether the only reduction reads one input that moves with each of the result's loops.

    A product of matrices or a whole convolution has none: rows share columns.
    """
    reductions = reduction_blocks(sch)
    if len(reductions) != 1:
        return False
    access = access_of(sch, reductions[0])
    if access is None or len(access.read_strides) != 2 or not access.trip_count():
        return False
    axes = [axis for axis in access.spatial if access.extents[axis] > 1]
    moving = [all(strides[axis] for axis in axes) for strides in access.read_strides]
    return sum(moving) == 1

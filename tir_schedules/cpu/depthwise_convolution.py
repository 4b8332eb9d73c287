"""Depthwise convolution: every channel with a window of its own, so that memory is the limit.

Nothing is padded in memory. With channels last, a vector holds channels: a row of results keeps
its sums in registers while the window's rows pass, and only tiles at the ends of a row are written
without the taps that fall on padding; so it is with images whose size a run decides. With channels
first, a vector holds neighbouring columns: a few rows of one channel are copied into L1 with their
borders, and stay there for all taps.
"""

from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    BlockAccess,
    access_of,
    reduction_blocks,
    schedule_of,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.sliding_window import WindowKernel, window_kernel
from tvm_ext.tir_schedules.cpu.data_parallel import schedule_window
from tvm_ext.tir_schedules.cpu.depthwise_channels_first import ChannelsFirst, decide_channels_first
from tvm_ext.tir_schedules.cpu.depthwise_channels_last import (
    MAX_MULTIPLY_ADDS,
    ChannelsLast,
    decide_channels_last,
    multiply_adds_written_out,
)
from tvm_ext.tir_schedules.cpu.depthwise_symbolic_rows import (
    SymbolicChannelsLast,
    symbolic_channels_last,
)
from tvm_ext.tir_schedules.cpu.depthwise_window import DepthwiseWindow, depthwise_window
from tvm_ext.tir_schedules.template import Decisions


class CpuDepthwiseConvolution:
    """Kernels that multiply a window over each channel by weights of that channel."""

    name = "depthwise convolution"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        sch = schedule_of(func)
        reductions = reduction_blocks(sch)
        known = len(reductions) == 1 and not _is_symbolic(sch.get(reductions[0]))
        access = access_of(sch, reductions[0]) if known else None
        moves = access is not None and one_operand_moves_with_results(access)
        if len(reductions) != 1 or (known and not moves):
            raise NotApplicable("it is not one reduction in which no two channels share an input")
        kernel = window_kernel(func, weighted=True, symbolic_sizes=not known)
        window = depthwise_window(kernel.window)
        if kernel.once:
            raise NotApplicable("an element may not be computed twice")
        code = _code(kernel, window, machine, decisions)
        return schedule_window(kernel, func, code.statement(machine), machine, decisions)


def _code(
    kernel: WindowKernel, window: DepthwiseWindow, machine: CpuDescription, decisions: Decisions
) -> ChannelsFirst | ChannelsLast | SymbolicChannelsLast:
    if kernel.window.is_symbolic:
        return symbolic_channels_last(kernel, window, machine)
    if window.channels is None:
        first = decide_channels_first(window, machine, decisions)
        if first.lanes < 2:
            raise NotApplicable("rows are too short for vectors")
        return ChannelsFirst(window, first, kernel.store, kernel.result)
    last = decide_channels_last(window, window.channels.extent, machine, decisions)
    if multiply_adds_written_out(window, last.columns, last.vectors) > MAX_MULTIPLY_ADDS:
        raise NotApplicable("too many different tiles at the ends of rows, or too wide a window")
    if last.lanes < 2:
        raise NotApplicable("there are too few channels for vectors")
    return ChannelsLast(window, window.channels, last, kernel.store, kernel.result)


def _is_symbolic(stmt: s_tir.SBlock) -> bool:
    return any(static_extent(one.dom.extent) is None for one in stmt.iter_vars)


def one_operand_moves_with_results(access: BlockAccess) -> bool:
    """Whether just one of two operands moves with each of the result's loops.

    Depthwise convolutions have such an input; of a matmul or a whole convolution, rows share
    columns. Single numbers, such as a zero point, are no operands.
    """
    moving = [strides for strides in access.read_strides if any(s != 0 for s in strides)]
    if len(moving) != 2 or not access.trip_count():
        return False
    axes = [axis for axis in access.spatial if access.extents[axis] > 1]
    return sum(all(strides[axis] for axis in axes) for strides in moving) == 1

"""Convolutions in which memory is the limit, on a GPU: depthwise, and others of few products.

A thread has a strip of results, of 16 bytes of channels where these come last, and slides the
window along it in registers. Results are written once; rows of the input that several windows
share come from L1. No tensor core could help: a depthwise result is the sum of as many products as
it has elements of its own.
"""

from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import access_of, only_reduction, schedule_of
from tvm_ext.tir_schedules.analysis.sliding_window import window_kernel
from tvm_ext.tir_schedules.cuda.strip_code import schedule_strips
from tvm_ext.tir_schedules.cuda.strip_window import StripWindow, strip_window
from tvm_ext.tir_schedules.template import Decisions

# Products of one result up to which tensor cores would be fed with little but padding: two steps
# of the matrix instructions of 16-bit types.
MAX_SHARED_TAPS = 32


class CudaDepthwiseConvolution:
    """Kernels that slide weights over single channels, each of which makes one or a few."""

    name = "depthwise convolution"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``. Decisions: those of ``schedule_strips``."""
        window = read_convolution(func)
        several = any(slide.position.extent > 1 for slide in window.planes)
        if several and (window.shares_inputs() or not window.has_weights_by_channel()):
            raise NotApplicable("it adds up several channels that results share")
        if window.shares_inputs() and window.taps > MAX_SHARED_TAPS:
            raise NotApplicable("results share a channel under a large window")
        return schedule_strips(window, func, machine, decisions)


class DirectConvolution:
    """Convolutions that are no matmul with several rows, columns and steps.

    For the kernels that ``CudaContraction`` leaves: a single output channel, types without a matrix
    instruction.
    """

    name = "direct convolution"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``. Decisions: those of ``schedule_strips``."""
        window = read_convolution(func)
        if window.taps == 1:
            raise NotApplicable("a window of one tap slides over nothing: it is a matmul")
        if window.lanes is None and not window.reads_columns():
            raise NotApplicable("threads would read channels, which come last, one after the other")
        return schedule_strips(window, func, machine, decisions)


def read_convolution(func: tirx.PrimFunc) -> StripWindow:
    """The window of products that slides over the kernel's input. Raises NotApplicable."""
    sch = schedule_of(func)
    anchor = only_reduction(sch)
    access = access_of(sch, anchor)
    if access is None or len(access.read_strides) != 2 or not access.trip_count():
        raise NotApplicable("it is not one sum over known extents of products of two operands")
    return strip_window(window_kernel(func, weighted=True), weighted=True)

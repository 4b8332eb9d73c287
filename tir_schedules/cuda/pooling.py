"""Pooling and other reductions of windows on a GPU.

Pooling slides a window along a strip of results in registers: rows of the input that windows
share come from L1, padding is nowhere in memory, and the limit is to read the input and write
the result once. Any other reduction of windows has a thread for each window.
"""

from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    among,
    kernel_blocks,
    nodes,
    reduction_blocks,
    scans,
    schedule_of,
    static_product,
)
from tvm_ext.tir_schedules.analysis.sliding_window import window_kernel
from tvm_ext.tir_schedules.cuda.device_code import as_loops, in_few_launches
from tvm_ext.tir_schedules.cuda.generic import launched
from tvm_ext.tir_schedules.cuda.strip_code import schedule_strips
from tvm_ext.tir_schedules.cuda.strip_window import strip_window
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.template import Decisions


class CudaPooling:
    """Kernels that reduce a window which slides along at least one axis."""

    name = "pooling"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``. Decisions: those of ``schedule_strips``."""
        sch = schedule_of(func)
        if len(reduction_blocks(sch)) != 1:
            raise NotApplicable("it is not one reduction")
        kernel = window_kernel(func)
        window = strip_window(kernel, weighted=False)
        return schedule_strips(window, func, machine, decisions)


# Reductions of windows, as pooling has them: each thread reduces one window in registers.
#
# Neighbouring threads compute neighbouring elements of the result, so that their loads are side
# by side, and what windows share comes from the cache.


# Steps of a reduction that one thread should not do alone while others wait for work.
_LONG = 1024


class WindowReduction:
    """Kernels that reduce windows of one input, and what follows for each result."""

    name = "window reduction"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        sch = inlined_schedule(func, repeat=True)
        _refuse([sch.get(block) for block in kernel_blocks(sch)])
        return launched(func, as_loops(in_few_launches(func)))


def _refuse(blocks: list[s_tir.SBlock]) -> None:
    reductions = 0
    for block in blocks:
        if scans(block):
            raise NotApplicable("a loop is neither data-parallel nor a reduction")
        steps = [v.dom.extent for v in block.iter_vars if v.iter_type == tirx.IterVar.CommReduce]
        if not steps:
            continue
        reductions += 1
        length = static_product(steps)
        if length is None or length > _LONG:
            raise NotApplicable("a reduction is too long for one thread, or of unknown length")
        if len(_operands(block)) > 1:
            raise NotApplicable("a reduction multiplies, as products do")
    if not reductions:
        raise NotApplicable("the kernel has no reduction")


def _operands(block: s_tir.SBlock) -> list[tirx.Buffer]:
    """The buffers with numbers that a reduction reads, without its results."""
    own = [write.source for write in block.writes]
    found: list[Any] = []
    for load in nodes(block.body, tvm.ir.TensorLoad):
        if not among(load.source, [*own, *found]):
            found.append(load.source)
    return found

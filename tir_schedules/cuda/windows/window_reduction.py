"""Reductions of windows, as pooling has them: each thread reduces one window in registers.

Neighbouring threads compute neighbouring elements of the result, so that their loads are side by
side, and what windows share comes from the cache.
"""

import math
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.cuda.as_loops import as_loops, in_few_launches
from tvm_ext.tir_schedules.cuda.generic import launched
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.inlining import inline_blocks, kernel_blocks
from tvm_ext.tir_schedules.template import Machine, NotMine

# Steps of a reduction that one thread should not do alone while others wait for work.
_LONG = 1024


class WindowReduction:
    """Kernels that reduce windows of one input, and what follows for each result."""

    name = "window reduction"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not an NVIDIA GPU")
        sch = s_tir.Schedule(func)
        inline_blocks(sch, repeat=True)
        refusal = _refused([sch.get(block) for block in kernel_blocks(sch)])
        if refusal is not None:
            return refusal
        return launched(func, as_loops(in_few_launches(func)))


def _refused(blocks: list[s_tir.SBlock]) -> NotMine | None:
    known = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
    reductions = 0
    for block in blocks:
        if any(v.iter_type not in known for v in block.iter_vars):
            return NotMine("a loop is neither data-parallel nor a reduction")
        steps = [v.dom.extent for v in block.iter_vars if v.iter_type == tirx.IterVar.CommReduce]
        if not steps:
            continue
        reductions += 1
        extents = [static_extent(extent) for extent in steps]
        if None in extents or math.prod(n for n in extents if n is not None) > _LONG:
            return NotMine("a reduction is too long for one thread, or of unknown length")
        if len(_operands(block)) > 1:
            return NotMine("a reduction multiplies, as products do")
    return None if reductions else NotMine("the kernel has no reduction")


def _operands(block: s_tir.SBlock) -> list[Any]:
    """The buffers with numbers that a reduction reads, without its results."""
    own = [write.source for write in block.writes]
    found: list[Any] = []
    for load in nodes(block.body, tvm.ir.TensorLoad):
        if not any(load.source.same_as(other) for other in [*own, *found]):
            found.append(load.source)
    return found

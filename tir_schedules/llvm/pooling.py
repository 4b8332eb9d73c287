"""Pooling: a window that slides over an input is reduced row by row.

For each row of the result, the rows of the input that its windows cover are first combined into
one row in cache, along which everything is contiguous, with padding at both ends. The windows then
slide along that row. Neither step has a branch inside, whatever the padding, the layout and the
number of channels, and a window of k by k takes 2 k steps instead of k * k.
"""

from dataclasses import replace

import tvm
from tvm import s_tir, tirx

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.inlining import reduction_blocks
from tvm_ext.tir_schedules.llvm.knobs import VECTORS, distinct, pick_threads
from tvm_ext.tir_schedules.llvm.loop_nest import REGISTERS_PER_VECTOR_LOOP, worth_threads
from tvm_ext.tir_schedules.llvm.pool_code import PoolCode, PoolDecision
from tvm_ext.tir_schedules.llvm.window_kernel import schedule_window
from tvm_ext.tir_schedules.nest import slope
from tvm_ext.tir_schedules.template import Machine, NotMine
from tvm_ext.tir_schedules.windows.sliding_window import Window, takes_plain_elements
from tvm_ext.tir_schedules.windows.window_kernel import WindowKernel, window_kernel


class Pooling:
    """Kernels that reduce a window which slides along at least one axis."""

    name = "pooling"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, CpuDescription):
            return NotMine("the target is not a CPU")
        sch = s_tir.Schedule(func)
        if not _takes_plain_elements(sch):
            return NotMine("it is not one reduction of plain elements")
        kernel = window_kernel(func)
        if isinstance(kernel, NotMine):
            return kernel
        decision = decide_pool(kernel, machine, decisions)
        if isinstance(decision, NotMine):
            return decision
        code = PoolCode(kernel, decision).statement(machine)
        return schedule_window(kernel, func, code, machine, decisions)


def decide_pool(
    kernel: WindowKernel, machine: CpuDescription, decisions: Decisions = CLOSED_FORM
) -> PoolDecision | NotMine:
    """The closed-form choice: along the axis that is closest together in the input.

    Asks for another axis (``along``), for ``vectors`` and ``threads``; where windows are better
    reduced one by one, whether that is to be left to other templates (``direct``).
    """
    window = kernel.window
    load, *others = nodes(window.store.value, tvm.ir.TensorLoad)
    if others:
        return NotMine("an element of the window is computed from several values")
    if all(slide.output.extent == 1 for slide in window.slides):
        return NotMine("the window covers all of its input and does not slide")
    steps = [slope(load.indices[0], slide.position.var) for slide in window.slides]
    if any(not step or step % s.spread for step, s in zip(steps, window.slides, strict=True)):
        return NotMine("an address is not linear in the position of the window")
    known = [step // s.spread for step, s in zip(steps, window.slides, strict=True) if step]
    closest = known.index(min(known))
    decision = PoolDecision(closest, _inside(window, load, known[closest]))
    directly = _is_cheaper_directly(window, decision, machine)
    if directly and decisions.pick("direct", (0, 1), 1):
        return NotMine("windows do not overlap and hold no padding: they are reduced in registers")
    moving = [i for i, slide in enumerate(window.slides) if slide.output.extent > 1]
    along = decisions.pick("along", moving, closest)
    code = PoolCode(kernel, PoolDecision(along, _inside(window, load, known[along])))
    lanes = machine.vector_lanes(str(window.start.ty))
    options = distinct(
        VECTORS, REGISTERS_PER_VECTOR_LOOP, lambda n: tuple(code.vector_cuts(lanes, n))
    )
    vectors = decisions.pick("vectors", options, REGISTERS_PER_VECTOR_LOOP)
    worth = worth_threads(machine, code.operations(), lanes)
    threads = pick_threads(decisions, machine, code.rows, worth)
    return replace(code.decision, vectors=vectors, threads=threads)


def _inside(window: Window, load: tvm.ir.TensorLoad, step: int) -> tuple[int, ...]:
    """The outputs that are closer together than the elements of a row, and part of it."""
    sliding = [slide.output for slide in window.slides]
    strides = {
        i: slope(load.indices[0], axis.var) or 0
        for i, axis in enumerate(window.outputs)
        if not any(axis is output for output in sliding)
    }
    inside = [i for i, stride in strides.items() if 0 < stride < step]
    return tuple(sorted(inside, key=lambda i: -strides[i]))


def _is_cheaper_directly(window: Window, decision: PoolDecision, machine: CpuDescription) -> bool:
    """Whether each window alone, over vectors of channels, takes fewer loads and stores."""
    width = 1
    for i in decision.inside:
        width *= window.outputs[i].extent
    dtype = str(window.start.ty)
    if width % machine.vector_lanes(dtype):
        return False
    if any((slide.first, slide.last) != (0, slide.length) for slide in window.slides):
        return False
    along = window.slides[decision.along]
    rows = 1
    for slide in window.slides:
        rows *= slide.position.extent
    columns = along.position.extent
    rows //= columns
    return rows * columns + 1 <= along.step * (rows + 1) + columns + 1


def _takes_plain_elements(sch: s_tir.Schedule) -> bool:
    reductions = reduction_blocks(sch)
    return len(reductions) == 1 and takes_plain_elements(sch.get(reductions[0]))

"""Pooling: a window that slides over an input is reduced row by row.

For each row of the result, the rows of the input that its windows cover are first combined into
one row in cache, along which everything is contiguous, with padding at both ends. The windows then
slide along that row. Neither step has a branch inside, whatever the padding, the layout and the
number of channels, and a window of k by k takes 2 k steps instead of k * k.
"""

from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV, ScheduleError

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.llvm.data_parallel import block_code, plan_block, with_body
from tvm_ext.tir_schedules.llvm.flat_views import FlatViews, flattened, nodes
from tvm_ext.tir_schedules.llvm.inlining import inline_blocks, is_data_parallel, kernel_blocks
from tvm_ext.tir_schedules.llvm.nest import nest_of, slope, substitute
from tvm_ext.tir_schedules.llvm.pool_code import PoolCode, PoolDecision
from tvm_ext.tir_schedules.llvm.sliding_window import Window, takes_plain_elements, window_of
from tvm_ext.tir_schedules.template import Machine, NotMine


class Pooling:
    """Kernels that reduce a window which slides along at least one axis."""

    name = "pooling"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decision: PoolDecision | None = None
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``; ``decision`` replaces the closed-form choice."""
        if not isinstance(machine, CpuDescription):
            return NotMine("the target is not a CPU")
        sch = s_tir.Schedule(func)
        anchor = _only_reduction(sch)
        if isinstance(anchor, NotMine):
            return anchor
        window = window_of(sch.get(anchor))
        if isinstance(window, NotMine):
            return window
        views = FlatViews()
        result = tirx.Var("result", str(window.start.ty))
        fused = _epilogue(sch, anchor, window, result)
        plain = tirx.BufferStore(window.store.buffer, result, window.store.indices)
        written = fused if fused is not None else plain
        store = flattened(_without_single(written, window), views)
        flat = flattened(_without_single(window.store, window), views)
        if store is None or flat is None:
            return NotMine("a buffer has strides of its own")
        window = Window(window.outputs, window.slides, flat, window.combine, window.start)
        chosen = decision or decide_pool(window, machine)
        if isinstance(chosen, NotMine):
            return chosen
        # Only arrays inside of a kernel can share memory with the combined row.
        once = fused is None and len(kernel_blocks(sch)) > 1
        first = PoolCode(window, chosen, store, result, once).statement(machine)
        later = [] if fused is not None else _later_blocks(sch, anchor, views, machine)
        if isinstance(later, NotMine):
            return later
        return with_body(func, views, [first, *later])


def decide_pool(window: Window, machine: CpuDescription) -> PoolDecision | NotMine:
    """The closed-form choice: along the axis that is closest together in the input."""
    load, *others = nodes(window.store.value, tvm.ir.TensorLoad)
    if others:
        return NotMine("an element of the window is computed from several values")
    if all(slide.output.extent == 1 for slide in window.slides):
        return NotMine("the window covers all of its input and does not slide")
    steps = [slope(load.indices[0], slide.position.var) for slide in window.slides]
    if any(not step or step % s.spread for step, s in zip(steps, window.slides, strict=True)):
        return NotMine("an address is not linear in the position of the window")
    known = [step // s.spread for step, s in zip(steps, window.slides, strict=True) if step]
    along = known.index(min(known))
    sliding = [slide.output for slide in window.slides]
    strides = {
        i: slope(load.indices[0], axis.var) or 0
        for i, axis in enumerate(window.outputs)
        if not any(axis is output for output in sliding)
    }
    inside = [i for i, step in strides.items() if 0 < step < known[along]]
    inside.sort(key=lambda i: -strides[i])
    decision = PoolDecision(along, tuple(inside))
    if _is_cheaper_directly(window, decision, machine):
        return NotMine("windows do not overlap and hold no padding: they are reduced in registers")
    return decision


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


def _only_reduction(sch: s_tir.Schedule) -> SBlockRV | NotMine:
    """The kernel's one reduction, with all that computes its input inlined."""
    before = [b for b in kernel_blocks(sch) if not is_data_parallel(sch, b)]
    if len(before) != 1 or not takes_plain_elements(sch.get(before[0])):
        return NotMine("it is not one reduction of plain elements")
    inline_blocks(sch)
    reductions = [b for b in kernel_blocks(sch) if not is_data_parallel(sch, b)]
    if len(reductions) != 1:
        return NotMine(f"the kernel has {len(reductions)} reductions, not one")
    (anchor,) = reductions
    if len(sch.get(anchor).writes) != 1 or sch.get(anchor).init is None:
        return NotMine("the reduction has several results, or no start")
    while producers := sch.get_producers(anchor):
        try:
            sch.compute_inline(producers[0])
        except ScheduleError:
            return NotMine("what computes the input of the window is used elsewhere")
    return anchor


def _without_single(store: tirx.BufferStore, window: Window) -> tirx.BufferStore:
    """The assignment without the loops of one iteration, which are not made."""
    once = {a.var: tirx.const(0, str(a.var.ty)) for a in window.outputs if a.extent == 1}
    indices = [substitute(index, once) for index in store.indices]
    return tirx.BufferStore(store.buffer, substitute(store.value, once), indices)


def _epilogue(
    sch: s_tir.Schedule, anchor: SBlockRV, window: Window, result: tirx.Var
) -> tirx.BufferStore | None:
    """What the only block after the reduction does with each result, in the reduction's loops."""
    consumers = sch.get_consumers(anchor)
    if len(consumers) != 1 or len(kernel_blocks(sch)) != 2:
        return None
    stmt = sch.get(consumers[0])
    if not isinstance(stmt.body, tirx.BufferStore) or not is_data_parallel(sch, consumers[0]):
        return None
    variables = [v.var for v in stmt.iter_vars]
    same = len(variables) == len(window.outputs)
    loads = [
        load
        for load in nodes(stmt.body, tvm.ir.TensorLoad)
        if load.source.same_as(window.store.buffer)
    ]
    if not same or not all(_is_identity(load.indices, stmt, window) for load in loads):
        return None
    names = {v: axis.var for v, axis in zip(variables, window.outputs, strict=True)}

    def replaced(load: tvm.ir.TensorLoad) -> Any:
        return result if load.source.same_as(window.store.buffer) else load

    value = tvm_ffi.structural_map(stmt.body.value, (tvm.ir.TensorLoad, replaced))
    indices = [substitute(index, names) for index in stmt.body.indices]
    return tirx.BufferStore(stmt.body.buffer, substitute(value, names), indices)


def _is_identity(indices: Any, stmt: s_tir.SBlock, window: Window) -> bool:
    """Whether a result is read at the place at which the reduction wrote it."""
    if len(indices) != len(window.outputs):
        return False
    pairs = zip(indices, stmt.iter_vars, window.outputs, window.store.indices, strict=True)
    return all(
        index.same_as(v.var)
        and written.same_as(axis.var)
        and tvm_ffi.structural_equal(v.dom.extent, tirx.const(axis.extent, str(v.var.ty)))
        for index, v, axis, written in pairs
    )


def _later_blocks(
    sch: s_tir.Schedule, anchor: SBlockRV, views: FlatViews, machine: CpuDescription
) -> list[tirx.Stmt] | NotMine:
    found = []
    for block in kernel_blocks(sch):
        if sch.get(block).same_as(sch.get(anchor)):
            continue
        nest = nest_of(sch.get(block), views)
        if nest is None:
            return NotMine("a block after the reduction is not one assignment")
        once = views.may_share_memory(nest.store, sch.mod["main"])
        found.append(block_code(plan_block(nest, machine, once), machine))
    return found

"""A kernel around one window that slides over an input: what pooling and convolutions share."""

from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV, ScheduleError

from tvm_ext.tir_schedules.flat_views import FlatViews, flattened, nodes
from tvm_ext.tir_schedules.inlining import (
    inlined_schedule,
    is_data_parallel,
    kernel_blocks,
    reduction_blocks,
)
from tvm_ext.tir_schedules.nest import Nest, nest_of, substitute
from tvm_ext.tir_schedules.template import NotMine
from tvm_ext.tir_schedules.windows.sliding_window import Window, window_of


@dataclass(frozen=True)
class WindowKernel:
    """The window of a kernel, over flat views of its buffers.

    Attributes
    ----------
    window : Window
        The reduction.
    store : tirx.BufferStore
        Writes a result; in its value, ``result`` stands for what the window gives.
    result : tirx.Var
        See ``store``.
    once : bool
        Whether no element may be computed twice.
    views : FlatViews
        The views.
    """

    window: Window
    store: tirx.BufferStore
    result: tirx.Var
    once: bool
    views: FlatViews
    _sch: s_tir.Schedule
    _anchor: SBlockRV
    _is_whole: bool

    def later_nests(self) -> list[Nest] | NotMine:
        """The blocks after the reduction that are not part of ``store``."""
        if self._is_whole:
            return []
        nests = []
        for block in kernel_blocks(self._sch):
            if self._sch.get(block).same_as(self._sch.get(self._anchor)):
                continue
            nest = nest_of(self._sch.get(block), self.views)
            if nest is None:
                return NotMine("a block after the reduction is not one assignment")
            nests.append(nest)
        return nests

    def read_func(self) -> tirx.PrimFunc:
        """The kernel with what computes the window's input inlined."""
        return self._sch.mod["main"]


def window_kernel(func: tirx.PrimFunc, weighted: bool = False) -> WindowKernel | NotMine:
    """The kernel ``func``, whose padding is inlined; ``weighted`` as ``window_of`` has it."""
    sch = inlined_schedule(func)
    anchor = _only_reduction(sch)
    if isinstance(anchor, NotMine):
        return anchor
    window = window_of(sch.get(anchor), weighted)
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
    window = replace(window, store=flat)
    # Only arrays inside of a kernel can share memory with what is on the way to the result.
    once = fused is None and len(kernel_blocks(sch)) > 1
    return WindowKernel(window, store, result, once, views, sch, anchor, fused is not None)


def _only_reduction(sch: s_tir.Schedule) -> SBlockRV | NotMine:
    """The kernel's one reduction, with all that computes its input inlined."""
    reductions = reduction_blocks(sch)
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

"""Recognises windows that slide over an input: pooling, convolution, depthwise convolution."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV, ScheduleError
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    conjuncts,
    count_calls,
    depends,
    is_conditional,
    is_data_parallel,
    kernel_blocks,
    linear_form,
    nodes,
    only_reduction,
    static_extent,
    stride,
)
from tvm_ext.tir_schedules.analysis.contraction import accumulation_of
from tvm_ext.tir_schedules.analysis.loop_nest import Nest, index_of, nest_of, substitute
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.statements import FlatViews, flattened


@dataclass(frozen=True)
class Slide:
    """One axis of the window: it reads ``step * output + spread * position`` of the input.

    Attributes
    ----------
    output, position : LoopAxis
        Loops over the results, and over the window.
    step, spread : int
        Stride and dilation.
    first, last : int or Expr
        The positions (the last one exclusive) that are not padding.
    """

    output: LoopAxis
    position: LoopAxis
    step: int
    spread: int
    first: Any
    last: Any

    @property
    def reach(self) -> int:
        """From the first position of a window to its last one."""
        return int(self.spread * (self.position.extent - 1))

    @property
    def length(self) -> Any:
        """How many positions there are, padding included."""
        return self.step * (self.output.extent - 1) + self.reach + 1

    @property
    def is_padded(self) -> bool:
        """Whether there may be positions that are padding."""
        first, length = self.first, self.length
        if isinstance(first, int) and isinstance(length, int):
            return bool((first, self.last) != (0, length))
        return static_extent(first) != 0 or not tvm_ffi.structural_equal(self.last, length)

    @property
    def moved(self) -> Any:
        """Where the window of an output starts."""
        return 0 if self.output.length == 1 else self.output.var * self.step

    def covered(self) -> tuple[int, int]:
        """The outputs (the last one exclusive) whose windows hold no padding, of a known number."""
        start = max(0, -(-self.first // self.step))
        end = min(self.output.extent, (self.last - 1 - self.reach) // self.step + 1)
        return start, max(start, end)


@dataclass(frozen=True)
class Window:
    """The reduction of a pooling kernel.

    Attributes
    ----------
    outputs : tuple[LoopAxis, ...]
        Loops over the results, in the order of the block.
    slides : tuple[Slide, ...]
        The axes of the window.
    store : tirx.BufferStore
        Where a result goes; its value is an element of the window that is not padding.
    combine : type
        The operator: tirx.Add, tirx.Max or tirx.Min.
    start : Expr
        What an empty window gives, and what padding holds.

    The element may be a product: of a load that slides over the input, and one of a weight.
    """

    outputs: tuple[LoopAxis, ...]
    slides: tuple[Slide, ...]
    store: tirx.BufferStore
    combine: Any
    start: Any

    @property
    def is_symbolic(self) -> bool:
        """Whether it is known in the run only how many results there are."""
        return any(axis.is_symbolic for axis in self.outputs)


def takes_plain_elements(stmt: s_tir.SBlock) -> bool:
    """Whether a reduction takes elements of a buffer as they are: quick to find out."""
    parts = accumulation_of(stmt)
    return parts is not None and isinstance(parts[1], tvm.ir.TensorLoad)


def window_of(stmt: s_tir.SBlock, weighted: bool = False, symbolic_sizes: bool = False) -> Window:
    """The window that a block reduces, its input's padding inlined. Raises NotApplicable.

    ``weighted``: of elements multiplied by weights, which are not padded. ``symbolic_sizes``: of a
    known number of positions, in an input of any size.
    """
    parts = accumulation_of(stmt)
    if parts is None:
        raise NotApplicable("it is not a sum, a maximum or a minimum")
    operator, element = parts
    factors = _factors(element) if weighted else (element, None)
    if factors is None:
        raise NotApplicable("it is no contraction of an input and a weight")
    value, conditions, fill = _without_padding(factors[0])
    start = stmt.init.value
    if fill is not None and not _is_same_number(fill, start):
        raise NotApplicable("the padding is not what an empty window gives")
    if count_calls(value):
        raise NotApplicable("its input is computed by function calls")
    axes = [_axis(v, symbolic_sizes) for v in stmt.iter_vars]
    reduces = [v.iter_type == tirx.IterVar.CommReduce for v in stmt.iter_vars]
    outputs = tuple(axis for axis, r in zip(axes, reduces, strict=True) if not r)
    window = [axis for axis, r in zip(axes, reduces, strict=True) if r]
    if any(axis.length == 0 for axis in axes) or any(axis.is_symbolic for axis in window):
        raise NotApplicable("a loop has a symbolic extent or no iterations")
    unmoved = _unmoved(value, window, outputs, conditions)
    window = [axis for axis in window if not any(axis is other for other in unmoved)]
    zero = {axis.var: tirx.const(0, str(axis.var.ty)) for axis in unmoved}
    value = substitute(value, zero)
    slides = [_slide(position, window, outputs, value, conditions) for position in window]
    known = [v for slide in slides for v in (slide.output.var, slide.position.var)]
    if not all(depends(condition, *known) for condition in conditions):
        raise NotApplicable("the padding is along an axis on which the window does not slide")
    if factors[1] is not None:
        value = value * substitute(factors[1], zero)
    store = tirx.BufferStore(stmt.body.buffer, value, stmt.body.indices)
    return Window(outputs, tuple(slides), store, operator, start)


def _axis(iter_var: tirx.IterVar, symbolic_sizes: bool) -> LoopAxis:
    """The loop over an iteration variable, of 0 iterations where their number is not known."""
    extent = static_extent(iter_var.dom.extent)
    if extent is None:
        extent = iter_var.dom.extent if symbolic_sizes else 0
    return LoopAxis(iter_var.var, extent)


def _is_same_number(fill: tvm.ir.Expr, start: tvm.ir.Expr) -> bool:
    """Whether two constants are equal, whatever their types."""
    if tvm_ffi.structural_equal(fill, start):
        return True
    kinds = (tirx.IntImm, tirx.FloatImm)
    return isinstance(fill, kinds) and isinstance(start, kinds) and fill.value == start.value


def _unmoved(
    value: tvm.ir.Expr,
    window: list[LoopAxis],
    outputs: tuple[LoopAxis, ...],
    conditions: list[tvm.ir.Expr],
) -> list[LoopAxis]:
    """The window's axes of one position along which nothing slides.

    One is the only input channel of a group, of which several results may be made.
    """
    unmoved = []
    for axis in window:
        if axis.length != 1 or any(depends(condition, axis.var) for condition in conditions):
            continue
        try:
            _slide(axis, window, outputs, value, conditions)
        except NotApplicable:
            unmoved.append(axis)
    return unmoved


def _factors(element: tvm.ir.Expr) -> tuple[Any, Any] | None:
    """The element of the input and the weight that it is multiplied by.

    The weight is the load with fewer indices that move with the window and the result at once.
    """
    if not isinstance(element, tirx.Mul):
        return None
    if any(moving_load(side) is None for side in (element.a, element.b)):
        return None
    sides = sorted((element.a, element.b), key=_terms_of_indices, reverse=True)
    weight = sides[1].value if isinstance(sides[1], tirx.Cast) else sides[1]
    return (sides[0], sides[1]) if isinstance(weight, tvm.ir.TensorLoad) else None


def moving_load(side: tvm.ir.Expr) -> Any | None:
    """The only load of a factor that moves with a loop; others are of one number for all results.

    None where there are several, or none.
    """
    loads = nodes(side, tvm.ir.TensorLoad)
    moving = [load for load in loads if any(nodes(i, tvm.ir.Var) for i in load.indices)]
    return moving[0] if len(moving) == 1 else None


def _terms_of_indices(side: tvm.ir.Expr) -> int:
    load = moving_load(side)
    return 0 if load is None else sum(len(nodes(i, tvm.ir.Var)) for i in load.indices)


def _without_padding(value: tvm.ir.Expr) -> tuple[Any, list[Any], Any | None]:
    """What is read where there is no padding, when that is, and what is read where there is."""
    if isinstance(value, tirx.Cast):
        inside, conditions, fill = _without_padding(value.value)
        return inside.astype(str(value.ty)), conditions, fill
    if not is_conditional(value):
        return value, [], None
    condition, inside, outside = value.args
    return inside, conjuncts(condition), outside


def _slide(
    position: LoopAxis,
    window: list[LoopAxis],
    outputs: tuple[LoopAxis, ...],
    value: tvm.ir.Expr,
    conditions: list[tvm.ir.Expr],
) -> Slide:
    indices = [i for load in nodes(value, tvm.ir.TensorLoad) for i in load.indices]
    steps = {_step(index, position, window, outputs) for index in indices}
    steps.discard(None)
    if len(steps) != 1:
        raise NotApplicable("the window does not slide along one axis of its input")
    partner, step, spread = next(s for s in steps if s is not None)
    if step < 1 or spread < 1:
        raise NotApplicable("the window does not slide forwards")
    output = outputs[partner] if partner is not None else LoopAxis(_unused(position), 1)
    slide = Slide(output, position, step, spread, 0, 0)
    slide = replace(slide, last=slide.length)
    others = [axis.var for axis in (*outputs, *window)]
    for condition in conditions:
        bound = _bound(condition, slide, others)
        if bound is not None:
            slide = replace(slide, **bound)
    return slide


def _step(
    index: tvm.ir.Expr, position: LoopAxis, window: list[LoopAxis], outputs: tuple[LoopAxis, ...]
) -> tuple[int | None, int, int] | None:
    """(output axis, stride, dilation) of an index along the window; None if it does not move.

    A stride of 0 says that the index is not of that kind.
    """
    if not depends(index, position.var):
        return None
    everything = [*outputs, *window]
    linear = linear_form(index, [axis.var for axis in everything])
    numbers = [static_extent(number) for number in linear[0]] if linear else [None]
    if None in numbers:
        return (None, 0, 0)
    moving = {id(axis): n for axis, n in zip(everything, numbers, strict=True) if n}
    spread = moving.pop(id(position), 0)
    if not spread:
        return None
    partners = [i for i, axis in enumerate(outputs) if id(axis) in moving]
    if len(moving) > 1 or len(partners) != len(moving):
        return (None, 0, 0)
    if not partners:
        return (None, 1, spread or 0)
    return (partners[0], moving[id(outputs[partners[0]])] or 0, spread or 0)


def _bound(
    condition: tvm.ir.Expr, slide: Slide, loops: Sequence[tirx.Var]
) -> dict[str, Any] | None:
    """``slide``'s border where a condition of the padding holds; None if it is of another axis."""
    strange = NotApplicable("the padding is not a range of positions along the window")
    if not isinstance(condition, tirx.LT | tirx.LE | tirx.GT | tirx.GE):
        raise strange
    linear = linear_form(condition.a - condition.b, [slide.output.var, slide.position.var])
    if linear is None:
        raise strange
    by_output, by_position = (static_extent(number) for number in linear[0])
    if by_position == 0 and by_output == 0:
        return None
    if by_position not in (slide.spread, -slide.spread) or depends(linear[1], *loops):
        raise strange
    if slide.output.length != 1 and by_output != by_position // slide.spread * slide.step:
        raise strange
    known = static_extent(linear[1])
    offset = linear[1] if known is None else known
    # The difference is +-position + offset, compared with 0.
    below = isinstance(condition, tirx.LT | tirx.LE)
    strict = isinstance(condition, tirx.LT | tirx.GT)
    if below == (by_position > 0):
        end = -offset + (not strict) if below else offset + (not strict)
        return {"last": _smaller(slide.last, end)}
    start = offset + strict if below else -offset + strict
    within = slide.reach + 1 if slide.output.is_symbolic else slide.length
    if not isinstance(start, int) or start > within:
        start = _smaller(start, slide.length)
    return {"first": _larger(slide.first, start)}


def _smaller(a: Any, b: Any) -> Any:
    return min(a, b) if isinstance(a, int) and isinstance(b, int) else tirx.min(a, b)


def _larger(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return max(a, b)
    return tirx.max(a, b)


def _unused(like: LoopAxis) -> tirx.Var:
    return tirx.Var("single", str(like.var.ty))


def position_step(load: tvm.ir.TensorLoad, slide: Slide) -> Any:
    """Elements of the input from one position of the window to the next; None if not linear.

    An expression where the input's size is known in the run only.
    """
    step = stride(load.indices[0], slide.position.var)
    if isinstance(step, int):
        return None if not step or step % slide.spread else step // slide.spread
    if step is None or slide.spread == 1:
        return step
    apart = Analyzer().simplify(tirx.floordiv(step, slide.spread))
    return apart if Analyzer().can_prove_equal(apart * slide.spread, step) else None


def at_position(value: tvm.ir.Expr, slide: Slide, position: Any) -> tvm.ir.Expr:
    """``value`` with its addresses moved to a position along an axis of the window."""
    zero = {
        slide.output.var: tirx.const(0, str(slide.output.var.ty)),
        slide.position.var: tirx.const(0, str(slide.position.var.ty)),
    }

    def moved(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
        step = position_step(load, slide)
        address = substitute(load.indices[0], zero)
        address = address if step is None else address + position * step
        return tirx.BufferLoad(load.source, [address])

    return tvm_ffi.structural_map(value, (tvm.ir.TensorLoad, moved))


# A kernel around one window that slides over an input: what pooling and convolutions share.


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

    def later_nests(self) -> list[Nest]:
        """The blocks after the reduction that are not part of ``store``. Raises NotApplicable."""
        if self._is_whole:
            return []
        nests = []
        for block in kernel_blocks(self._sch):
            if self._sch.get(block).same_as(self._sch.get(self._anchor)):
                continue
            nest = nest_of(self._sch.get(block), self.views)
            if nest is None:
                raise NotApplicable("a block after the reduction is not one assignment")
            nests.append(nest)
        return nests

    def read_func(self) -> tirx.PrimFunc:
        """The kernel with what computes the window's input inlined."""
        return self._sch.mod["main"]


def window_kernel(
    func: tirx.PrimFunc, weighted: bool = False, symbolic_sizes: bool = False
) -> WindowKernel:
    """The kernel ``func``, its padding inlined; the rest, and what it raises, as ``window_of``."""
    sch = inlined_schedule(func)
    anchor = _window_block(sch)
    window = window_of(sch.get(anchor), weighted, symbolic_sizes)
    views = FlatViews(symbolic_sizes)
    result = tirx.Var("result", str(window.start.ty))
    fused = _epilogue(sch, anchor, window, result)
    plain = tirx.BufferStore(window.store.buffer, result, window.store.indices)
    written = fused if fused is not None else plain
    store = flattened(_without_single(written, window), views)
    flat = flattened(_without_single(window.store, window), views)
    if store is None or flat is None:
        raise NotApplicable("a buffer has strides of its own")
    window = replace(window, store=flat)
    # Only arrays inside of a kernel can share memory with what is on the way to the result.
    once = fused is None and len(kernel_blocks(sch)) > 1
    return WindowKernel(window, store, result, once, views, sch, anchor, fused is not None)


def _window_block(sch: s_tir.Schedule) -> SBlockRV:
    """The kernel's one reduction, with all that computes its input inlined."""
    anchor = only_reduction(sch)
    if len(sch.get(anchor).writes) != 1 or sch.get(anchor).init is None:
        raise NotApplicable("the reduction has several results, or no start")
    while producers := sch.get_producers(anchor):
        try:
            sch.compute_inline(producers[0])
        except ScheduleError:
            raise NotApplicable("what computes the input of the window is used elsewhere") from None
    return anchor


def _without_single(store: tirx.BufferStore, window: Window) -> tirx.BufferStore:
    """The assignment without the loops of one iteration, which are not made."""
    once = {a.var: tirx.const(0, str(a.var.ty)) for a in window.outputs if a.length == 1}
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

    def replaced(load: tvm.ir.TensorLoad) -> tvm.ir.Expr:
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
        and tvm_ffi.structural_equal(v.dom.extent, index_of(axis.extent, v.var))
        for index, v, axis, written in pairs
    )

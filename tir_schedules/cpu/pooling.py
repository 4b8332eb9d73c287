"""Pooling: a window that slides over an input is reduced row by row.

For each row of the result, the rows of the input that its windows cover are first combined into
one row in cache, along which everything is contiguous, with padding at both ends. The windows then
slide along that row. Neither step has a branch inside, whatever the padding, the layout and the
number of channels, and a window of k by k takes 2 k steps instead of k * k.
"""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import nodes, slope
from tvm_ext.tir_schedules.analysis.loop_nest import (
    Nest,
    joined,
    simplified,
    substitute,
)
from tvm_ext.tir_schedules.analysis.sliding_window import (
    Slide,
    Window,
    WindowKernel,
    at_position,
    takes_plain_elements,
    window_kernel,
)
from tvm_ext.tir_schedules.cpu.data_parallel import leaf_code, schedule_window
from tvm_ext.tir_schedules.cpu.nest_code import (
    loop,
    loops_around,
    new_axis,
    vector_cut,
    walks_in_steps_of_one,
)
from tvm_ext.tir_schedules.cpu.parallel_vectorize import (
    REGISTERS_PER_VECTOR_LOOP,
    VECTORS,
    distinct,
    pick_threads,
    worth_threads,
)
from tvm_ext.tir_schedules.inlining import reduction_blocks, schedule_of
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Code for a window that slides over an input: rows are combined, then walked along.


# Windows of more rows are combined in a loop, not in one expression.
_MAX_UNROLLED = 16

_OPERATORS: dict[Any, Callable[[Any, Any], Any]] = {
    tirx.Add: lambda a, b: a + b,
    tirx.Max: tirx.max,
    tirx.Min: tirx.min,
}


@dataclass(frozen=True)
class PoolDecision:
    """How a window is taken apart.

    Attributes
    ----------
    along : int
        Which of the window's axes slides along the combined row; the others are combined into it.
    inside : tuple[int, ...]
        The kernel's output loops that are part of a row, such as channels that come last, in the
        order of the input. None of them is one along which the window slides.
    vectors : int
        Registers' worth of elements in the body of a loop over vectors, at most.
    threads : bool
        Whether rows are handed to threads.
    """

    along: int
    inside: tuple[int, ...]
    vectors: int = REGISTERS_PER_VECTOR_LOOP
    threads: bool = False


class PoolCode:
    """The code of a kernel's window, for flat views of its buffers."""

    def __init__(self, kernel: WindowKernel, decision: PoolDecision) -> None:
        self.window = window = kernel.window
        self.store = kernel.store
        self.once = kernel.once
        self.result = kernel.result
        self.decision = decision
        self.along = window.slides[decision.along]
        self.across = [s for i, s in enumerate(window.slides) if i != decision.along]
        self.inside = [window.outputs[i] for i in decision.inside]
        kept = [self.along.output, *self.inside]
        self.outside = [axis for axis in window.outputs if not any(axis is k for k in kept)]
        self.combine = _OPERATORS[window.combine]
        self.width = math.prod(axis.extent for axis in self.inside)
        self.row = tirx.decl_buffer(
            (self.along.length * self.width,), str(window.start.ty), "combined"
        )

    def rows(self) -> int:
        """How many combined rows there are, which threads may share."""
        return math.prod(axis.extent for axis in self.outside)

    def operations(self) -> int:
        """Elements that are combined in all rows, and along them."""
        rows = math.prod(slide.position.extent for slide in self.across)
        results = math.prod(axis.extent for axis in self.window.outputs)
        return results * (rows * self.along.step + self.along.position.extent)

    def vector_cuts(self, lanes: int, registers: int) -> list[tuple[tuple[int, int], ...]]:
        """How loops over vectors are cut that have so many registers' worth in their bodies."""
        nests = [*self._padding(), self._row_nest(self.window.start), self._walk()]
        loops = [joined(simplified(nest)) for nest in nests]
        return [
            vector_cut(nest, lanes, self.once, registers)
            for nest in loops
            if walks_in_steps_of_one(nest)
        ]

    def statement(self, machine: CpuDescription) -> tirx.Stmt:
        """All loops of the reduction."""
        lanes = machine.vector_lanes(str(self.row.dtype))
        fill = [self._loops(nest, lanes) for nest in self._padding()]
        walk = self._loops(self._walk(), lanes)
        body = sequence([tirx.AllocBuffer(self.row), *fill, self._combined(lanes), walk])
        cores = machine.cores if self.decision.threads else 1
        return loops_around([a for a in self.outside if a.extent > 1], body, cores)

    def _loops(self, nest: Nest, lanes: int) -> tirx.Stmt:
        return leaf_code(joined(simplified(nest)), None, lanes, 1, self.once, self.decision.vectors)

    def _place(self, column: tvm.ir.Expr) -> tvm.ir.Expr:
        """Where in the combined row an element is."""
        place = column * self.width
        inner = self.width
        for axis in self.inside:
            inner //= axis.extent
            place = place + axis.var * inner
        return place

    def _padding(self) -> list[Nest]:
        ends = [(0, self.along.first), (self.along.last, self.along.length)]
        found = []
        for start, end in ends:
            if end > start:
                axis = new_axis("column", (end - start) * self.width, self.along.position.var)
                place = axis.var + start * self.width
                store = tirx.BufferStore(self.row, self.window.start, [place])
                found.append(Nest((axis,), store))
        return found

    def _combined(self, lanes: int) -> tirx.Stmt:
        """The rows under the window, as one: one by one only where some are padding."""
        counts = [slide.position.extent for slide in self.across]
        places = list(itertools.product(*(range(count) for count in counts)))
        if len(places) > _MAX_UNROLLED:
            return self._one_by_one(lanes)
        inside = self._row_nest(
            functools.reduce(self.combine, (self._element(place) for place in places))
        )
        whole = self._loops(inside, lanes)
        conditions = [c for slide in self.across for c in _is_covered(slide)]
        if not conditions:
            return whole
        return tirx.IfThenElse(tirx.all(*conditions), whole, self._one_by_one(lanes))

    def _one_by_one(self, lanes: int) -> tirx.Stmt:
        start = self._loops(self._row_nest(self.window.start), lanes)
        axes = [new_axis("row", s.position.extent, s.position.var) for s in self.across]
        nest = self._row_nest(self._element([axis.var for axis in axes]))
        so_far = tirx.BufferLoad(self.row, nest.store.indices)
        value = self.combine(so_far, nest.store.value)
        store = tirx.BufferStore(self.row, value, nest.store.indices)
        body = self._loops(Nest(nest.axes, store), lanes)
        conditions = [
            c
            for slide, axis in zip(self.across, axes, strict=True)
            for c in _is_inside(slide, axis.var)
        ]
        if conditions:
            body = tirx.IfThenElse(tirx.all(*conditions), body, None)
        for axis in reversed(axes):
            body = loop(axis, body)
        return sequence([start, body])

    def _row_nest(self, value: tvm.ir.Expr) -> Nest:
        """``value``, in terms of the column and of what is inside of a row, for the whole row."""
        column = new_axis("column", self.along.last - self.along.first, self.along.position.var)
        position = column.var + self.along.first
        moved = at_position(value, self.along, position)
        store = tirx.BufferStore(self.row, moved, [self._place(position)])
        return Nest((column, *self.inside), store)

    def _element(self, place: Any) -> tvm.ir.Expr:
        value = self.window.store.value
        for slide, number in zip(self.across, place, strict=True):
            output = slide.output.var * slide.step if slide.output.extent > 1 else 0
            value = at_position(value, slide, output + number * slide.spread)
        return value

    def _walk(self) -> Nest:
        along = self.along
        output = along.output.var if along.output.extent > 1 else 0
        columns = [
            output * along.step + number * along.spread for number in range(along.position.extent)
        ]
        loads = [tirx.BufferLoad(self.row, [self._place(column)]) for column in columns]
        value = substitute(self.store.value, {self.result: functools.reduce(self.combine, loads)})
        store = tirx.BufferStore(self.store.buffer, value, self.store.indices)
        axes = [axis for axis in self.window.outputs if any(axis is k for k in self.inside)]
        return Nest((along.output, *axes) if along.output.extent > 1 else tuple(axes), store)


def _is_covered(slide: Slide) -> list[tvm.ir.Expr]:
    start, end = slide.covered()
    output = slide.output.var if slide.output.extent > 1 else tirx.const(0, "int64")
    found = [output >= start] if start > 0 else []
    return [*found, output < end] if end < slide.output.extent else found


def _is_inside(slide: Slide, number: tvm.ir.Expr) -> list[tvm.ir.Expr]:
    if (slide.first, slide.last) == (0, slide.length):
        return []
    output = slide.output.var * slide.step if slide.output.extent > 1 else 0
    position = output + number * slide.spread
    return [position >= slide.first, position < slide.last]


class CpuPooling:
    """Kernels that reduce a window which slides along at least one axis."""

    name = "pooling"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule | NotApplicable:
        """See ``Template.apply``."""
        sch = schedule_of(func)
        if not _takes_plain_elements(sch):
            return NotApplicable("it is not one reduction of plain elements")
        kernel = window_kernel(func)
        if isinstance(kernel, NotApplicable):
            return kernel
        decision = decide_pool(kernel, machine, decisions)
        if isinstance(decision, NotApplicable):
            return decision
        code = PoolCode(kernel, decision).statement(machine)
        return schedule_window(kernel, func, code, machine, decisions)


def decide_pool(
    kernel: WindowKernel, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
) -> PoolDecision | NotApplicable:
    """The default heuristic: along the axis that is closest together in the input.

    Asks for another axis (``along``), for ``vectors`` and ``threads``; where windows are better
    reduced one by one, whether that is to be left to other templates (``direct``).
    """
    window = kernel.window
    load, *others = nodes(window.store.value, tvm.ir.TensorLoad)
    if others:
        return NotApplicable("an element of the window is computed from several values")
    if all(slide.output.extent == 1 for slide in window.slides):
        return NotApplicable("the window covers all of its input and does not slide")
    steps = [slope(load.indices[0], slide.position.var) for slide in window.slides]
    if any(not step or step % s.spread for step, s in zip(steps, window.slides, strict=True)):
        return NotApplicable("an address is not linear in the position of the window")
    known = [step // s.spread for step, s in zip(steps, window.slides, strict=True) if step]
    closest = known.index(min(known))
    decision = PoolDecision(closest, _inside(window, load, known[closest]))
    directly = _is_cheaper_directly(window, decision, machine)
    if directly and decisions.pick("direct", (0, 1), 1):
        return NotApplicable(
            "windows do not overlap and hold no padding: they are reduced in registers"
        )
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

"""Pooling: a window that slides over an input is reduced row by row.

For each row of the result, the rows of the input that its windows cover are first combined into
one row in cache, along which everything is contiguous, with padding at both ends. The windows then
slide along that row. Neither step has a branch inside, whatever the padding, the layout and the
number of channels, and a window of k by k takes 2 k steps instead of k * k.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    LoopAxis,
    depends,
    nodes,
    reduction_blocks,
    schedule_of,
    static_extent,
    stride,
)
from tvm_ext.tir_schedules.analysis.loop_nest import (
    Nest,
    index_of,
    joined,
    simplified,
    substitute,
    with_own_variables,
)
from tvm_ext.tir_schedules.analysis.sliding_window import (
    Slide,
    Window,
    WindowKernel,
    at_position,
    position_step,
    takes_plain_elements,
    window_kernel,
)
from tvm_ext.tir_schedules.cpu.data_parallel import in_stretches, leaf_code, schedule_window
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
from tvm_ext.tir_schedules.statements import sequence, stack_array
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
        self.borders: list[tirx.Stmt] = []
        self.tables: list[tirx.Stmt] = []
        self.across = [
            self._with_borders(slide)
            for i, slide in enumerate(window.slides)
            if i != decision.along
        ]
        self.along = self._with_borders(window.slides[decision.along], self.across)
        self.inside = [window.outputs[i] for i in decision.inside]
        kept = [self.along.output, *self.inside]
        self.outside = [axis for axis in window.outputs if not any(axis is k for k in kept)]
        self.combine = _OPERATORS[window.combine]
        self.width: Any = math.prod(axis.extent for axis in self.inside)
        size: Any = self.along.length * self.width
        if not isinstance(size, int):
            # Without results there may be fewer than no positions.
            size = tirx.max(size, index_of(1, self.along.position.var))
        self.row = tirx.decl_buffer((size,), str(window.start.ty), "combined")
        if self.along.output.is_symbolic and not self.inside:
            self.store = self._with_counts_in_tables(self.store)

    def _with_borders(self, slide: Slide, across: Sequence[Slide] = ()) -> Slide:
        """``slide`` whose padding, where only the run knows it, starts and ends at variables.

        All is padding where it is so ``across`` the rows.
        """
        last, like = slide.last, slide.position.var
        exist = [s.first < s.last for s in across if s.is_padded and not isinstance(s.last, int)]
        if exist:
            last = tirx.Select(tirx.all(*exist), index_of(last, like), index_of(slide.first, like))
        found = slide
        for name, border in (("first", slide.first), ("last", last)):
            if (slide.is_padded or exist) and not isinstance(border, int):
                variable = tirx.Var(name, str(like.ty))
                self.borders.append(tirx.Bind(variable, Analyzer().simplify(border)))
                found = replace(found, **{name: variable})
        return found

    def _with_counts_in_tables(self, store: tirx.BufferStore) -> tirx.BufferStore:
        """``store`` with tables of the numbers that a mean is divided by.

        They are the same for all channels, and the count of what is no padding takes longer than
        the sum. In rows of known sizes LLVM finds out by itself.
        """

        def looked_up(cast: tirx.Cast) -> tvm.ir.Expr:
            axes = [axis for axis in self.window.outputs if depends(cast, axis.var)]
            is_count = "int" in str(cast.value.ty) and not nodes(cast, tvm.ir.TensorLoad)
            shared = len(axes) < len(self.window.outputs)
            if not (is_count and shared and depends(cast, self.along.output.var)):
                return cast
            place: Any = index_of(0, self.along.position.var)
            for axis in axes:
                place = place * axis.extent + axis.var
            size = math.prod(axis.extent for axis in axes)
            table = tirx.decl_buffer((tirx.max(size, 1),), str(cast.ty), "counts")
            fill = with_own_variables(Nest(tuple(axes), tirx.BufferStore(table, cast, [place])))
            self.tables += [tirx.AllocBuffer(table), loops_around(fill.axes, fill.store, 1)]
            return tirx.BufferLoad(table, [place])

        value = tvm_ffi.structural_map(store.value, (tirx.Cast, looked_up))
        return tirx.BufferStore(store.buffer, value, store.indices)

    def rows(self) -> int:
        """How many combined rows there are, which threads may share."""
        return math.prod(axis.extent for axis in self.outside)

    def operations(self) -> int:
        """Elements that are combined in all rows, and along them, of known sizes."""
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
        padding = [tirx.AllocBuffer(self.row)]
        for nest in self._padding():
            few = nest.is_symbolic
            padding.append(
                loops_around(nest.axes, nest.store, 1) if few else self._loops(nest, lanes)
            )
        body = [self._combined(lanes), self._loops(self._walk(), lanes)]
        axes = [axis for axis in self.outside if not axis.runs_once]
        cores = machine.cores if self.decision.threads else 1
        if not static_extent(self.row.shape[0]):
            code = self._loops_of_one_row(axes, padding, sequence(body), cores)
        else:
            code = loops_around(axes, sequence([*padding, *body]), cores)
        code = sequence([*self.borders, *self.tables, code])
        # Of no results, the combined row has fewer elements than its padding.
        some = [axis.extent > 0 for axis in self.window.outputs if axis.is_symbolic]
        return tirx.IfThenElse(tirx.all(*some), code, None) if some else code

    def _loops_of_one_row(
        self, axes: list[LoopAxis], padding: list[tirx.Stmt], body: tirx.Stmt, cores: int
    ) -> tirx.Stmt:
        """Memory whose size is known in the run only is asked for as rarely as threads allow.

        Nothing else writes to the padding of a row.
        """
        if cores < 2 or not axes:
            return sequence([*padding, loops_around(axes, body, 1)])
        *outer, last = axes
        if outer:
            axes, body = outer, loop(last, body)
        return loops_around(axes, sequence([*padding, body]), cores)

    def _loops(self, nest: Nest, lanes: int) -> tirx.Stmt:
        nest = joined(simplified(nest))
        if nest.axes and nest.axes[-1].is_symbolic:
            return in_stretches(nest, lanes)
        return leaf_code(nest, None, lanes, 1, self.once, self.decision.vectors)

    def _place(self, column: tvm.ir.Expr) -> tvm.ir.Expr:
        """Where in the combined row an element is."""
        place = column * self.width
        for i, axis in enumerate(self.inside):
            place = place + axis.var * math.prod(inner.extent for inner in self.inside[i + 1 :])
        return place

    def _padding(self) -> list[Nest]:
        ends = [(0, self.along.first), (self.along.last, self.along.length)]
        if not self.along.is_padded:
            return []
        found = []
        for start, end in ends:
            length = end - start
            if not isinstance(length, int) or length > 0:
                axis = new_axis("column", length * self.width, self.along.position.var)
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
        conditions = [c for slide in self.across if slide.is_padded for c in _is_covered(slide)]
        if not conditions:
            return whole
        return tirx.IfThenElse(tirx.all(*conditions), whole, self._at_border(places, lanes))

    def _at_border(self, places: Sequence[Sequence[int]], lanes: int) -> tirx.Stmt:
        """The rows as one, where some are padding: they read the nearest one, which does not count.

        An array says which one: TVM would take the row itself for it where the condition holds.
        """
        code: list[tirx.Stmt] = []
        values = [(self.window.store.value, tirx.const(True, "bool")) for _ in places]
        for i, slide in enumerate(self.across):
            like = slide.position.var
            count = slide.position.extent
            nearest, declaration = stack_array(count, str(like.ty), "nearest")
            code += [declaration] if slide.is_padded else []
            rows = []
            for number in range(count):
                position = index_of(number * slide.spread, like) + slide.moved
                rows.append((position, tirx.const(True, "bool")))
                if slide.is_padded:
                    inside = tirx.max(tirx.min(position, slide.last - 1), slide.first)
                    code.append(tirx.BufferStore(nearest, inside, [index_of(number, like)]))
                    row = tirx.BufferLoad(nearest, [index_of(number, like)])
                    rows[number] = (row, tirx.all(*_is_inside(slide, position)))
            values = [
                (at_position(value, slide, row), tirx.all(counts, condition))
                for place, (value, condition) in zip(places, values, strict=True)
                for row, counts in (rows[place[i]],)
            ]
        elements = [tirx.Select(c, value, self.window.start) for value, c in values]
        combined = functools.reduce(self.combine, elements)
        return sequence([*code, self._loops(self._row_nest(combined), lanes)])

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
            if slide.is_padded
            for c in _is_inside(slide, slide.moved + axis.var * slide.spread)
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
            value = at_position(value, slide, slide.moved + number * slide.spread)
        return value

    def _walk(self) -> Nest:
        along = self.along
        columns = [along.moved + number * along.spread for number in range(along.position.extent)]
        loads = [tirx.BufferLoad(self.row, [self._place(column)]) for column in columns]
        value = substitute(self.store.value, {self.result: functools.reduce(self.combine, loads)})
        store = tirx.BufferStore(self.store.buffer, value, self.store.indices)
        axes = [axis for axis in self.window.outputs if any(axis is k for k in self.inside)]
        return Nest((along.output, *axes), store)


def _is_covered(slide: Slide) -> list[tvm.ir.Expr]:
    if not all(isinstance(n, int) for n in (slide.first, slide.last, slide.output.extent)):
        return [slide.moved >= slide.first, slide.moved + slide.reach < slide.last]
    start, end = slide.covered()
    output = slide.output.var if slide.output.extent > 1 else tirx.const(0, "int64")
    found = [output >= start] if start > 0 else []
    return [*found, output < end] if end < slide.output.extent else found


def _is_inside(slide: Slide, position: tvm.ir.Expr) -> list[tvm.ir.Expr]:
    return [position >= slide.first, position < slide.last]


class CpuPooling:
    """Kernels that reduce a window which slides along at least one axis."""

    name = "pooling"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        sch = schedule_of(func)
        if not _takes_plain_elements(sch):
            raise NotApplicable("it is not one reduction of plain elements")
        kernel = window_kernel(func, symbolic_sizes=True)
        decision = decide_pool(kernel, machine, decisions)
        if kernel.window.is_symbolic and kernel.later_nests() != []:
            raise NotApplicable("blocks follow a window over an input of symbolic sizes")
        code = PoolCode(kernel, decision).statement(machine)
        return schedule_window(kernel, func, code, machine, decisions)


def decide_pool(
    kernel: WindowKernel, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
) -> PoolDecision:
    """The default heuristic: along the axis that is closest together in the input.

    Asks for another axis (``along``), for ``vectors`` and ``threads``; where windows are better
    reduced one by one, whether that is to be left to other templates (``direct``).
    """
    window = kernel.window
    load, *others = nodes(window.store.value, tvm.ir.TensorLoad)
    if others:
        raise NotApplicable("an element of the window is computed from several values")
    if all(slide.output.length == 1 for slide in window.slides):
        raise NotApplicable("the window covers all of its input and does not slide")
    steps = [position_step(load, slide) for slide in window.slides]
    if any(step is None for step in steps):
        raise NotApplicable("an address is not linear in the position of the window")
    closest = steps.index(min(steps, key=_distance))
    decision = PoolDecision(closest, _inside(window, load, steps[closest]))
    directly = not window.is_symbolic and _is_cheaper_directly(window, decision, machine)
    if directly and decisions.pick("direct", (0, 1), 1):
        raise NotApplicable(
            "windows do not overlap and hold no padding: they are reduced in registers"
        )
    if window.is_symbolic:
        return replace(decision, threads=machine.cores > 1)
    moving = [i for i, slide in enumerate(window.slides) if slide.output.extent > 1]
    along = decisions.pick("along", moving, closest)
    code = PoolCode(kernel, PoolDecision(along, _inside(window, load, steps[along])))
    lanes = machine.vector_lanes(str(window.start.ty))
    options = distinct(
        VECTORS, REGISTERS_PER_VECTOR_LOOP, lambda n: tuple(code.vector_cuts(lanes, n))
    )
    vectors = decisions.pick("vectors", options, REGISTERS_PER_VECTOR_LOOP)
    worth = worth_threads(machine, code.operations(), lanes)
    threads = pick_threads(decisions, machine, code.rows, worth)
    return replace(code.decision, vectors=vectors, threads=threads)


def _inside(window: Window, load: tvm.ir.TensorLoad, step: Any) -> tuple[int, ...]:
    """The outputs that are closer together than the elements of a row, and part of it."""
    sliding = [slide.output for slide in window.slides]
    strides = {
        i: stride(load.indices[0], axis.var)
        for i, axis in enumerate(window.outputs)
        if not any(axis is output for output in sliding)
    }
    known = {i: _distance(apart) for i, apart in strides.items() if apart is not None}
    inside = [i for i, apart in known.items() if (0, 0) < apart < _distance(step)]
    return tuple(sorted(inside, key=lambda i: known[i], reverse=True))


def _distance(step: Any) -> tuple[int, int]:
    """Orders numbers of elements, of which one that is known in the run only has sizes in it."""
    return (0, step) if isinstance(step, int) else (len(nodes(step, tvm.ir.Var)), 0)


def _is_cheaper_directly(window: Window, decision: PoolDecision, machine: CpuDescription) -> bool:
    """Whether each window alone, over vectors of channels, takes fewer loads and stores."""
    width = 1
    for i in decision.inside:
        width *= window.outputs[i].extent
    if not isinstance(width, int) or width % machine.vector_lanes(str(window.start.ty)):
        return False
    if any(slide.is_padded for slide in window.slides):
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

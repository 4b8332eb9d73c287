"""What threads that slide a window along strips of results have to know of a kernel."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis, depends, nodes, slope
from tvm_ext.tir_schedules.analysis.loop_nest import index_of, substitute
from tvm_ext.tir_schedules.analysis.sliding_window import Slide, WindowKernel, at_position
from tvm_ext.tir_schedules.cuda.launch import Arrays, ThreadArray, repeated
from tvm_ext.tir_schedules.cuda.vector_group import Lanes, vector_widths

# In these, sums of many elements lose digits.
_SUMMED_WIDER = ("float16", "bfloat16")


@dataclass(frozen=True)
class StripWindow:
    """A window over rows and columns of the result, as threads go through it.

    Attributes
    ----------
    outer : tuple[LoopAxis, ...]
        Loops over results along which a thread has one.
    planes : tuple[Slide, ...]
        Axes of the window that are walked one position after the other: the depth of a window in
        three dimensions, input channels.
    rows : Slide or None
        The slower of the axes along which a thread may have several results.
    columns : Slide
        The faster one.
    lanes : LoopAxis or None
        Results next to each other in memory that are not columns: channels that come last.
    data, weight : Expr
        An element of the input, and what it is multiplied by; no weight for pooling.
    kernel : WindowKernel
        Where this was read from.
    """

    outer: tuple[LoopAxis, ...]
    planes: tuple[Slide, ...]
    rows: Slide | None
    columns: Slide
    lanes: LoopAxis | None
    data: tirx.Expr
    weight: tirx.Expr | None
    kernel: WindowKernel

    @property
    def sum_dtype(self) -> str:
        """The type in which the window is combined."""
        dtype = str(self.kernel.window.start.ty)
        return "float32" if dtype in _SUMMED_WIDER else dtype

    @property
    def plain(self) -> tvm.ir.Expr:
        """The load behind ``data`` where that is all there is, None where it is computed."""
        if self.weight is None:
            return self.data if is_load(self.data) else None
        return widened(self.data)

    @property
    def weight_load(self) -> tvm.ir.Expr:
        """The load behind ``weight``; None for pooling."""
        return None if self.weight is None else widened(self.weight)

    @property
    def taps(self) -> int:
        """Positions of the window in its rows and columns."""
        down = self.rows.position.extent if self.rows is not None else 1
        return down * self.columns.position.extent

    def shares_inputs(self) -> bool:
        """Whether results at the same place of the image read the same elements."""
        address = nodes(self.data, tvm.ir.TensorLoad)[0].indices[0]
        return any(not slope(address, axis.var) for axis in self._channels())

    def has_weights_by_channel(self) -> bool:
        """Whether results at the same place of the image have weights of their own."""
        address = self.weight_load.indices[0]
        return any(slope(address, axis.var) != 0 for axis in self._channels())

    def _channels(self) -> list[LoopAxis]:
        return [*self.outer, *([] if self.lanes is None else [self.lanes])]

    def reads_columns(self) -> bool:
        """Whether neighbouring columns of the input are next to each other in memory."""
        address = nodes(self.data, tvm.ir.TensorLoad)[0].indices[0]
        return slope(address, self.columns.position.var) == self.columns.spread

    def axes(self) -> list[LoopAxis]:
        """All loops over results, those next to each other in memory first."""
        slides = [slide for slide in (self.rows, self.columns) if slide is not None]
        axes = [*self.outer, *(slide.output for slide in slides)]
        axes += [self.lanes] if self.lanes is not None else []
        return sorted(axes, key=lambda axis: abs(_stride(self.kernel, axis)))

    def results(self) -> int:
        """How many elements the result has."""
        return math.prod(axis.extent for axis in self.axes())

    def data_at(self, planes: Sequence[tvm.ir.Expr], row: Any, column: tvm.ir.Expr) -> tvm.ir.Expr:
        """The element at a row and a column, both counted from the padding's start.

        Where it is a widened copy, the element as it is in memory.
        """
        value = at_position(self.data if self.plain is None else self.plain, self.columns, column)
        if self.rows is not None:
            value = at_position(value, self.rows, row)
        for slide, number in zip(self.planes, planes, strict=True):
            value = at_position(value, slide, plane_position(slide, number))
        return value

    def weight_at(self, planes: Sequence[Any], row: Any, column: Any) -> tvm.ir.Expr:
        """The weight for a row and a column of the window, as it is in memory."""
        numbers = [*zip(self.planes, planes, strict=True), (self.columns, column)]
        if self.rows is not None:
            numbers.append((self.rows, row))
        values = {slide.position.var: index_of(n, slide.position.var) for slide, n in numbers}
        return substitute(self.weight_load, values)


def plane_position(slide: Slide, number: tvm.ir.Expr) -> tvm.ir.Expr:
    """Where the window's position ``number`` is for the result at hand."""
    first = slide.output.var * slide.step if slide.output.extent > 1 else 0
    return first + number * slide.spread


def strip_window(kernel: WindowKernel, weighted: bool) -> StripWindow:
    """The window of ``kernel`` in rows, columns and neighbours. Raises NotApplicable."""
    window = kernel.window
    data, weight = window.store.value, None
    if weighted:
        if window.combine is not tirx.Add or not isinstance(data, tirx.Mul):
            raise NotApplicable("it is no contraction")
        data, weight = data.a, data.b
        if widened(weight) is None:
            raise NotApplicable("weights are computed")
    single = [slide for slide in window.slides if _is_single_input(slide, weight)]
    slides = [slide for slide in window.slides if not any(slide is one for one in single)]
    zero = {slide.position.var: index_of(0, slide.position.var) for slide in single}
    data, weight = (None if e is None else substitute(e, zero) for e in (data, weight))
    moving = [slide for slide in slides if slide.output.extent > 1]
    if not moving:
        raise NotApplicable("the window covers all of its input and does not slide")
    loads = nodes(data, tvm.ir.TensorLoad)
    if not all(_is_linear(load, slide) for load in loads for slide in slides):
        raise NotApplicable("an address is not linear in the position of the window")
    moving.sort(key=lambda slide: -abs(_stride(kernel, slide.output)))
    columns, rows = moving[-1], moving[-2] if len(moving) > 1 else None
    if weighted and any(slope(_flat(weight), slide.output.var) != 0 for slide in moving):
        raise NotApplicable("weights depend on the place in the result")
    sliding = (rows, columns)
    planes = tuple(slide for slide in slides if not any(slide is s for s in sliding))
    outputs = [slide.output for slide in sliding if slide is not None]
    others = [a for a in window.outputs if a.extent > 1 and not any(a is o for o in outputs)]
    lanes = next((axis for axis in others if _stride(kernel, axis) == 1), None)
    outer = tuple(axis for axis in others if axis is not lanes)
    return StripWindow(outer, planes, rows, columns, lanes, data, weight, kernel)


def _is_single_input(slide: Slide, weight: tirx.Expr | None) -> bool:
    """Whether it is no axis of the window: one position, unpadded, and none moves along it.

    The only input channel of a group is counted with the group's number.
    """
    unpadded = (slide.first, slide.last) == (0, slide.length)
    if slide.position.extent > 1 or not unpadded:
        return False
    if slide.output.extent == 1:
        return True
    return weight is not None and slope(_flat(weight), slide.output.var) != 0


def is_load(value: tvm.ir.Expr) -> bool:
    """Whether a value is an element as it is in memory."""
    return isinstance(value, tvm.ir.TensorLoad)


def widened(value: tvm.ir.Expr) -> tvm.ir.Expr:
    """The load of which ``value`` is a copy in a type that holds no less; None if it is not one."""
    if not isinstance(value, tirx.Cast):
        return value if is_load(value) else None
    inner = value.value
    narrow, wide = (tvm.DataType(str(e.ty)).bits for e in (inner, value))
    return inner if is_load(inner) and narrow <= wide else None


def _flat(weight: tvm.ir.Expr) -> tvm.ir.Expr:
    (load,) = nodes(weight, tvm.ir.TensorLoad)
    return load.indices[0]


def _stride(kernel: WindowKernel, axis: LoopAxis) -> int:
    """Elements between neighbouring results, as they are written or else as they are computed."""
    written = slope(kernel.store.indices[0], axis.var)
    return (written or slope(kernel.window.store.indices[0], axis.var)) or 0


def _is_linear(load: tvm.ir.TensorLoad, slide: Slide) -> bool:
    step = slope(load.indices[0], slide.position.var)
    return step is not None and step % slide.spread == 0


# Which of a window's loads move whole vectors, and the registers that they go to.


class StripLoads:
    """The expressions of a window for a vector of ``width`` results.

    Parameters
    ----------
    window : StripWindow
        The window.
    width : int
        Neighbours along its lanes.
    dtype : str
        The type that loops count in.
    """

    def __init__(self, window: StripWindow, width: int, dtype: str) -> None:
        self.window, self.width, self.dtype = window, width, dtype
        self.lane, self.step = tirx.Var("lane", dtype), tirx.Var("step", dtype)
        axes = [axis for axis in window.axes() if axis is not window.lanes]
        self.ranges = [(axis.var, axis.extent) for axis in axes]
        if window.lanes is not None:
            self.ranges.append((self.step, max(1, window.lanes.extent // width)))
        self.data_kind = self._kind(self._some_data())
        weight = None if window.weight is None else self._some_weight()
        self.weight_kind = "same" if weight is None else self._kind(weight)

    def fits(self) -> bool:
        """Whether the results are written in whole vectors."""
        lanes, width = self.window.lanes, self.width
        if width == 1:
            return True
        if lanes is None or lanes.extent % width:
            return False
        probe = tirx.decl_buffer((width,), self.window.sum_dtype, "probe", scope="local")
        store = self.result_store(tirx.BufferLoad(probe, [self.lane]))
        return Lanes(store, self.lane, width, self.ranges).fits()

    def result_store(self, total: tvm.ir.Expr) -> tirx.BufferStore:
        """Writes what becomes of ``total``, the window's result for the lane."""
        store, result = self.window.kernel.store, self.window.kernel.result
        value = substitute(store.value, {result: total.astype(str(result.ty))})
        return tirx.BufferStore(
            store.buffer, self._in_lanes(value), [self._in_lanes(i) for i in store.indices]
        )

    def data(self, planes: Sequence[tvm.ir.Expr], row: Any, column: tvm.ir.Expr) -> tvm.ir.Expr:
        """The input at a place, in the variables of lane and step."""
        return self._in_lanes(self.window.data_at(planes, row, column))

    def weight(self, planes: Sequence[Any], row: Any, column: Any) -> tvm.ir.Expr:
        """The weight of a row and a column of the window, in the same variables."""
        return self._in_lanes(self.window.weight_at(planes, row, column))

    def _in_lanes(self, expr: tvm.ir.Expr) -> tvm.ir.Expr:
        if self.window.lanes is None:
            return expr
        return substitute(expr, {self.window.lanes.var: self.step * self.width + self.lane})

    def _some_data(self) -> tvm.ir.Expr:
        """The input anywhere."""
        slides = [self.window.rows, self.window.columns]
        places = [None if slide is None else self._any(slide.length) for slide in slides]
        return self.data([self._any(p.position.extent) for p in self.window.planes], *places)

    def _some_weight(self) -> tvm.ir.Expr:
        slides = [self.window.rows, self.window.columns]
        taps = [None if s is None else self._any(s.position.extent) for s in slides]
        return self.weight([self._any(p.position.extent) for p in self.window.planes], *taps)

    def _any(self, extent: int) -> tvm.ir.Expr:
        var = tirx.Var("place", self.dtype)
        self.ranges.append((var, extent))
        return var

    def _kind(self, value: tvm.ir.Expr) -> str:
        """ "vector", "same" for all lanes, or "each" on its own."""
        if self.width == 1 or not depends(value, self.lane):
            return "same"
        if not isinstance(value, tvm.ir.TensorLoad):
            return "each"
        probe = tirx.decl_buffer((self.width,), str(value.ty), "probe", scope="local")
        store = tirx.BufferStore(probe, value, [self.lane])
        found = Lanes(store, self.lane, self.width, self.ranges).reads
        return "vector" if found else "each"


class VectorArray:
    """Registers for ``count`` vectors of one kind."""

    def __init__(
        self,
        name: str,
        count: int,
        kind: str,
        dtype: str,
        loads: StripLoads,
        arrays: Arrays,
        threads: Sequence[tuple[Any, int]],
    ) -> None:
        self.kind, self.dtype, self.loads = kind, dtype, loads
        size = count if kind == "same" else count * loads.width
        self.array: ThreadArray = arrays.registers(name, size, dtype, threads)

    def at(self, number: Any, lane: tvm.ir.Expr) -> tvm.ir.Expr:
        """An element of a vector."""
        return self.array.at(number if self.kind == "same" else number * self.loads.width + lane)

    def fill(self, number: Any, value: tvm.ir.Expr) -> tirx.Stmt:
        """Sets a whole vector to a value that has no lane."""
        return self._each(number, lambda _: value, tirx.ForKind.UNROLLED)

    def load(self, number: Any, value: tvm.ir.Expr) -> tirx.Stmt:
        """Loads a vector, an expression in the variable of the lane."""
        kind = tirx.ForKind.VECTORIZED if self.kind == "vector" else tirx.ForKind.UNROLLED
        lane = self.loads.lane

        def element(i: tvm.ir.Expr) -> tvm.ir.Expr:
            same = lane.same_as
            moved = tvm_ffi.structural_map(value, (tvm.ir.Var, lambda v: i if same(v) else v))
            return moved.astype(self.dtype)

        return self._each(number, element, kind)

    def _each(self, number: Any, value: Callable[[Any], Any], kind: tirx.ForKind) -> tirx.Stmt:
        if self.kind == "same":
            return self.array.put(number, value(tirx.const(0, self.loads.dtype)))
        width = self.loads.width
        return repeated(
            width,
            self.loads.dtype,
            lambda i: self.array.put(number * width + i, value(i)),
            kind,
        )


def strip_loads(window: StripWindow, machine: CudaDescription, dtype: str) -> list[StripLoads]:
    """The vectors in which the results can be written, the widest first; single ones always can."""
    reads = [] if window.plain is None else [window.plain]
    reads += nodes(window.weight, tvm.ir.TensorLoad) if window.weight is not None else []
    widest = min((machine.vector_lanes(str(load.ty)) for load in reads), default=16)
    widths = [w for w in vector_widths(window.kernel.store, machine) if w <= widest]
    found = (StripLoads(window, width, dtype) for width in widths)
    return [loads for loads in found if loads.fits()]

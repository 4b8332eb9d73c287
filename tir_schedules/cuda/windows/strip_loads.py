"""Which of a window's loads move whole vectors, and the registers that they go to."""

from collections.abc import Callable, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.launch import Arrays, ThreadArray, repeated
from tvm_ext.tir_schedules.cuda.vector_group import Lanes, vector_widths
from tvm_ext.tir_schedules.cuda.windows.strip_window import StripWindow
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.nest import substitute


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

    def result_store(self, total: Any) -> tirx.BufferStore:
        """Writes what becomes of ``total``, the window's result for the lane."""
        store, result = self.window.kernel.store, self.window.kernel.result
        value = substitute(store.value, {result: total.astype(str(result.ty))})
        return tirx.BufferStore(
            store.buffer, self._in_lanes(value), [self._in_lanes(i) for i in store.indices]
        )

    def data(self, planes: Sequence[Any], row: Any, column: Any) -> Any:
        """The input at a place, in the variables of lane and step."""
        return self._in_lanes(self.window.data_at(planes, row, column))

    def weight(self, planes: Sequence[Any], row: Any, column: Any) -> Any:
        """The weight of a row and a column of the window, in the same variables."""
        return self._in_lanes(self.window.weight_at(planes, row, column))

    def _in_lanes(self, expr: Any) -> Any:
        if self.window.lanes is None:
            return expr
        return substitute(expr, {self.window.lanes.var: self.step * self.width + self.lane})

    def _some_data(self) -> Any:
        """The input anywhere."""
        slides = [self.window.rows, self.window.columns]
        places = [None if slide is None else self._any(slide.length) for slide in slides]
        return self.data([self._any(p.position.extent) for p in self.window.planes], *places)

    def _some_weight(self) -> Any:
        slides = [self.window.rows, self.window.columns]
        taps = [None if s is None else self._any(s.position.extent) for s in slides]
        return self.weight([self._any(p.position.extent) for p in self.window.planes], *taps)

    def _any(self, extent: int) -> Any:
        var = tirx.Var("place", self.dtype)
        self.ranges.append((var, extent))
        return var

    def _kind(self, value: Any) -> str:
        """ "vector", "same" for all lanes, or "each" on its own."""
        if self.width == 1 or not any(v.same_as(self.lane) for v in nodes(value, tvm.ir.Var)):
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

    def at(self, number: Any, lane: Any) -> Any:
        """An element of a vector."""
        return self.array.at(number if self.kind == "same" else number * self.loads.width + lane)

    def fill(self, number: Any, value: Any) -> tirx.Stmt:
        """Sets a whole vector to a value that has no lane."""
        return self._each(number, lambda _: value, tirx.ForKind.UNROLLED)

    def load(self, number: Any, value: Any) -> tirx.Stmt:
        """Loads a vector, an expression in the variable of the lane."""
        kind = tirx.ForKind.VECTORIZED if self.kind == "vector" else tirx.ForKind.UNROLLED
        lane = self.loads.lane

        def element(i: Any) -> Any:
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


def strip_loads(window: StripWindow, machine: GpuDescription, dtype: str) -> list[StripLoads]:
    """The vectors in which the results can be written, the widest first; single ones always can."""
    reads = [] if window.plain is None else [window.plain]
    reads += nodes(window.weight, tvm.ir.TensorLoad) if window.weight is not None else []
    widest = min((machine.vector_lanes(str(load.ty)) for load in reads), default=16)
    widths = [w for w in vector_widths(window.kernel.store, machine) if w <= widest]
    found = (StripLoads(window, width, dtype) for width in widths)
    return [loads for loads in found if loads.fits()]

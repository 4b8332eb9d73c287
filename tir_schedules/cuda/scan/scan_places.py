"""Where the threads of a scan stand, and its expressions at their places."""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.launch import ThreadArray
from tvm_ext.tir_schedules.cuda.scan.scan_decision import ScanLaunch
from tvm_ext.tir_schedules.cuda.scan.scan_kernel import ScanKernel
from tvm_ext.tir_schedules.cuda.thread_plane import ThreadPlane
from tvm_ext.tir_schedules.cuda.vector_group import Lanes
from tvm_ext.tir_schedules.flat_views import FlatViews, with_flat_memory
from tvm_ext.tir_schedules.rows.row_kernel import buffer_key, substituted
from tvm_ext.tir_schedules.rows.row_strides import unfused

# An assignment at a position, of which the lane is one of the neighbours.
AtPosition = Callable[[Any, Any], tirx.BufferStore]


class ScanPlaces(ThreadPlane):
    """The threads of a scan under a launch, what they keep, and what they load and store."""

    def __init__(self, kernel: ScanKernel, launch: ScanLaunch, views: FlatViews) -> None:
        across = launch.across
        extents = (launch.parts, launch.rows) if across else (launch.rows, launch.parts)
        super().__init__(extents, kernel.index_dtype)
        self.kernel, self.launch, self.views = kernel, launch, views
        self.group = self.chunk = self.number(0)
        # What is carried where a result sees it, for each of the thread's neighbours.
        self.values: Any = None

    def registers(self, name: str, size: int = 1) -> Any:
        """An array of the carried type in each thread, for ``held``."""
        shape = [*self.extents, size]
        return self.arrays.allocated(name, shape, self.kernel.dtype, "local")

    def held(self, array: Any) -> ThreadArray:
        """The own part of an array in registers of the thread that is written just now."""
        return ThreadArray(array, (self.y, self.x))

    def row(self) -> tuple[Any, Any]:
        """The thread's scan, behind the end the last one, and whether it is inside."""
        rows, count = self.launch.rows, self.kernel.count
        row = self.group * self.number(rows) + (self.x if self.launch.across else self.y)
        if count % rows == 0:
            return row, None
        return tirx.Min(row, self.number(count - 1)), row < self.number(count)

    def neighbours(self, make: AtPosition, row: Any, vector: Any) -> tirx.Stmt:
        """What ``make`` assigns at the elements of a vector, number ``vector`` of the row."""
        lanes, row_var, vector_var = self._lanes(make)
        code = lanes.code(self.arrays, self.mine())
        return substituted(code, {buffer_key(row_var): row, buffer_key(vector_var): vector})

    def fits(self, make: AtPosition) -> bool:
        """Whether the assignment moves whole vectors at all of its elements."""
        return self.kernel.length % self.launch.width == 0 and self._lanes(make)[0].fits()

    def _lanes(self, make: AtPosition) -> tuple[Lanes, tirx.Var, tirx.Var]:
        width, kernel = self.launch.width, self.kernel
        lane, row, vector = (tirx.Var(name, self.dtype) for name in ("lane", "row", "vector"))
        position = vector * self.number(width) + lane
        values = {
            **unfused(row, kernel.rows, self.dtype),
            buffer_key(kernel.position.var): position,
        }
        flat = with_flat_memory(make(position, lane), self.views)
        ranges = [(row, kernel.count), (vector, -(-kernel.length // width))]
        return Lanes(substituted(flat, values), lane, width, ranges), row, vector

    def combined(self, left: Any, right: Any) -> Any:
        """The operation on the value in front and the one behind it."""
        return self.kernel.operation(left, right)

    def result(self, store: tirx.BufferStore, value: Any) -> tirx.BufferStore:
        """A result of the scan, with ``value`` for what is carried."""

        def load(node: Any) -> Any:
            return value if node.source.same_as(self.kernel.carried) else node

        return tirx.BufferStore(
            store.buffer, substituted(store.value, {}, load), list(store.indices)
        )

    def results(self, stores: Sequence[tirx.BufferStore], row: Any, vector: Any) -> list[Any]:
        """All of ``stores`` at a vector, from the array ``values``."""
        values = self.held(self.values)

        def assigned(store: tirx.BufferStore) -> AtPosition:
            return lambda _, lane: self.result(store, values.at(lane))

        return [self.neighbours(assigned(store), row, vector) for store in stores]

"""Where the threads of a row kernel stand, and where its values are: in registers or memory."""

from typing import Any

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.cuda.rows.row_decision import RowLaunch, inner_buffers
from tvm_ext.tir_schedules.cuda.thread_plane import ThreadPlane
from tvm_ext.tir_schedules.flat_views import FlatViews, with_flat_memory
from tvm_ext.tir_schedules.rows.row_kernel import (
    RowBlock,
    RowKernel,
    Store,
    buffer_key,
    substituted,
)
from tvm_ext.tir_schedules.rows.row_strides import sized, unfused


class RowPlaces(ThreadPlane):
    """The threads of a row kernel under a launch, and the places of its buffers."""

    def __init__(self, kernel: RowKernel, launch: RowLaunch, views: FlatViews) -> None:
        across = launch.across
        extents = (launch.parts, launch.rows) if across else (launch.rows, launch.parts)
        super().__init__(extents, kernel.index_dtype)
        self.kernel, self.launch, self.views = kernel, launch, views
        self.block = self.number(0)
        self.held: dict[int, tvm.ir.Var] = {}
        self.sizes = {buffer_key(buffer): size for buffer, size in inner_buffers(kernel)}

    @property
    def part(self) -> Any:
        return self.y if self.launch.across else self.x

    def row(self) -> tuple[Any, Any]:
        """The thread's row, behind the end the last one, and whether it is inside."""
        position = self.x if self.launch.across else self.y
        rows, count = self.launch.rows, self.kernel.count
        row = self.block * self.number(rows) + position
        if rows == 1 or (isinstance(count, int) and count % rows == 0):
            return row, None
        end = sized(count, self.dtype)
        return tirx.Min(row, end - self.number(1)), row < end

    def is_inner(self, block: RowBlock) -> bool:
        return all(buffer_key(store.buffer) in self.kernel.inner for store in block.stores)

    def flat(self, store: Store, block: RowBlock, row: Any, column: Any, held: Any) -> Any:
        """The store at a row and a column, to and from flat buffers and registers.

        ``held`` is the position of the column among those of the thread.
        """
        values = {
            **unfused(row, self.kernel.rows, self.dtype),
            **unfused(column, block.columns, self.dtype),
        }
        outside = tirx.BufferStore(store.buffer, store.value, list(store.indices))
        moved = substituted(outside, {}, lambda load: self._placed(load, held))
        if buffer_key(store.buffer) in self.kernel.inner:
            buffer, at = self._place(store.buffer, held)
            moved = tirx.BufferStore(buffer, moved.value, at)
        return substituted(with_flat_memory(moved, self.views), values)

    def _placed(self, load: Any, held: Any) -> Any:
        if buffer_key(load.source) not in self.kernel.inner:
            return load
        buffer, at = self._place(load.source, held)
        return tirx.BufferLoad(buffer, at)

    def _place(self, buffer: Any, held: Any) -> tuple[Any, list[Any]]:
        """The registers of a buffer that only the kernel sees, and where an element is in them."""
        key = buffer_key(buffer)
        size = self.sizes[key]
        if key not in self.held:
            steps = 1 if size == 1 else self.launch.steps(size) * self.launch.vector
            shape = [*self.extents, steps]
            self.held[key] = self.arrays.allocated(buffer.name, shape, str(buffer.dtype), "local")
        index = self.number(0) if size == 1 or held is None else held
        return self.held[key], [self.y, self.x, index]

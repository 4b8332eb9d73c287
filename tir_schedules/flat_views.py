"""Buffers as arrays of one dimension, so that an index is an address."""

import math
from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.tirx.buffer import buffer_data

from tvm_ext.tir_schedules.block_access import static_extent


def nodes(root: Any, *kinds: type) -> list[Any]:
    """All nodes of some kinds below an expression, a shared one as often as it is used."""
    found: list[Any] = []
    tvm_ffi.structural_walk(root, (kinds, found.append), order="pre")
    return found


class FlatViews:
    """The flat views of a kernel's buffers.

    Loops over several dimensions can then be one loop, without a division to tell them apart.

    Parameters
    ----------
    open_sizes : bool
        Whether buffers of sizes that are known in the run only have views as well.
    """

    def __init__(self, open_sizes: bool = False) -> None:
        self.open_sizes = open_sizes
        self._pairs: list[tuple[Any, Any]] = []

    def of(self, buffer: Any) -> Any:
        """The flat view of ``buffer``, the same one at every call."""
        for original, flat in self._pairs:
            if original.same_as(buffer):
                return flat
        flat = tirx.decl_buffer((elements(buffer),), str(buffer.dtype), buffer.name)
        self._pairs.append((buffer, flat))
        return flat

    def may_share_memory(self, store: tirx.BufferStore, func: tirx.PrimFunc) -> bool:
        """Whether TVM may put the result of an assignment in the place of what it reads.

        It does so with arrays that live inside of a kernel. An element must then not be computed
        twice: the second time it would be computed from the result.
        """
        inside = self.allocated(func)
        loads = nodes(store.value, tvm.ir.TensorLoad)
        return among(store.buffer, inside) and any(among(load.source, inside) for load in loads)

    def declarations(self, func: tirx.PrimFunc) -> list[tirx.Stmt]:
        """Statements that make the views of parameters known; the others are to be allocated."""
        return [
            tirx.DeclBuffer(flat, data=buffer_data(original))
            for original, flat in self._pairs
            if among(original, func.params)
        ]

    def allocated(self, func: tirx.PrimFunc) -> list[Any]:
        """The views that are not of parameters."""
        return [flat for original, flat in self._pairs if not among(original, func.params)]


def among(buffer: Any, buffers: Sequence[Any]) -> bool:
    """Whether ``buffer`` is one of ``buffers``."""
    return any(buffer.same_as(other) for other in buffers)


def flattened(store: tirx.BufferStore, views: FlatViews) -> tirx.BufferStore | None:
    """The same assignment to and from flat views; None when a buffer's layout is not plain."""
    buffers = [store.buffer, *(load.source for load in nodes(store, tvm.ir.TensorLoad))]
    if not all(is_compact(buffer, views.open_sizes) for buffer in buffers):
        return None

    def flat_load(load: tvm.ir.TensorLoad) -> Any:
        return tirx.BufferLoad(views.of(load.source), [_address(load.source, load.indices)])

    address = _address(store.buffer, store.indices)
    value, address = (
        tvm_ffi.structural_map(expr, (tvm.ir.TensorLoad, flat_load))
        for expr in (store.value, address)
    )
    return tirx.BufferStore(views.of(store.buffer), value, [address])


def with_flat_memory(store: tirx.BufferStore, views: FlatViews) -> tirx.BufferStore:
    """The same assignment with flat views of all buffers but those in registers.

    Raises
    ------
    ValueError
        A buffer's layout is not plain.
    """

    def in_memory(buffer: Any, indices: Sequence[Any]) -> tuple[Any, list[Any]]:
        zero = tirx.const(0, str(buffer.dtype))
        found = flattened(tirx.BufferStore(buffer, zero, list(indices)), views)
        if found is None:
            raise ValueError(f"buffer {buffer.name} is not laid out row by row")
        return found.buffer, list(found.indices)

    def flat(load: tvm.ir.TensorLoad) -> Any:
        if str(load.source.scope()) != "global":
            return load
        return tirx.BufferLoad(*in_memory(load.source, load.indices))

    value = tvm_ffi.structural_map(store.value, (tvm.ir.TensorLoad, flat))
    if str(store.buffer.scope()) != "global":
        return tirx.BufferStore(store.buffer, value, store.indices)
    buffer, indices = in_memory(store.buffer, store.indices)
    return tirx.BufferStore(buffer, value, indices)


def elements(buffer: Any) -> Any:
    """How many elements a buffer has: an int, or an expression of what is known in the run only."""
    known = [static_extent(extent) for extent in buffer.shape]
    rest = [extent for extent, n in zip(buffer.shape, known, strict=True) if n is None]
    count = math.prod(n for n in known if n is not None)
    return math.prod([extent.astype("int64") for extent in rest], start=count) if rest else count


def is_compact(buffer: Any, open_sizes: bool = False) -> bool:
    """Whether a buffer has known sizes, or any, and lies in memory row by row, without gaps."""
    known = open_sizes or all(static_extent(size) is not None for size in buffer.shape)
    return known and not buffer.strides and static_extent(buffer.elem_offset) in (None, 0)


def _address(buffer: Any, indices: Sequence[Any]) -> Any:
    """Position of an element in the buffer's memory, counted in elements."""
    dtypes = {str(index.ty) for index in indices}
    dtype = dtypes.pop() if len(dtypes) == 1 else "int64"
    flat: Any = tirx.const(0, dtype)
    for size, index in zip(buffer.shape, indices, strict=True):
        known = static_extent(size)
        count = size.astype(dtype) if known is None else tirx.const(known, dtype)
        flat = flat * count + index.astype(dtype)
    return flat

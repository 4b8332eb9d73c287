"""Passes over a row: which blocks share one, what they accumulate in, where the row waits."""

from typing import Any

import tvm
from tvm_ffi import structural_equal

from tvm_ext.tir_schedules.rows.row_kernel import (
    RowBlock,
    RowKernel,
    Store,
    buffer_key,
    loads_of,
    substituted,
)

Pass = tuple[RowBlock | None, RowBlock]


def passes_of(kernel: RowKernel) -> list[Pass]:
    """The blocks, each with the one before it when both can share a pass over the row.

    That is so when a reduction reads exactly the element that was just computed: the exponentials
    of a softmax and their sum.
    """
    passes: list[Pass] = []
    for block in kernel.blocks:
        before = _shared(passes[-1][1], block) if passes and passes[-1][0] is None else None
        if before is not None:
            passes.pop()
        passes.append((before, block))
    return passes


def _shared(before: RowBlock, block: RowBlock) -> RowBlock | None:
    """``before`` in the columns of ``block``; None when they cannot share a pass."""
    extents = [axis.extent for axis in block.columns]
    others = [axis.extent for axis in before.columns]
    if before.starts or not block.starts or not structural_equal(others, extents):
        return None
    if not extents or len(before.stores) != 1:
        return None
    pairs = zip(before.columns, block.columns, strict=True)
    values: dict[int, tvm.ir.Expr] = {buffer_key(old.var): new.var for old, new in pairs}
    (store,) = before.stores
    indices = tuple(substituted(index, values) for index in store.indices)
    key = buffer_key(store.buffer)
    loads = [load for s in block.stores for load in loads_of(s.value)]
    reads = [list(load.indices) for load in loads if buffer_key(load.source) == key]
    if not reads or not all(structural_equal(read, list(indices)) for read in reads):
        return None
    moved = Store(store.buffer, indices, substituted(store.value, values))
    return RowBlock(block.columns, (moved,), ())


def partial_size(length: Any, lanes: int, registers: int) -> tuple[int, int]:
    """Lanes of a vector and of all partial results: powers of two, no more than the row has."""
    if not isinstance(length, int):
        return lanes, registers * lanes
    lanes = min(lanes, 1 << (length - 1).bit_length())
    while registers > 1 and registers * lanes > length:
        registers //= 2
    return lanes, registers * lanes


def row_in_output(kernel: RowKernel) -> tuple[tvm.ir.Var, tvm.ir.Var] | None:
    """A row that the last block only reads where it writes, and the output, where it can wait."""
    last = kernel.blocks[-1]
    store = last.stores[0]
    out = buffer_key(store.buffer)
    if last.starts or out in kernel.inner or not last.columns:
        return None
    writers = [s for block in kernel.blocks for s in block.stores]
    if sum(buffer_key(s.buffer) == out for s in writers) > 1:
        return None
    if any(buffer_key(load.source) == out for load in kernel.loads()):
        return None
    for load in loads_of(store.value):
        if _fits_output(kernel, load, store):
            return load.source, store.buffer
    return None


def _fits_output(kernel: RowKernel, load: tvm.ir.TensorLoad, store: Store) -> bool:
    buffer = load.source
    key = buffer_key(buffer)
    reads = [n for n in loads_of(store.value) if buffer_key(n.source) == key]
    return (
        key in kernel.inner
        and str(buffer.dtype) == str(store.buffer.dtype)
        and structural_equal(list(buffer.shape), list(store.buffer.shape))
        and all(structural_equal(list(n.indices), list(store.indices)) for n in reads)
    )

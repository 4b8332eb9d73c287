"""Keeps in registers what several passes over a row read from memory."""

from dataclasses import replace
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_equal

from tvm_ext.tir_schedules.cuda.vector_group import guarded_loads
from tvm_ext.tir_schedules.rows.row_kernel import (
    Axis,
    RowBlock,
    RowKernel,
    Store,
    buffer_key,
    product,
    substituted,
)


def staged(kernel: RowKernel) -> RowKernel:
    """The kernel with every input row that more than one block reads loaded once, at the start.

    Such a row waits in a buffer of the kernel. Loads under a condition stay where they are.
    """
    extents = next((_extents(b) for b in kernel.blocks if b.length == kernel.length), ())
    columns = tuple(
        Axis(tirx.Var(f"staged{i}", kernel.index_dtype), n) for i, n in enumerate(extents)
    )
    found: list[tuple[Any, list[int]]] = []
    for number, block in enumerate(kernel.blocks):
        if _extents(block) == extents and extents:
            for load in _row_loads(kernel, block, columns):
                _note(found, load, number)
    shared = [load for load, users in found if len(set(users)) > 1]
    if not shared:
        return kernel
    inner = dict(kernel.inner)
    held = []
    copies = []
    for load in shared:
        size = tirx.const(product(extents), kernel.index_dtype)
        buffer = tirx.decl_buffer([size], str(load.source.dtype), f"{load.source.name}_row")
        inner[buffer_key(buffer)] = (0,)
        index = _fused(columns, kernel.index_dtype)
        held.append((load, buffer))
        copies.append(_on_own_axes(RowBlock(columns, (Store(buffer, (index,), load),), ())))
    blocks = [_with_rows(block, columns, held, kernel.index_dtype) for block in kernel.blocks]
    return replace(kernel, blocks=(*copies, *blocks), inner=inner)


def _extents(block: RowBlock) -> tuple[int, ...]:
    return tuple(axis.extent for axis in block.columns)


def _renaming(block: RowBlock, columns: tuple[Axis, ...]) -> dict[int, Any]:
    pairs = zip(block.columns, columns, strict=True)
    return {buffer_key(old.var): new.var for old, new in pairs}


def _row_loads(kernel: RowKernel, block: RowBlock, columns: tuple[Axis, ...]) -> list[Any]:
    """What a block always reads of the kernel's inputs for each of its columns."""
    names = _renaming(block, columns)
    written = {buffer_key(store.buffer) for b in kernel.blocks for store in b.stores}
    last = columns[-1].var
    loads = []
    for store in block.stores:
        for load, condition in guarded_loads(substituted(store.value, names)):
            used = [v for i in load.indices for v in tirx.analysis.undefined_vars(i)]
            inside = buffer_key(load.source) in written
            rows = not kernel.rows or any(v.same_as(a.var) for v in used for a in kernel.rows)
            if condition is None and not inside and rows and any(v.same_as(last) for v in used):
                loads.append(load)
    return loads


def _note(found: list[tuple[Any, list[int]]], load: Any, user: int) -> None:
    for other, users in found:
        if _same(other, load):
            users.append(user)
            return
    found.append((load, [user]))


def _same(load: Any, other: Any) -> bool:
    return load.source.same_as(other.source) and structural_equal(
        list(load.indices), list(other.indices)
    )


def _fused(columns: tuple[Axis, ...], dtype: str) -> Any:
    index: Any = tirx.const(0, dtype)
    for axis in columns:
        index = index * tirx.const(axis.extent, dtype) + axis.var
    return index


def _on_own_axes(block: RowBlock) -> RowBlock:
    columns = tuple(Axis(tirx.Var(a.var.name, str(a.var.ty)), a.extent) for a in block.columns)
    names = _renaming(block, columns)
    stores = tuple(
        Store(
            s.buffer, tuple(substituted(i, names) for i in s.indices), substituted(s.value, names)
        )
        for s in block.stores
    )
    return RowBlock(columns, stores, block.starts)


def _with_rows(
    block: RowBlock, columns: tuple[Axis, ...], held: list[tuple[Any, Any]], dtype: str
) -> RowBlock:
    """The block with loads from the rows that wait, in its own columns."""
    if _extents(block) != tuple(axis.extent for axis in columns):
        return block
    names = _renaming(block, columns)
    back = {buffer_key(new.var): old.var for old, new in zip(block.columns, columns, strict=True)}
    index = _fused(block.columns, dtype)

    def load(node: tvm.ir.TensorLoad) -> Any:
        buffer = next((b for other, b in held if _same(other, node)), None)
        return node if buffer is None else tirx.BufferLoad(buffer, [index])

    stores = tuple(
        replace(s, value=substituted(substituted(s.value, names, load), back)) for s in block.stores
    )
    return replace(block, stores=stores)

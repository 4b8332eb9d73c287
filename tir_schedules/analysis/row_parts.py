"""Few long rows cut into parts: kernels that each end in partial results, or use those before.

Before::  sum[i] = sum over k of x[i, k]
After::   part[i, p] = sum over c of x[i, p * chunk + c]        in any order of i and p
          sum[i] = sum over p of part[i, p]                     where it is used

What follows a reduction starts with the second line again in all of its blocks: they read few
numbers, always in the same order, so that results do not change from run to run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis, nodes
from tvm_ext.tir_schedules.analysis.row_kernel import (
    Limit,
    RowBlock,
    RowKernel,
    Store,
    accumulated,
    buffer_key,
    combine_of,
    substituted,
    unfused,
)
from tvm_ext.tir_schedules.analysis.row_reader import simplifier


@dataclass(frozen=True)
class _RowParts:
    """How rows of a kernel are cut; ``unit`` and ``parts_first`` as ``split_rows`` takes them."""

    kernel: RowKernel
    splits: int
    unit: int
    parts_first: bool
    part: LoopAxis

    def number(self, value: int) -> tirx.Expr:
        return tirx.const(value, self.kernel.index_dtype)

    @property
    def rows(self) -> tuple[LoopAxis, ...]:
        """The loops over parts of rows: neighbouring rows stay neighbours."""
        return (self.part, *self.kernel.rows)

    def place(self) -> tirx.Expr:
        """Of a part's result among those of all rows."""
        row: Any = self.number(0)
        for axis in self.kernel.rows:
            row = row * self.number(axis.extent) + axis.var
        if self.parts_first:
            return self.part.var * self.number(self.kernel.count) + row
        return row * self.number(self.splits) + self.part.var

    def chunk(self, length: int) -> int:
        """Elements of a part."""
        chunk = -(-length // self.splits)
        return -(-chunk // self.unit) * self.unit

    def block(self, block: RowBlock) -> RowBlock:
        """A block for the elements of one part."""
        length, chunk = block.length, self.chunk(block.length)
        column = LoopAxis(tirx.Var("column", self.kernel.index_dtype), chunk)
        position = self.part.var * self.number(chunk) + column.var
        values = unfused(position, block.columns, self.kernel.index_dtype)
        simplify = simplifier([*self.rows, column])
        stores = tuple(
            Store(
                store.buffer,
                tuple(simplify(substituted(index, values)) for index in store.indices),
                simplify(substituted(store.value, values)),
            )
            for store in block.stores
        )
        limit = None if chunk * self.splits == length else Limit(position, length)
        return RowBlock((column,), stores, block.starts, limit)


def split_rows(
    kernel: RowKernel, splits: int, unit: int = 1, parts_first: bool = False
) -> list[RowKernel]:
    """The kernels that ``kernel`` becomes with its rows in ``splits`` parts.

    Parts have a whole number of times ``unit`` elements; where these are more than a row, the last
    blocks have a limit. Partial results of a row are neighbours, or with ``parts_first`` those of
    all rows.

    Raises
    ------
    NotApplicable
        The kernel cannot be cut: whole rows wait in it, or partial results cannot be combined.
    """
    _refuse(kernel)
    axis = LoopAxis(tirx.Var("part", kernel.index_dtype), splits)
    parts = _RowParts(kernel, splits, unit, parts_first, axis)
    kernels: list[RowKernel] = []
    known: list[RowBlock] = []
    ends: list[RowBlock] = []
    for block in kernel.blocks:
        if not block.columns:
            (known if _is_inner(kernel, block) else ends).append(block)
        elif block.starts:
            partial, total = _in_two_steps(parts, block)
            kernels.append(_kernel_of_parts(parts, known, [partial]))
            (known if _is_inner(kernel, block) else ends).append(total)
        else:
            kernels.append(_kernel_of_parts(parts, known, [parts.block(block)]))
    if ends:
        kernels.append(replace(kernel, blocks=(*_needed(known, ends), *ends)))
    return kernels


def _refuse(kernel: RowKernel) -> None:
    written = {buffer_key(s.buffer) for b in kernel.blocks for s in b.stores}
    outside = written - set(kernel.inner)
    if any(buffer_key(load.source) in outside for b in kernel.blocks for load in _other_loads(b)):
        raise NotApplicable("what the kernel returns is read by the kernel as well")
    for block in kernel.blocks:
        if block.columns and not block.starts and _is_inner(kernel, block):
            raise NotApplicable("a whole row waits between two passes")
        if len({_is_inner(kernel, replace(block, stores=(s,))) for s in block.stores}) > 1:
            raise NotApplicable("some results of a block leave the kernel, some do not")


def _other_loads(block: RowBlock) -> list[tirx.Expr]:
    """All loads of a block but those of what it accumulates."""
    own = {buffer_key(store.buffer) for store in block.stores} if block.starts else set()
    loads = [load for store in block.stores for load in nodes(store.value, tvm.ir.TensorLoad)]
    return [load for load in loads if buffer_key(load.source) not in own]


def _is_inner(kernel: RowKernel, block: RowBlock) -> bool:
    return all(buffer_key(store.buffer) in kernel.inner for store in block.stores)


def _in_two_steps(parts: _RowParts, block: RowBlock) -> tuple[RowBlock, RowBlock]:
    """The reduction of one part, and that of the parts' results."""
    combine = combine_of(block)
    if combine is None:
        raise NotApplicable("partial results of a reduction cannot be combined")
    size = parts.number(parts.kernel.count * parts.splits)
    buffers = [store.buffer for store in block.stores]
    kept = [tirx.decl_buffer([size], str(b.dtype), f"{b.name}_of_parts") for b in buffers]
    place = parts.place()
    held = [tirx.BufferLoad(buffer, [place]) for buffer in kept]
    of_part = parts.block(block)
    partial = tuple(
        Store(buffer, (place,), accumulated(store.value, buffers, held))
        for buffer, store in zip(kept, of_part.stores, strict=True)
    )
    old = [tirx.BufferLoad(s.buffer, list(s.indices)) for s in block.stores]
    total = tuple(
        replace(store, value=value)
        for store, value in zip(block.stores, combine(old, held), strict=True)
    )
    # Every total has a loop of its own over the parts.
    column = LoopAxis(tirx.Var("part_of_row", parts.kernel.index_dtype), parts.splits)
    own = {buffer_key(parts.part.var): column.var}
    total = tuple(replace(s, value=substituted(s.value, own)) for s in total)
    return replace(of_part, stores=partial), RowBlock((column,), total, block.starts)


def _kernel_of_parts(
    parts: _RowParts, known: Sequence[RowBlock], blocks: Sequence[RowBlock]
) -> RowKernel:
    return replace(parts.kernel, rows=parts.rows, blocks=(*_needed(known, blocks), *blocks))


def _needed(known: Sequence[RowBlock], users: Sequence[RowBlock]) -> list[RowBlock]:
    """Those of the blocks for values of whole rows that ``users`` need, in their order."""
    read = {buffer_key(load.source) for block in users for load in _other_loads(block)}
    found: list[RowBlock] = []
    for block in reversed(known):
        if read & {buffer_key(store.buffer) for store in block.stores}:
            found.insert(0, block)
            read |= {buffer_key(load.source) for load in _other_loads(block)}
    return found

"""Neighbouring loops of a row kernel as one, where every address moves as if they were one.

No division by a size of the run is then needed to tell them apart.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import sym, tirx
from tvm.sym import detect_linear_equation
from tvm_ffi import WalkResult, structural_walk

from tvm_ext.tir_schedules.rows.row_kernel import (
    Axis,
    RowBlock,
    RowKernel,
    Store,
    accesses,
    buffer_key,
    has_waiting_rows,
    product,
    substituted,
)
from tvm_ext.tir_schedules.rows.row_strides import address_of


def with_joined_loops(kernel: RowKernel) -> RowKernel:
    """The kernel with as few loops over rows, and along them, as its addresses allow.

    Indices of its buffers are then right as addresses only: ``x[a, b]`` becomes ``x[0, ab]``.
    Leaves alone: loops along rows that wait inside of the kernel.
    """
    rows, moved = _joined(kernel, kernel.rows, kernel.blocks)
    kernel = replace(kernel, rows=rows, blocks=moved)
    if has_waiting_rows(kernel):
        return kernel
    blocks = []
    for block in kernel.blocks:
        columns, (alone,) = _joined(kernel, block.columns, (block,))
        blocks.append(replace(alone, columns=columns))
    return replace(kernel, blocks=tuple(blocks))


def _joined(
    kernel: RowKernel, axes: tuple[Axis, ...], blocks: tuple[RowBlock, ...]
) -> tuple[tuple[Axis, ...], tuple[RowBlock, ...]]:
    groups: list[list[Axis]] = []
    for axis in axes:
        if groups and all(_is_dense(kernel, b, groups[-1][-1], axis) for b in blocks):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    values: dict[int, Any] = {}
    found = []
    for group in groups:
        last = group[-1].var
        joined = Axis(tirx.Var(last.name, str(last.ty)), product(axis.extent for axis in group))
        values |= {buffer_key(axis.var): tirx.const(0, str(last.ty)) for axis in group}
        values[buffer_key(last)] = joined.var
        found.append(joined)
    return tuple(found), tuple(_moved(block, values) for block in blocks)


def _moved(block: RowBlock, values: dict[int, Any]) -> RowBlock:
    stores = tuple(
        Store(
            store.buffer,
            tuple(substituted(index, values) for index in store.indices),
            substituted(store.value, values),
        )
        for store in block.stores
    )
    return replace(block, stores=stores)


def _is_dense(kernel: RowKernel, block: RowBlock, outer: Axis, inner: Axis) -> bool:
    """Whether a step of ``outer`` moves every address as far as all steps of ``inner``."""
    if any(_is_free(store.value, (outer, inner)) for store in block.stores):
        return False
    analyzer = sym.Analyzer()
    for buffer, indices in accesses(block.stores):
        if buffer_key(buffer) in kernel.inner:
            continue
        address = address_of(kernel, buffer, indices)
        linear = detect_linear_equation(analyzer.simplify(address), [outer.var, inner.var])
        if len(linear) != 3 or not analyzer.can_prove_equal(linear[0], linear[1] * inner.extent):
            return False
    return True


def _is_free(value: Any, axes: Sequence[Axis]) -> bool:
    """Whether a value uses one of some loops other than in an address."""
    keys = {buffer_key(axis.var) for axis in axes}
    found: list[bool] = []

    def look(node: Any) -> Any:
        if isinstance(node, tvm.ir.TensorLoad):
            return WalkResult.SKIP
        if isinstance(node, tvm.ir.Var) and buffer_key(node) in keys:
            found.append(True)
        return None

    structural_walk(value, look, order="pre")
    return bool(found)

"""By how much the addresses of a row kernel move with its loops."""

from collections.abc import Iterable, Sequence
from typing import Any

import tvm
from tvm import sym, tirx
from tvm.sym import detect_linear_equation

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.rows.row_kernel import (
    Axis,
    RowBlock,
    RowKernel,
    accesses,
    buffer_key,
    product,
    substituted,
)


def unfused(value: Any, axes: Sequence[Axis], dtype: str) -> dict[int, Any]:
    """The values of ``axes`` at one iteration of the loop that they are fused into."""
    values: dict[int, Any] = {}
    step: Any = 1
    for position, axis in enumerate(reversed(axes)):
        # A constant or an expression; of no loops inside, nothing is to be divided by.
        whole = position == 0 or (isinstance(step, int) and step == 1)
        part = value if whole else tirx.FloorDiv(value, sized(step, dtype))
        if position < len(axes) - 1:
            part = tirx.FloorMod(part, sized(axis.extent, dtype))
        values[buffer_key(axis.var)] = part
        step = step * axis.extent
    return values


def sized(count: Any, dtype: str) -> Any:
    """A number of iterations as an expression of a type."""
    return tirx.const(count, dtype) if isinstance(count, int) else count.astype(dtype)


def index_in_row(kernel: RowKernel, buffer: tvm.ir.Var, indices: Sequence[Any]) -> Any:
    """The position in its row of an element of an inner buffer."""
    index: Any = tirx.const(0, kernel.index_dtype)
    for d in kernel.inner[buffer_key(buffer)]:
        size = tirx.const(static_extent(buffer.shape[d]) or 1, kernel.index_dtype)
        index = index * size + indices[d].astype(kernel.index_dtype)
    return index


def dense_suffix(kernel: RowKernel, axes: Sequence[Axis], blocks: Iterable[RowBlock]) -> int:
    """Position of the first of the innermost ``axes`` that all buffers walk as if one loop.

    Loads and stores along them are then of whole vectors, or of one element. When there are none,
    the position of the first of those that at least have some stride; else of the last one.
    """
    blocks = list(blocks)
    walked = [strides(kernel, axes[first:], blocks) for first in range(len(axes))]
    for first, found in enumerate(walked):
        if all(stride in (0, 1) for stride in found):
            return first
    for first, found in enumerate(walked):
        if None not in found:
            return first
    return max(len(axes) - 1, 0)


def is_dense(kernel: RowKernel, axes: Sequence[Axis], blocks: Iterable[RowBlock]) -> bool:
    """Whether the innermost of ``axes`` loads and stores whole vectors, or one element."""
    return bool(axes) and all(s in (0, 1) for s in strides(kernel, axes[-1:], blocks))


def strides(
    kernel: RowKernel, axes: Sequence[Axis], blocks: Iterable[RowBlock]
) -> list[int | None]:
    """By how much each address moves with the fused loop of ``axes``; None: not by a number."""
    dtype = kernel.index_dtype
    fused = Axis(tirx.Var("fused", dtype), product(axis.extent for axis in axes))
    values = unfused(fused.var, axes, dtype)
    found: list[int | None] = []
    for block in blocks:
        analyzer = sym.Analyzer()
        for axis in [*kernel.rows, *block.columns, fused]:
            analyzer.bind(axis.var, tvm.ir.Range(0, axis.extent))
        for buffer, indices in accesses(block.stores):
            address = substituted(address_of(kernel, buffer, indices), values)
            linear = detect_linear_equation(analyzer.simplify(address), [fused.var])
            found.append(static_extent(linear[0]) if len(linear) == 2 else None)
    return found


def address_of(kernel: RowKernel, buffer: tvm.ir.Var, indices: Sequence[Any]) -> Any:
    """The flat position of an element in the buffer, or in its row when it is an inner one."""
    if buffer_key(buffer) in kernel.inner:
        return index_in_row(kernel, buffer, indices)
    address: Any = tirx.const(0, kernel.index_dtype)
    for size, index in zip(buffer.shape, indices, strict=True):
        known = static_extent(size)
        length = sized(size if known is None else known or 1, kernel.index_dtype)
        address = address * length + index.astype(kernel.index_dtype)
    return address

"""Operands whose rows begin between multiples of 16 bytes, copied to rows that do not.

Bulk copies ask for such rows. A kernel that reads the operand once and writes it once is cheap
beside a large product.
"""

import math
from dataclasses import replace
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.block_access import element_bytes
from tvm_ext.tir_schedules.cuda.launch import Arrays, bound, guarded, repeated
from tvm_ext.tir_schedules.cuda.warp_groups.image_tensor import ImageTensor, Operand
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_map import ALIGNMENT, Dimension
from tvm_ext.tir_schedules.flat_views import FlatViews
from tvm_ext.tir_schedules.statements import sequence

_THREADS = 256
_MOST_BLOCKS = (1 << 31) - 1


def staged_bytes(tensor: Operand) -> int:
    """Bytes that copying the operand reads and writes; 0 where that is not needed."""
    if isinstance(tensor, ImageTensor) or tensor.is_aligned:
        return 0
    return 2 * math.prod(dim.extent for dim in tensor.dimensions) * element_bytes(tensor.buffer)


def staged(
    tensor: Operand, name: str, arrays: Arrays, views: FlatViews
) -> tuple[Operand, list[tirx.Stmt]]:
    """The operand with aligned rows, in an array of ``arrays``, and the kernel that writes it."""
    if isinstance(tensor, ImageTensor) or tensor.is_aligned:
        return tensor, []
    unit = ALIGNMENT // element_bytes(tensor.buffer)
    dims = tensor.dimensions
    length = -(-dims[0].extent // unit) * unit
    strides = [1]
    for dim in dims[:-1]:
        strides.append(strides[-1] * dim.extent if len(strides) > 1 else length)
    size = strides[-1] * dims[-1].extent if len(dims) > 1 else length
    copy = arrays.allocated(name, (size,), str(tensor.buffer.dtype), "global")
    compact = [Dimension(dim.extent, s) for dim, s in zip(dims, strides, strict=True)]
    code = _copy(views.of(tensor.buffer), dims, copy, length // unit, unit, arrays)
    first, second = compact[:2]
    selecting, steps = (first, second) if tensor.across else (second, first)
    outer = tuple(reversed(compact[2:]))
    split = len(tensor.batch)
    aligned = replace(
        tensor,
        buffer=copy,
        selecting=selecting,
        steps=steps,
        batch=outer[:split],
        taps=outer[split:],
    )
    return aligned, [code]


def _copy(
    source: Any, dims: list[Dimension], copy: Any, row: int, unit: int, arrays: Arrays
) -> tirx.Stmt:
    """Every thread writes ``unit`` neighbours; ``row`` of them are a row, with zeros at its end."""
    dtype = arrays.index_dtype
    count = row * math.prod(dim.extent for dim in dims[1:])
    blocks = min(-(-count // _THREADS), _MOST_BLOCKS)

    def vector(block: Any, thread: Any) -> tirx.Stmt:
        number = block * _THREADS + thread
        held = arrays.registers("held", unit, str(copy.dtype), [(thread, _THREADS)])
        first = number % row * unit
        address, rest = first, number // row
        for dim in dims[1:]:
            address, rest = address + rest % dim.extent * dim.stride, rest // dim.extent

        def element(lane: Any) -> tirx.Stmt:
            inside = first + lane < tirx.const(dims[0].extent, dtype)
            load = tirx.BufferLoad(source, [address + lane])
            zero = tirx.const(0, str(copy.dtype))
            return held.put(lane, tirx.if_then_else(inside, load, zero))

        def store(lane: Any) -> tirx.Stmt:
            return tirx.BufferStore(copy, held.at(lane), [number * unit + lane])

        body = sequence(
            [
                repeated(unit, dtype, element),
                repeated(unit, dtype, store, tirx.ForKind.VECTORIZED),
            ]
        )
        inside = number < tirx.const(count, dtype) if count % _THREADS else None
        return guarded(inside, body)

    return bound(
        "blockIdx.x",
        blocks,
        dtype,
        lambda b: bound("threadIdx.x", _THREADS, dtype, lambda t: vector(b, t)),
    )

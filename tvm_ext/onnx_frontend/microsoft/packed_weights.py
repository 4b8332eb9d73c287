"""What nodes of com.microsoft whose weights take a few bits each must look like.

ONNX's checker knows nothing of them: sizes, types and attributes that contradict each other would
be read as other numbers than the model's.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.microsoft.builder import Builder, stored

_Rewrite = Callable[[Builder], list[ir.Value | None]]
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)
_BYTES = (ir.DataType.UINT8,)
_BITS = (2, 4, 8)


def checked(check: Callable[[Builder], None], rewrite: _Rewrite) -> _Rewrite:
    """``rewrite`` of nodes that ``check`` lets pass."""

    def both(b: Builder) -> list[ir.Value | None]:
        check(b)
        return rewrite(b)

    return both


def check_matmul_n_bits(b: Builder) -> None:
    """Refuses a MatMulNBits whose weights, scales and zero points do not fit together.

    Raises
    ------
    FormError
        With what was found and what was expected.
    """
    rows, columns, block = (_positive(b, name) for name in ("N", "K", "block_size"))
    bits = _one_of(b, "bits", _BITS, 4)
    if block * bits % 8:
        raise FormError(f"its block_size is {block}, expected blocks of whole bytes of {bits} bits")
    blocks = -(-columns // block)
    _check_input(b, 1, "weights", _BYTES, rows * blocks * (block * bits // 8))
    _check_input(b, 2, "scales", _FLOATS, rows * blocks)
    zeros = b.optional(3)
    if zeros is not None:
        packed = zeros.dtype == ir.DataType.UINT8
        count = rows * (-(-blocks * bits // 8) if packed else blocks)
        _check_input(b, 3, "zero points", (*_BYTES, *_FLOATS), count)
    _check_groups(b.optional(4), columns, blocks)
    if b.optional(5) is not None:
        _check_input(b, 5, "bias", _FLOATS, rows)


def _check_groups(order: ir.Value | None, columns: int, blocks: int) -> None:
    arrays = stored(order)
    if arrays is None or arrays[0] is None:
        return
    groups = arrays[0]
    if groups.size < columns:
        raise FormError(f"its g_idx has {groups.size} numbers, expected {columns}")
    outside = groups[(groups < 0) | (groups >= blocks)]
    if outside.size:
        raise FormError(f"its g_idx has {outside.flat[0]}, expected numbers from 0 to {blocks - 1}")


def check_matmul_bnb4(b: Builder) -> None:
    """Refuses a MatMulBnb4 whose weights and scales do not fit together: a FormError."""
    rows, columns, block = (_positive(b, name) for name in ("N", "K", "block_size"))
    _one_of(b, "quant_type", (0, 1))
    _check_input(b, 1, "weights", _BYTES, -(-rows * columns // 2))
    _check_input(b, 2, "scales", _FLOATS, -(-rows * columns // block))


def check_gather_block_quantized(b: Builder) -> None:
    """Refuses a GatherBlockQuantized whose sizes do not fit together: a FormError."""
    data, scales, zeros = (_sizes(b.optional(index)) for index in (0, 2, 3))
    if data is None or scales is None:
        return
    packed = b.input(0).dtype == ir.DataType.UINT8
    bits = _one_of(b, "bits", _BITS, 4) if packed else 8
    rank = len(data)
    axes = [b.attribute("gather_axis", 0), b.attribute("quantize_axis", 1)]
    for name, axis in zip(("gather_axis", "quantize_axis"), axes, strict=True):
        if not -rank <= axis < rank:
            raise FormError(f"its {name} is {axis}, expected one of the {rank} axes of its data")
    block = b.attribute("block_size", 128)
    if block < 0:
        raise FormError(f"its block_size is {block}, expected 1 or more, or 0 for whole axes")
    _check_blocks(data, scales, axes[1] % rank, block, bits if packed else None)
    wanted = [*scales[:-1], -(-scales[-1] * bits // 8)] if packed else scales
    if zeros is not None and zeros != wanted:
        raise FormError(f"its zero points have the sizes {zeros}, expected {wanted}")


def _check_blocks(
    data: list[int], scales: list[int], axis: int, block: int, bits: int | None
) -> None:
    """``bits`` are those of numbers that are packed along the last axis."""
    wanted = [*data[:-1], data[-1] * 8 // bits] if bits else list(data)
    if block:
        wanted[axis] = -(-wanted[axis] // block)
    elif len(scales) == len(data):
        # A scale for all: 1 or the size along each axis.
        wanted = [1 if size == 1 or at == axis else wanted[at] for at, size in enumerate(scales)]
    if scales != wanted:
        raise FormError(f"its scales have the sizes {scales}, expected {wanted}")


def _positive(b: Builder, name: str) -> int:
    number = b.required(name)
    if not isinstance(number, int) or number < 1:
        raise FormError(f"its {name} is {number}, expected 1 or more")
    return number


def _one_of(b: Builder, name: str, known: tuple[int, ...], default: int | None = None) -> Any:
    number = b.required(name) if default is None else b.attribute(name, default)
    if number not in known:
        raise FormError(f"its {name} is {number}, expected one of {', '.join(map(str, known))}")
    return number


def _check_input(
    b: Builder, index: int, name: str, types: tuple[ir.DataType, ...], count: int
) -> None:
    """The type and the number of elements, where they are known."""
    value = b.optional(index)
    if value is None:
        raise FormError(f"it has no {name}, expected them as input {index}")
    if value.dtype is not None and value.dtype not in types:
        wanted = ", ".join(str(np.dtype(one.numpy())) for one in types)
        raise FormError(f"its {name} are {value.dtype.name.lower()}, expected one of {wanted}")
    sizes = _sizes(value)
    if sizes is not None and math.prod(sizes) != count:
        raise FormError(f"its {name} have the sizes {sizes}, expected {count} elements")


def _sizes(value: ir.Value | None) -> list[int] | None:
    """The sizes of a tensor; None where one of them is not known."""
    if value is None or value.shape is None:
        return None
    sizes = list(value.shape)
    return [int(size) for size in sizes] if all(isinstance(s, int) for s in sizes) else None

"""Types of TensorIR's values as types of MLIR, as values and in memory.

A truth value is an ``i1`` and lies in memory as a byte. Integers carry no sign in MLIR: the
operations on them do. The name of a vector's type is TVM's: ``float32x16``.
"""

from collections.abc import Sequence
from typing import Any

import tvm
from torch_mlir import ir

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.buffer_access import is_compact, static_extent


def dtype_of(expr: Any) -> str:
    """The type of an expression, or of a buffer's elements, as TVM names it.

    Raises NotApplicable for what is no number and no vector of numbers.
    """
    name = str(expr.ty) if isinstance(getattr(expr, "ty", None), tvm.ir.PrimType) else ""
    name = name or str(getattr(expr, "dtype", ""))
    if scalar_of(name) not in _WIDTHS:
        raise NotApplicable(f"values of type {name or 'handle'} have no type in MLIR here")
    return name


# Bits of a value, by TVM's name of its type.
_WIDTHS = {
    "bool": 1,
    **{f"{sign}int{bits}": bits for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "float16": 16,
    "bfloat16": 16,
    "float32": 32,
    "float64": 64,
}


def scalar_of(dtype: str) -> str:
    """The type of one element of a vector; the type itself if it is none."""
    return dtype.partition("x")[0]


def lanes_of(dtype: str) -> int:
    """How many elements a vector has; 1 for a scalar."""
    return int(dtype.partition("x")[2] or 1)


def with_lanes(scalar: str, dtype: str) -> str:
    """The type with elements of type ``scalar`` and as many of them as ``dtype`` has."""
    return f"{scalar}x{lanes_of(dtype)}" if lanes_of(dtype) > 1 else scalar


def is_bool(dtype: str) -> bool:
    """Whether the type is one of truth values."""
    return scalar_of(dtype) == "bool"


def bits_of(dtype: str) -> int:
    """Bits of an element of this type."""
    return _WIDTHS[scalar_of(dtype)]


def is_float(dtype: str) -> bool:
    """Whether the type is one of floating-point numbers."""
    return "float" in dtype


def is_signed(dtype: str) -> bool:
    """Whether the type is one of signed integers."""
    return dtype.startswith("int")


def value_type(dtype: str) -> ir.Type:
    """The type of a value in an expression."""
    if lanes_of(dtype) > 1:
        return ir.VectorType.get([lanes_of(dtype)], value_type(scalar_of(dtype)))
    if dtype == "bfloat16":
        return ir.BF16Type.get()
    if is_float(dtype):
        return {16: ir.F16Type, 32: ir.F32Type, 64: ir.F64Type}[_WIDTHS[dtype]].get()
    return ir.IntegerType.get_signless(_WIDTHS[dtype])


def stored_type(dtype: str) -> ir.Type:
    """The type of an element in memory."""
    return value_type(with_lanes("int8", dtype) if is_bool(dtype) else dtype)


def shape_of(buffer: Any) -> list[int]:
    """The sizes of a buffer as MLIR has them: what is symbolic has MLIR's mark for any size."""
    return [_size(extent) for extent in buffer.shape]


def _size(extent: Any) -> int:
    known = static_extent(extent)
    return ir.ShapedType.get_dynamic_size() if known is None else known


def memref_of(buffer: Any) -> ir.Type:
    """The memref type of a buffer; raises NotApplicable where its rows do not follow closely."""
    if not is_compact(buffer, True):
        raise NotApplicable(f"buffer {buffer.name} has strides of its own")
    return ir.MemRefType.get(shape_of(buffer), stored_type(dtype_of(buffer)))


def tensor_of(shape: Sequence[int], dtype: str) -> ir.Type:
    """The tensor type with these sizes."""
    return ir.RankedTensorType.get(list(shape), stored_type(dtype))

"""Cast and CastLike between all types of ONNX but strings.

TVM's converter follows a conversion of floating point to integers with a modulus, comparisons and
selections in 64-bit integers, so that numbers out of range wrap around. ONNX leaves the result for
those undefined; a kernel with a few such chains takes LLVM half a minute, and divides 64-bit
integers in the run. It makes 2 as a bool False, knows no ``saturate`` and no ``round_mode``, and
converts float8 wrongly (see ``narrow_floats``). Types below a byte are held in bytes: see
``onnx_frontend.narrow_types``.
"""

from typing import Any

import tvm
from tvm import relax

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxCast, OnnxOpConverter, onnx_type_name
from tvm_ext.onnx_frontend.converters.narrow_floats import (
    NARROW_FLOATS,
    SCALE_TYPE,
    from_float32,
    is_narrow_float,
    to_float32,
)
from tvm_ext.onnx_frontend.narrow_types import NARROW_ATTRIBUTE

# Narrow integers go through one that the processor converts to, and wrap around from there.
_THROUGH = {
    "int8": "int32",
    "int16": "int32",
    "uint8": "int32",
    "uint16": "int32",
    "uint32": "int64",
}


class Cast(OnnxCast):
    """TVM's converter, except for floats that become integers, for bools and for narrow types."""

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
        x, wanted = inputs[0], wanted_type(attr)
        if _is_narrow(wanted) or is_narrow_float(_dtype(x)):
            saturate = bool(attr.get("saturate", 1))
            return converted(bb, x, wanted, saturate, _text(attr.get("round_mode", "up")))
        if not isinstance(x, relax.Var) or not (_is_float(_dtype(x)) or wanted == "bool"):
            return super()._impl_v13(bb, inputs, attr, params)
        return converted(bb, x, wanted)


class CastLike(OnnxOpConverter):
    """Cast to the type of the second input."""

    @classmethod
    def _impl_v15(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
        wanted = "int64" if isinstance(inputs[1], relax.ShapeExpr) else _dtype(inputs[1])
        if not wanted:
            raise FormError("the type of its second input is not known")
        return Cast._impl_v13(bb, inputs, {**attr, "to": wanted}, params)


def wanted_type(attr: dict, key: str = "to") -> str:
    """The type that an attribute names, as NumPy spells it; narrow ones by their own names."""
    narrow = attr.get(NARROW_ATTRIBUTE)
    return _text(narrow) if narrow else str(onnx_type_name(attr[key]))


def converted(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    wanted: str,
    saturate: bool = True,
    rounding: str = "up",
) -> relax.Expr:
    """A tensor in the type ``wanted``, or in the one that holds it.

    Integers out of range lose their higher bits. Floats that are no numbers, or out of the range
    of an integer, become some integer.
    """
    if is_narrow_float(_dtype(x)):
        x = to_float32(bb, x)
    if wanted in NARROW_FLOATS or wanted == SCALE_TYPE:
        if _dtype(x) != "float32":
            x = bb.normalize(relax.op.astype(x, "float32"))
        return from_float32(bb, x, wanted, saturate, rounding)
    if wanted in NARROW_INTEGERS:
        if _is_float(_dtype(x)):
            x = bb.normalize(relax.op.astype(x, "int32"))
        return _wrapped(bb, x, *NARROW_INTEGERS[wanted])
    if wanted == "bool":
        return _as_bool(bb, x)
    if _is_float(_dtype(x)) and wanted in _THROUGH:
        x = bb.normalize(relax.op.astype(x, _THROUGH[wanted]))
    return bb.normalize(relax.op.astype(x, wanted))


def _as_bool(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """True for all but zero; NaN, which TVM takes for equal to every number, included."""
    if _dtype(x) == "bool":
        return x
    differs = bb.normalize(relax.op.not_equal(x, relax.const(0, _dtype(x))))
    if not _is_float(_dtype(x)):
        return differs
    return bb.normalize(relax.op.logical_or(differs, bb.normalize(relax.op.isnan(x))))


# Bits, and the type that holds them.
NARROW_INTEGERS = {
    "int4": (4, "int8"),
    "uint4": (4, "uint8"),
    "int2": (2, "int8"),
    "uint2": (2, "uint8"),
}


def _wrapped(bb: relax.BlockBuilder, x: relax.Expr, bits: int, holder: str) -> relax.Expr:
    """The lowest bits of integers, with the sign that the highest of them stands for."""
    x = bb.normalize(relax.op.astype(x, "int32"))
    x = bb.normalize(relax.op.bitwise_and(x, relax.const((1 << bits) - 1, "int32")))
    if holder == "int8":
        sign = relax.const(1 << (bits - 1), "int32")
        x = bb.normalize(relax.op.bitwise_xor(x, sign))
        x = bb.normalize(relax.op.subtract(x, sign))
    return bb.normalize(relax.op.astype(x, holder))


def _is_narrow(dtype: str) -> bool:
    return is_narrow_float(dtype) or dtype in NARROW_INTEGERS


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def _dtype(x: Any) -> str:
    is_tensor = isinstance(x, relax.Expr | tvm.ir.GenericConst)
    return str(x.ty.dtype) if is_tensor and isinstance(x.ty, relax.TensorType) else ""


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value

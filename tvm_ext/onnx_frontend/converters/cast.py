"""Cast and CastLike between all types of ONNX but strings.

TVM's converter follows a conversion of floating point to integers with a modulus, comparisons and
selections in 64-bit integers, so that numbers out of range wrap around. ONNX leaves the result for
those undefined; a kernel with a few such chains takes LLVM half a minute, and divides 64-bit
integers in the run. It makes 2 as a bool False, knows no ``saturate`` and no ``round_mode``, and
converts float8 wrongly (see ``NarrowFloat``). Types below a byte are held in bytes: see
``onnx_frontend.narrow_types``.
"""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.narrow_types import NARROW_ATTRIBUTE
from tvm_ext.onnx_frontend.tvm_compat import OnnxCast, OnnxOpConverter, onnx_type_name

# Floating point of eight bits and less, as integer arithmetic on its codes.
#
# TVM converts such types wrongly (-3 in float8_e4m3fnuz reads as -6, 0 in float8_e5m2 as 3e-5),
# and LLVM has no code at all for those below a byte. The latter are held in float8_e4m3fn, which
# has all of their numbers.


# float32: 23 bits of mantissa, exponents biased by 127.
_MANTISSA, _BIAS, _INFINITY = 23, 127, 0x7F800000
_HOLDER = "float8_e4m3fn"


@dataclass(frozen=True)
class NarrowFloat:
    """The codes of a type with a sign, as in the ONNX specification of Cast and in OCP MX 1.0.

    Attributes
    ----------
    mantissa, bias : int
        Bits of the mantissa; what is added to exponents.
    largest : int
        Code of the largest finite number.
    nan, beyond : int
        Codes for NaN and for what is too large to be finite, where there is no saturation.
    minus_zero : bool
        Whether zero and NaN have a sign.
    held : bool
        Whether TVM holds the type as it is; else values are float8_e4m3fn.
    """

    mantissa: int
    bias: int
    largest: int
    nan: int
    beyond: int
    minus_zero: bool = True
    held: bool = True


NARROW_FLOATS = {
    "float8_e4m3fn": NarrowFloat(3, 7, 0x7E, 0x7F, 0x7F),
    "float8_e4m3fnuz": NarrowFloat(3, 8, 0x7F, 0x80, 0x80, minus_zero=False),
    "float8_e5m2": NarrowFloat(2, 15, 0x7B, 0x7E, 0x7C),
    "float8_e5m2fnuz": NarrowFloat(2, 16, 0x7F, 0x80, 0x80, minus_zero=False),
    # No NaN and no infinity: what is too large saturates, NaN is zero as in ml_dtypes.
    "float4_e2m1fn": NarrowFloat(1, 1, 0x07, 0, 0x07, held=False),
    "float6_e2m3fn": NarrowFloat(3, 1, 0x1F, 0, 0x1F, held=False),
    "float6_e3m2fn": NarrowFloat(2, 3, 0x1F, 0, 0x1F, held=False),
}
SCALE_TYPE = "float8_e8m0fnu"


def is_narrow_float(dtype: str) -> bool:
    """Whether values of this type are codes that only these functions read."""
    return dtype in NARROW_FLOATS or dtype == SCALE_TYPE


def to_float32(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """The float32 numbers of a tensor of an 8-bit type, which are exact."""
    dtype = str(x.ty.dtype)
    codes = np.arange(256, dtype=np.uint8).view(np.dtype(getattr(ml_dtypes, dtype)))
    with np.errstate(invalid="ignore"):
        numbers = relax.const(codes.astype(np.float32))

    def read(codes: te.Tensor, numbers: te.Tensor) -> te.Tensor:
        def number(*at: tirx.Var) -> tvm.ir.Expr:
            return numbers[tirx.reinterpret("uint8", codes(*at)).astype("int32")]

        return te.compute(codes.shape, number, name=f"from_{dtype}")

    return bb.emit_te(read, x, numbers, primfunc_name_hint=f"from_{dtype}")


def from_float32(
    bb: relax.BlockBuilder, x: relax.Expr, dtype: str, saturate: bool = True, rounding: str = "up"
) -> relax.Expr:
    """float32 in ``dtype``, rounded to nearest even; ``rounding`` is for float8_e8m0fnu alone.

    Overflow and infinity become the largest number with ``saturate``, else infinity or NaN.
    """

    def code(value: tvm.ir.Expr) -> tvm.ir.Expr:
        if dtype == SCALE_TYPE:
            return _exponent_code(value, saturate, rounding).astype("uint8")
        return _code(value, NARROW_FLOATS[dtype], saturate).astype("uint8")

    def written(x: te.Tensor) -> te.Tensor:
        def number(*at: tirx.Var) -> tvm.ir.Expr:
            return tirx.reinterpret(dtype, code(x(*at)))

        return te.compute(x.shape, number, name=f"to_{dtype}")

    def written_in_holder(x: te.Tensor, codes: te.Tensor) -> te.Tensor:
        def number(*at: tirx.Var) -> tvm.ir.Expr:
            return tirx.reinterpret(_HOLDER, codes[code(x(*at)).astype("int32")])

        return te.compute(x.shape, number, name=f"to_{dtype}")

    name = f"to_{dtype}"
    if dtype == SCALE_TYPE or NARROW_FLOATS[dtype].held:
        return bb.emit_te(written, x, primfunc_name_hint=name)
    codes = relax.const(_codes_in_holder(dtype))
    return bb.emit_te(written_in_holder, x, codes, primfunc_name_hint=name)


def _codes_in_holder(dtype: str) -> np.ndarray:
    narrow = np.dtype(getattr(ml_dtypes, dtype))
    count = 16 if dtype.startswith("float4") else 64
    numbers = np.arange(count, dtype=np.uint8).view(narrow).astype(np.float32)
    return numbers.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


def _bits(value: int) -> tvm.ir.Expr:
    """A uint32: TVM turns int32 into int64 next to indices, whose bits are others."""
    return tirx.const(value, "uint32")


def _code(x: tvm.ir.Expr, form: NarrowFloat, saturate: bool) -> tvm.ir.Expr:
    """The code of a float32 as uint32: of normal numbers by rounding the mantissa in the bits."""
    all_bits = tirx.reinterpret("uint32", x)
    bits = all_bits & _bits(0x7FFFFFFF)
    dropped = _MANTISSA - form.mantissa
    number = tirx.min(bits, _bits(_INFINITY))
    odd = (number >> _bits(dropped)) & _bits(1)
    rounded = (number + _bits((1 << (dropped - 1)) - 1) + odd) >> _bits(dropped)
    # Below the smallest normal number, codes count steps of the smallest number there is.
    smallest = _bits((_BIAS + 1 - form.bias) << _MANTISSA)
    step = tirx.const(2.0 ** (form.bias - 1 + form.mantissa), "float32")
    steps = tirx.reinterpret("float32", tirx.min(bits, smallest)) * step
    counted = tirx.nearbyint(steps).astype("uint32")
    # A mask drops what the difference of the biases borrows; what is compared is never negative,
    # as TVM moves constants across comparisons as if nothing wrapped around.
    rebias = (_BIAS - form.bias) << form.mantissa
    normal = (rounded + _bits(-rebias & 0xFFFFFFFF)) & _bits(0xFF)
    code = tirx.Select(bits < smallest, counted, normal)
    is_beyond = rounded > _bits(form.largest + rebias)
    code = tirx.Select(is_beyond, _bits(form.largest if saturate else form.beyond), code)
    sign_bit = 1 << 7 if form.held else form.largest + 1
    sign = tirx.Select(all_bits > _bits(0x7FFFFFFF), _bits(sign_bit), _bits(0))
    is_nan = bits > _bits(_INFINITY)
    if form.minus_zero:
        return tirx.Select(is_nan, _bits(form.nan), code) | sign
    unsigned = counted.equal(_bits(0))
    signed = code | tirx.Select(unsigned, _bits(0), sign)
    if not saturate:
        is_nan = tirx.any(is_nan, is_beyond)
    return tirx.Select(is_nan, _bits(form.nan), signed)


def _exponent_code(x: tvm.ir.Expr, saturate: bool, rounding: str) -> tvm.ir.Expr:
    """The code of a float32 in float8_e8m0fnu, which has powers of two only.

    Halfway is rounded up ("nearest"), except between 0 and the smallest normal float32.
    """
    bits = tirx.reinterpret("uint32", x)
    exponent = (bits >> _bits(_MANTISSA)) & _bits(0xFF)
    fraction = bits & _bits(0x7FFFFF)
    if rounding == "up":
        up = fraction > _bits(0)
    elif rounding == "nearest":
        half = _bits(0x400000)
        up = tirx.any(fraction > half, tirx.all(fraction.equal(half), exponent > _bits(0)))
    elif rounding == "down":
        return exponent
    else:
        raise FormError(f"round_mode '{rounding}' is none of up, down and nearest")
    last = _bits(0xFE if saturate else 0xFF)
    return exponent + tirx.Select(tirx.all(up, exponent < last), _bits(1), _bits(0))


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
    if (_dtype(x), wanted) == ("bfloat16", "float32"):
        source = _cast_from(bb, x, wanted)
        if source is not None:
            return bb.emit_te(_in_steps_of_bfloat16, source, primfunc_name_hint="to_bfloat16")
    if _is_float(_dtype(x)) and wanted in _THROUGH:
        x = bb.normalize(relax.op.astype(x, _THROUGH[wanted]))
    return bb.normalize(relax.op.astype(x, wanted))


def _cast_from(bb: relax.BlockBuilder, x: relax.Expr, dtype: str) -> relax.Expr | None:
    """What ``x`` was cast from, if that was of type ``dtype``."""
    value = bb.lookup_binding(x) if isinstance(x, relax.Var) else None
    if not isinstance(value, relax.Call) or value.op != tvm.ir.Op.get("relax.astype"):
        return None
    return value.args[0] if _dtype(value.args[0]) == dtype else None


def _in_steps_of_bfloat16(x: te.Tensor) -> te.Tensor:
    """float32 rounded to the nearest bfloat16, of two as near the even one; NaN stays NaN.

    By bits: TVM computes bfloat16 in float32, and leaves out what a cast there and back rounds.
    """

    def number(*at: tirx.Var) -> tvm.ir.Expr:
        bits = tirx.reinterpret("uint32", x(*at))
        is_nan = (bits & _bits(0x7FFFFFFF)) > _bits(_INFINITY)
        odd = (bits >> _bits(16)) & _bits(1)
        rounded = (bits + _bits(0x7FFF) + odd) & _bits(0xFFFF0000)
        return tirx.reinterpret("float32", tirx.Select(is_nan, _bits(0x7FC00000), rounded))

    return te.compute(x.shape, number, name="to_bfloat16")


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

"""Quantisation: QuantizeLinear, DequantizeLinear, and convolutions and matmuls of integers.

Scales and zero points are per tensor, per axis or per block. The integer operators are
ConvInteger, QLinearConv, MatMulInteger and QLinearMatMul.

TVM's converters divide by multiplying with the reciprocal, know no blocks, no 4-bit types, no
``precision`` and no float8 that is right; one step that differs grows to a tenth of the output
in a deep network. Here the division, and rounding half to even, are those of the specification.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.errors import FormError, MisfitError
from tvm_ext.onnx_frontend.converters.arguments import sizes_of
from tvm_ext.onnx_frontend.converters.cast import (
    NARROW_FLOATS,
    NARROW_INTEGERS,
    SCALE_TYPE,
    converted,
    from_float32,
    is_narrow_float,
    to_float32,
    wanted_type,
)
from tvm_ext.onnx_frontend.converters.convolution_and_pooling import explicit_padding
from tvm_ext.onnx_frontend.converters.scales import (
    fitting_parameters,
    for_channels,
    for_columns,
    for_rows,
    one_number,
    spread,
)
from tvm_ext.onnx_frontend.narrow_types import NARROW_ATTRIBUTE
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter, onnx_constant, onnx_type_name

# Set for a DequantizeLinear of weights: it keeps their integers apart from the scale, for programs
# that multiply integers.
WEIGHTS_ATTRIBUTE = "tvm_ext_weights"


def numbers_of(value: Any) -> np.ndarray | None:
    """The numbers of a constant, float8 as float32; None for what is computed in the run."""
    if not isinstance(value, tvm.ir.GenericConst):
        return None
    array = value.value.numpy()
    return array if array.dtype.kind in "biuf" else array.astype(np.float32)


class QuantizeLinear(OnnxOpConverter):
    """``saturate(round(x / scale) + zero_point)``, rounded half to even."""

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        scale, zero_point = _scale_and_zero_point(inputs, params)
        _check_types(x, _NUMBERS, zero_point, _type_attribute(attr, "output_dtype", ""))
        x, scale, zero_point = fitting_parameters(bb, x, scale, zero_point, attr)
        wanted = _quantized_type(attr, zero_point)
        if is_narrow_float(str(scale.ty.dtype)):
            scale = _numbers_or_call(bb, scale)
        precision = _type_attribute(attr, "precision", str(scale.ty.dtype))
        if precision not in _NUMBERS:
            raise MisfitError(f"its precision is {precision}, expected a floating-point type")
        x, scale = _in_type(bb, x, precision), _in_type(bb, scale, precision)
        scale = spread(bb, scale, x, attr)
        if zero_point is not None:
            zero_point = spread(bb, zero_point, x, attr)
        if is_narrow_float(wanted):
            ratio = _in_type(bb, bb.normalize(relax.op.divide(x, scale)), "float32")
            return from_float32(bb, ratio, wanted, bool(attr.get("saturate", 1)))
        return quantized(bb, x, scale, zero_point, wanted)


class DequantizeLinear(OnnxOpConverter):
    """``(x - zero_point) * scale`` in float32, then in the type of the scale."""

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = onnx_constant(inputs[0], params)
        scale, zero_point = _scale_and_zero_point(inputs, params)
        _check_types(x, _STEPS, zero_point, str(x.ty.dtype))
        x, scale, zero_point = fitting_parameters(bb, x, scale, zero_point, attr)
        scale_type = str(scale.ty.dtype)
        usual = "float32" if scale_type == SCALE_TYPE else scale_type
        wanted = _type_attribute(attr, "output_dtype", usual)
        numbers = [numbers_of(value) for value in (x, scale, zero_point)]
        if attr.get(WEIGHTS_ATTRIBUTE) and attr.get("block_size", 0):
            blocks = _weights_in_blocks(bb, (x, scale, zero_point), attr, wanted)
            if blocks is not None:
                return blocks
        scale = spread(bb, _numbers_or_call(bb, scale), x, attr)
        if zero_point is not None:
            zero_point = spread(bb, zero_point, x, attr)
        if numbers[0] is not None and numbers_of(scale) is not None:
            known = _folded(x, scale, zero_point, wanted, bool(attr.get(WEIGHTS_ATTRIBUTE)))
            if known is not None:
                return known
        x = _centred(bb, x, zero_point)
        return _in_type(bb, bb.normalize(relax.op.multiply(x, scale)), wanted)


class DynamicQuantizeLinear(OnnxOpConverter):
    """uint8 with a scale that covers the smallest and the largest number, and zero.

    TVM's converter divides by zero where all numbers are zero; the scale is 1 there, as in ONNX
    Runtime. As there, a zero point that is NaN, of an endless range or one whose scale is zero, is
    255.
    """

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = onnx_constant(inputs[0], params)
        numbers = numbers_of(x)
        if numbers is not None:
            return _stored_steps(numbers)
        zero = relax.const(0.0, "float32")
        low = bb.normalize(relax.op.minimum(bb.normalize(relax.op.min(x)), zero))
        high = bb.normalize(relax.op.maximum(bb.normalize(relax.op.max(x)), zero))
        span = bb.normalize(relax.op.subtract(high, low))
        scale = bb.normalize(relax.op.divide(span, relax.const(255.0, "float32")))
        flat = bb.normalize(relax.op.equal(span, zero))
        scale = bb.emit(relax.op.where(flat, relax.const(1.0, "float32"), scale))
        offset = bb.normalize(relax.op.divide(bb.normalize(relax.op.negative(low)), scale))
        last = relax.const(255.0, "float32")
        # False for NaN.
        is_inside = bb.normalize(relax.op.less(offset, last))
        offset = bb.normalize(relax.op.where(is_inside, offset, last))
        offset = bb.normalize(relax.op.maximum(offset, zero))
        zero_point = bb.emit(_as_integer(bb, bb.normalize(relax.op.round(offset)), "uint8"))
        return relax.Tuple([quantized(bb, x, scale, zero_point, "uint8"), scale, zero_point])


def _stored_steps(x: np.ndarray) -> relax.Tuple:
    """What DynamicQuantizeLinear gives for stored numbers, such as weights in Constant nodes."""
    low = np.fmin.reduce(x, axis=None, initial=np.float32(0))
    high = np.fmax.reduce(x, axis=None, initial=np.float32(0))
    with np.errstate(all="ignore"):
        scale = (high - low) / np.float32(255) if high > low else np.float32(1)
        zero_point = np.rint(np.fmin(-low / scale, np.float32(255)))
        steps = np.clip(np.rint(x / scale) + zero_point, 0, 255)
    steps = np.where(np.isnan(steps), 0, steps)
    fields = (steps, "uint8"), (scale, "float32"), (zero_point, "uint8")
    return relax.Tuple([relax.const(np.asarray(a).astype(t), t) for a, t in fields])


def quantized(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    scale: relax.Expr,
    zero_point: relax.Expr | None,
    wanted: str,
) -> relax.Expr:
    """Numbers over a scale, of the same type and broadcast to them, as integers of a type.

    With a constant scale the numbers are clipped before they are divided, which gives the same:
    what is behind the last step rounds to the last step. It also keeps passes from folding the
    division into the weights of a convolution before it, which would move numbers by a step.
    """
    low, high, _ = integer_range(wanted)
    steps = numbers_of(scale)
    offset = np.zeros(()) if zero_point is None else numbers_of(zero_point)
    dtype = str(x.ty.dtype)
    is_wide = dtype in ("float32", "float64")
    if is_wide and steps is not None and offset is not None and (steps > 0).all():
        bounds = [_end_of_steps(end, offset, steps, dtype) for end in (low, high)]
        if np.isfinite(bounds).all():
            x = _clipped(bb, x, *bounds)
            ratio = _in_type(bb, bb.normalize(relax.op.divide(x, scale)), "float32")
            return _as_integer(bb, _shifted(bb, ratio, zero_point), wanted)
    ratio = _in_type(bb, bb.normalize(relax.op.divide(x, scale)), "float32")
    return saturated(bb, ratio, zero_point, wanted)


def saturated(
    bb: relax.BlockBuilder, ratio: relax.Expr, zero_point: relax.Expr | None, wanted: str
) -> relax.Expr:
    """float32 steps of a scale, rounded half to even, shifted and clipped to a type's range."""
    low, high, _ = integer_range(wanted)
    shifted = _shifted(bb, ratio, zero_point)
    return _as_integer(bb, bb.normalize(relax.op.clip(shifted, low, high)), wanted)


def integer_range(dtype: str) -> tuple[int, int, str]:
    """The smallest and the largest integer of a type, and the type that TVM holds it in."""
    if dtype in NARROW_INTEGERS:
        bits, holder = NARROW_INTEGERS[dtype]
        low = -(1 << (bits - 1)) if holder == "int8" else 0
        return low, low + (1 << bits) - 1, holder
    if dtype not in ("int8", "uint8", "int16", "uint16", "int32"):
        raise FormError(f"numbers cannot be quantised to {dtype}")
    info = np.iinfo(dtype)
    return int(info.min), int(info.max), dtype


def _shifted(
    bb: relax.BlockBuilder, ratio: relax.Expr, zero_point: relax.Expr | None
) -> relax.Expr:
    rounded = bb.normalize(relax.op.round(ratio))
    offset = numbers_of(zero_point)
    if zero_point is None or (offset is not None and not offset.any()):
        return rounded
    return bb.normalize(relax.op.add(rounded, _in_type(bb, zero_point, "float32")))


def _end_of_steps(end: int, offset: np.ndarray, steps: np.ndarray, dtype: str) -> np.ndarray:
    """The number that a type's first or last integer stands for."""
    with np.errstate(over="ignore"):
        return ((end - offset.astype(np.float64)) * steps).astype(dtype)


def _clipped(
    bb: relax.BlockBuilder, x: relax.Expr, low: np.ndarray, high: np.ndarray
) -> relax.Expr:
    dtype = str(x.ty.dtype)
    if low.size == 1:
        return bb.normalize(relax.op.clip(x, float(low.item()), float(high.item())))
    x = bb.normalize(relax.op.maximum(x, relax.const(low, dtype)))
    return bb.normalize(relax.op.minimum(x, relax.const(high, dtype)))


def _as_integer(bb: relax.BlockBuilder, x: relax.Expr, wanted: str) -> relax.Expr:
    """Whole numbers in range, or NaN; through int32, which processors convert whole vectors to.

    NaN, of masks of -inf, becomes int32's lowest number on x86, and then that of the type, as in
    ONNX Runtime; without a sign the type's lowest number is what is cut off.
    """
    low, _, holder = integer_range(wanted)
    x = bb.normalize(relax.op.astype(x, "int32"))
    if holder == "int32":
        return x
    if low:
        x = bb.normalize(relax.op.maximum(x, relax.const(low, "int32")))
    return bb.normalize(relax.op.astype(x, holder))


def _centred(bb: relax.BlockBuilder, x: relax.Expr, zero_point: relax.Expr | None) -> relax.Expr:
    """``x - zero_point`` as float32; exact for integers of 16 bits and less, and for float8."""
    offset = numbers_of(zero_point)
    if zero_point is not None and (offset is None or offset.any()):
        if str(x.ty.dtype) in ("int32", "int64"):
            x = bb.normalize(relax.op.subtract(x, zero_point))
        else:
            x, shift = _numbers_or_call(bb, x), _numbers_or_call(bb, zero_point)
            return bb.normalize(relax.op.subtract(x, shift))
    return _numbers_or_call(bb, x)


def _folded(
    x: relax.Expr, scale: relax.Expr, zero_point: relax.Expr | None, wanted: str, apart: bool
) -> relax.Expr | None:
    """Stored weights as the numbers that they stand for; None where something is computed.

    Whole numbers times their scale for float32 that is kept ``apart``.
    """
    offset = np.zeros((), np.int64) if zero_point is None else numbers_of(zero_point)
    values, factor = numbers_of(x), numbers_of(scale)
    if values is None or factor is None or offset is None:
        return None
    if values.dtype.kind in "iu":
        # Differences of int32 wrap around, as they do in the run.
        values = (values.astype(np.int64) - offset.astype(np.int64)).astype(np.int32)
        offset = np.zeros((), np.int32)
    centred = (values - offset).astype(np.float32)
    if apart and wanted == "float32":
        numbers = relax.const(centred, "float32")
        return relax.op.multiply(numbers, relax.const(factor.astype(np.float32), "float32"))
    with np.errstate(all="ignore"):
        floats = (centred * factor.astype(np.float32)).astype(np.dtype(wanted))
    return relax.const(floats, wanted)


def _weights_in_blocks(
    bb: relax.BlockBuilder, operands: Any, attr: dict, wanted: str
) -> relax.Expr | None:
    """Stored integers and the scales of their blocks, for programs that keep both so.

    None for other numbers than integers of up to 16 bits, or what is computed.
    """
    x, scale, zero_point = operands
    values, factor = numbers_of(x), numbers_of(scale)
    if values is None or factor is None or values.dtype.kind not in "iu":
        return None
    centred = values.astype(np.int32 if values.itemsize < 4 else np.int64)
    if zero_point is not None:
        offset = numbers_of(spread(bb, zero_point, x, attr))
        if offset is None:
            return None
        centred = centred - offset.astype(centred.dtype)
    if not centred.size or max(-centred.min(), centred.max()) >= 1 << 15:
        return None
    holder = np.int8 if centred.min() >= -128 and centred.max() < 128 else np.int16
    numbers = bb.normalize(relax.op.astype(relax.const(centred.astype(holder)), "float32"))
    scale = relax.const(factor.astype(np.float32), "float32")
    axis, block = attr.get("axis", 1) % x.ty.ndim, attr["block_size"]
    repeated = bb.normalize(relax.op.repeat(scale, block, axis))
    size = values.shape[axis]
    if repeated.ty.shape[axis] != size:
        repeated = bb.normalize(relax.op.strided_slice(repeated, [axis], [0], [size]))
    return _in_type(bb, bb.normalize(relax.op.multiply(numbers, repeated)), wanted)


def _numbers_or_call(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """A tensor of any type as float32."""
    numbers = numbers_of(value)
    if numbers is not None:
        return relax.const(numbers.astype(np.float32), "float32")
    if is_narrow_float(str(value.ty.dtype)):
        return to_float32(bb, value)
    return _in_type(bb, value, "float32")


def _in_type(bb: relax.BlockBuilder, value: relax.Expr, dtype: str) -> relax.Expr:
    if str(value.ty.dtype) == dtype:
        return value
    if isinstance(value, tvm.ir.GenericConst):
        return relax.const(value.value.numpy().astype(np.dtype(dtype)), dtype)
    return bb.normalize(converted(bb, value, dtype))


def _scale_and_zero_point(inputs: Any, params: Any) -> tuple[Any, Any]:
    """As constants where they are stored; None for a zero point that is left out."""
    zero_point = inputs[2] if len(inputs) > 2 else None
    stored = None if zero_point is None else onnx_constant(zero_point, params)
    return onnx_constant(inputs[1], params), stored


# What QuantizeLinear and DequantizeLinear read.
_NUMBERS = ("float16", "bfloat16", "float32", "float64", "int32")
_STEPS = ("int8", "uint8", "int16", "uint16", "int32", *NARROW_FLOATS)


def _check_types(
    x: relax.Expr, known: Sequence[str], zero_point: relax.Expr | None, wanted: str
) -> None:
    """Refuses what ONNX's rules do not allow, which nodes of com.microsoft are not checked for."""
    dtype = str(x.ty.dtype)
    if dtype not in known:
        raise MisfitError(f"its input is {dtype}, expected one of {', '.join(known)}")
    if wanted and zero_point is not None and str(zero_point.ty.dtype) != wanted:
        raise MisfitError(f"its zero point is {zero_point.ty.dtype}, expected {wanted}")


def _quantized_type(attr: dict, zero_point: relax.Expr | None) -> str:
    if attr.get(NARROW_ATTRIBUTE):
        return wanted_type(attr)
    otherwise = "uint8" if zero_point is None else str(zero_point.ty.dtype)
    return _type_attribute(attr, "output_dtype", otherwise)


def _type_attribute(attr: dict, name: str, otherwise: str) -> str:
    wanted = attr.get(name, 0)
    return str(onnx_type_name(wanted)) if wanted else otherwise


# ConvInteger, QLinearConv, MatMulInteger and QLinearMatMul: products of integers.
#
# TVM has no converter for the convolutions and for QLinearMatMul, and multiplies in int32 after
# it widened both operands. Here zero points are subtracted in int16, where every difference of
# 8-bit numbers fits, and int16 x int16 is summed in int32: exact, and half the bytes to read.


_CONVOLUTIONS = {
    3: (relax.op.nn.conv1d, "NCW", "OIW"),
    4: (relax.op.nn.conv2d, "NCHW", "OIHW"),
    5: (relax.op.nn.conv3d, "NCDHW", "OIDHW"),
}


class ConvInteger(OnnxOpConverter):
    """int32 of ``conv(x - x_zero_point, w - w_zero_point)``."""

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x, w, x_zero, w_zero = _operands(inputs, params, 4)
        return _convolved(bb, x, w, x_zero, w_zero, attr)


class MatMulInteger(OnnxOpConverter):
    """int32 of ``(a - a_zero_point) @ (b - b_zero_point)``."""

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        a, b, a_zero, b_zero = _operands(inputs, params, 4)
        return _multiplied(bb, a, b, a_zero, b_zero)


class QLinearConv(OnnxOpConverter):
    """ConvInteger with an int32 bias, requantised to the output's scale."""

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        given = _operands(inputs, params, 9)
        x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias = given
        total = _convolved(bb, x, w, x_zero, w_zero, attr)
        channels, axes = sizes_of(w)[0], x.ty.ndim - 2
        if bias is not None:
            bias = for_channels(bb, bias, channels, axes, "bias")
            total = bb.normalize(relax.op.add(total, bias))
        x_scale = one_number(bb, x_scale, "x_scale")
        w_scale = for_channels(bb, w_scale, channels, axes, "w_scale")
        y_scale = one_number(bb, y_scale, "y_scale")
        y_zero = None if y_zero is None else one_number(bb, y_zero, "y_zero_point")
        return _requantised(bb, total, (x_scale, w_scale, y_scale), y_zero)


class QLinearMatMul(OnnxOpConverter):
    """MatMulInteger, requantised to the output's scale."""

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = _operands(inputs, params, 8)
        total = _multiplied(bb, a, b, a_zero, b_zero)
        a_scale = for_rows(bb, a_scale, sizes_of(a), "a_scale")
        b_scale = for_columns(bb, b_scale, sizes_of(b), "b_scale")
        rows = sizes_of(total) if min(a.ty.ndim, b.ty.ndim) > 1 else []
        y_scale = for_rows(bb, y_scale, rows, "y_scale")
        y_zero = None if y_zero is None else for_rows(bb, y_zero, rows, "y_zero_point")
        return _requantised(bb, total, (a_scale, b_scale, y_scale), y_zero)


def _convolved(
    bb: relax.BlockBuilder, x: Any, w: Any, x_zero: Any, w_zero: Any, attr: dict
) -> relax.Expr:
    rank = x.ty.ndim
    if rank not in _CONVOLUTIONS:
        raise FormError(f"a convolution of rank {rank}")
    if w_zero is not None:
        w_zero = for_channels(bb, w_zero, sizes_of(w)[0], rank - 1, "w_zero_point")
    if x_zero is not None:
        x_zero = one_number(bb, x_zero, "x_zero_point")
    convolution, data_layout, kernel_layout = _CONVOLUTIONS[rank]
    centred, attr = explicit_padding(bb, _centred_int16(bb, x, x_zero), attr, sizes_of(w)[2:])
    return bb.normalize(
        convolution(
            centred,
            _centred_int16(bb, w, w_zero),
            strides=attr.get("strides", 1),
            padding=attr.get("pads", 0),
            dilation=attr.get("dilations", 1),
            groups=attr.get("group", 1),
            data_layout=data_layout,
            kernel_layout=kernel_layout,
            out_dtype="int32",
        )
    )


def _multiplied(bb: relax.BlockBuilder, a: Any, b: Any, a_zero: Any, b_zero: Any) -> relax.Expr:
    a_zero = None if a_zero is None else for_rows(bb, a_zero, sizes_of(a), "a_zero_point")
    b_zero = None if b_zero is None else for_columns(bb, b_zero, sizes_of(b), "b_zero_point")
    a, b = _centred_int16(bb, a, a_zero), _centred_int16(bb, b, b_zero)
    return bb.normalize(relax.op.matmul(a, b, out_dtype="int32"))


def centred_product(
    bb: relax.BlockBuilder, a: relax.Expr, a_zero: relax.Expr, numbers: np.ndarray
) -> relax.Expr:
    """int32 of ``(a - a_zero) @ numbers``: 8 bits and one zero point, stored ones of 9 at most."""
    stored = relax.const(np.ascontiguousarray(numbers.astype(np.int16)), "int16")
    centred = _centred_int16(bb, a, a_zero)
    return bb.normalize(relax.op.matmul(centred, stored, out_dtype="int32"))


def _centred_int16(
    bb: relax.BlockBuilder, value: relax.Expr, zero: relax.Expr | None
) -> relax.Expr:
    """``value - zero`` in int16."""
    if str(value.ty.dtype) not in ("int8", "uint8"):
        raise FormError(f"a product of {value.ty.dtype}; expected int8 or uint8")
    if zero is not None and zero.ty.dtype != value.ty.dtype:
        raise MisfitError(f"a zero point is {zero.ty.dtype}, expected {value.ty.dtype}")
    numbers, offset = numbers_of(value), numbers_of(zero)
    if numbers is not None and (zero is None or offset is not None):
        shift = np.int16(0) if offset is None else offset.astype(np.int16)
        return relax.const(numbers.astype(np.int16) - shift, "int16")
    wide = bb.normalize(relax.op.astype(value, "int16"))
    if zero is None or (offset is not None and not offset.any()):
        return wide
    return bb.normalize(relax.op.subtract(wide, _in_type(bb, zero, "int16")))


def _requantised(
    bb: relax.BlockBuilder, total: relax.Expr, scales: Any, y_zero: relax.Expr | None
) -> relax.Expr:
    """int32 sums times ``x_scale * w_scale / y_scale``, in the order of ONNX Runtime."""
    wanted = "uint8" if y_zero is None else str(y_zero.ty.dtype)
    known = [numbers_of(scale) for scale in scales]
    if all(array is not None for array in known):
        x, w, y = (array.astype(np.float32) for array in known if array is not None)
        with np.errstate(all="ignore"):
            factor = relax.const((x * w / y).astype(np.float32), "float32")
    else:
        x, w, y = (bb.normalize(relax.op.astype(scale, "float32")) for scale in scales)
        product = bb.normalize(relax.op.multiply(x, w))
        factor = bb.emit(relax.op.divide(product, y))
    ratio = bb.normalize(relax.op.astype(total, "float32"))
    return saturated(bb, bb.normalize(relax.op.multiply(ratio, factor)), y_zero, wanted)


def _operands(inputs: Any, params: Any, count: int) -> list[Any]:
    """The inputs, stored ones as constants, None for those that are left out."""
    given = [*list(inputs), *[None] * count][:count]
    return [None if value is None else onnx_constant(value, params) for value in given]


QUANTIZE_CONVERTERS = {
    "ConvInteger": ConvInteger,
    "DequantizeLinear": DequantizeLinear,
    "DynamicQuantizeLinear": DynamicQuantizeLinear,
    "MatMulInteger": MatMulInteger,
    "QLinearConv": QLinearConv,
    "QLinearMatMul": QLinearMatMul,
    "QuantizeLinear": QuantizeLinear,
}

"""ConvInteger, QLinearConv, MatMulInteger and QLinearMatMul: products of integers.

TVM has no converter for the convolutions and for QLinearMatMul, and multiplies in int32 after it
widened both operands. Here zero points are subtracted in int16, where every difference of 8-bit
numbers fits, and int16 x int16 is summed in int32: exact, and half the bytes to read.
"""

from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter, onnx_constant
from tvm_ext.onnx_frontend.converters.arguments import sizes_of
from tvm_ext.onnx_frontend.converters.quantize import (
    DequantizeLinear,
    DynamicQuantizeLinear,
    QuantizeLinear,
    saturated,
)
from tvm_ext.onnx_frontend.converters.quantize_scale import numbers_of
from tvm_ext.onnx_frontend.converters.same_padding import explicit_padding

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
        per_channel = [1, -1] + [1] * (x.ty.ndim - 2)
        if bias is not None:
            total = bb.normalize(relax.op.add(total, _reshaped(bb, bias, per_channel)))
        if w_scale.ty.ndim:
            w_scale = _reshaped(bb, w_scale, per_channel)
        return _requantised(bb, total, (x_scale, w_scale, y_scale), y_zero)


class QLinearMatMul(OnnxOpConverter):
    """MatMulInteger, requantised to the output's scale."""

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = _operands(inputs, params, 8)
        total = _multiplied(bb, a, b, a_zero, b_zero)
        a_scale = _per_row(bb, a_scale)
        return _requantised(bb, total, (a_scale, b_scale, y_scale), y_zero)


def _convolved(
    bb: relax.BlockBuilder, x: Any, w: Any, x_zero: Any, w_zero: Any, attr: dict
) -> relax.Expr:
    rank = x.ty.ndim
    if rank not in _CONVOLUTIONS:
        raise FormError(f"a convolution of rank {rank}")
    if w_zero is not None and w_zero.ty.ndim:
        w_zero = _reshaped(bb, w_zero, [-1] + [1] * (rank - 1))
    if x_zero is not None:
        x_zero = _reshaped(bb, x_zero, [])
    convolution, data_layout, kernel_layout = _CONVOLUTIONS[rank]
    centred, attr = explicit_padding(bb, _centred(bb, x, x_zero), attr, sizes_of(w)[2:])
    return bb.normalize(
        convolution(
            centred,
            _centred(bb, w, w_zero),
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
    a_zero = None if a_zero is None else _per_row(bb, a_zero)
    a, b = _centred(bb, a, a_zero), _centred(bb, b, b_zero)
    return bb.normalize(relax.op.matmul(a, b, out_dtype="int32"))


def _per_row(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """A list of one number for each row as a column; other shapes broadcast as they are."""
    return _reshaped(bb, value, [-1, 1]) if value.ty.ndim == 1 else value


def _centred(bb: relax.BlockBuilder, value: relax.Expr, zero: relax.Expr | None) -> relax.Expr:
    """``value - zero`` in int16."""
    if str(value.ty.dtype) not in ("int8", "uint8"):
        raise FormError(f"a product of {value.ty.dtype}; expected int8 or uint8")
    numbers, offset = numbers_of(value), numbers_of(zero)
    if numbers is not None and (zero is None or offset is not None):
        shift = np.int16(0) if offset is None else offset.astype(np.int16)
        return relax.const(numbers.astype(np.int16) - shift, "int16")
    wide = bb.normalize(relax.op.astype(value, "int16"))
    if zero is None or (offset is not None and not offset.any()):
        return wide
    zero = (
        relax.const(offset.astype(np.int16), "int16")
        if offset is not None
        else bb.normalize(relax.op.astype(zero, "int16"))
    )
    return bb.normalize(relax.op.subtract(wide, zero))


def _requantised(
    bb: relax.BlockBuilder, total: relax.Expr, scales: Any, y_zero: relax.Expr | None
) -> relax.Expr:
    """int32 sums times ``x_scale * w_scale / y_scale``, in the order of ONNX Runtime."""
    wanted = "uint8" if y_zero is None else str(y_zero.ty.dtype)
    if y_zero is not None:
        y_zero = _reshaped(bb, y_zero, []) if _is_single(y_zero) else _per_row(bb, y_zero)
    known = [numbers_of(scale) for scale in scales]
    if all(array is not None for array in known):
        x, w, y = (array.astype(np.float32) for array in known if array is not None)
        y = y.reshape([]) if y.size == 1 else y.reshape([-1, 1]) if y.ndim == 1 else y
        factor = relax.const((x * w / y).astype(np.float32), "float32")
    else:
        x, w, y = (bb.normalize(relax.op.astype(scale, "float32")) for scale in scales)
        y = y if _is_single(y) else _per_row(bb, y)
        product = bb.normalize(relax.op.multiply(x, w))
        factor = bb.emit(relax.op.divide(product, y))
    ratio = bb.normalize(relax.op.astype(total, "float32"))
    return saturated(bb, bb.normalize(relax.op.multiply(ratio, factor)), y_zero, wanted)


def _is_single(value: relax.Expr) -> bool:
    shape = value.ty.shape
    return isinstance(shape, relax.ShapeExpr) and all(
        isinstance(size, tvm.tirx.IntImm) and int(size) == 1 for size in shape
    )


def _reshaped(bb: relax.BlockBuilder, value: relax.Expr, shape: list[int]) -> relax.Expr:
    numbers = numbers_of(value)
    if numbers is not None:
        return relax.const(numbers.reshape(shape), str(value.ty.dtype))
    return bb.normalize(relax.op.reshape(value, shape))


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

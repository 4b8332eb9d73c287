"""Quantised operators of com.microsoft in default operators.

The integer products are exact. QLinearAdd and the like go through float32 as the default domain's
QuantizeLinear and DequantizeLinear do; ONNX Runtime has tables and fixed ratios of scales there,
which may differ by one step at the border between two.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from tvm_ext.onnx_frontend.microsoft_builder import Builder, CannotRewrite, stored

_Results = list[ir.Value | None]
_FLOAT = ir.DataType.FLOAT


def _dequantized(b: Builder, first: int) -> ir.Value:
    """The input ``first`` with the scale and the zero point behind it."""
    given = b.input(first), b.input(first + 1), b.optional(first + 2)
    return b.op("DequantizeLinear", *given)


def _quantized(b: Builder, value: ir.Value, scale: int) -> _Results:
    return [b.op("QuantizeLinear", value, b.input(scale), b.optional(scale + 1))]


def qlinear_add(b: Builder) -> _Results:
    """Sum of two quantised tensors."""
    return _quantized(b, b.op("Add", _dequantized(b, 0), _dequantized(b, 3)), 6)


def qlinear_mul(b: Builder) -> _Results:
    """Product of two quantised tensors."""
    return _quantized(b, b.op("Mul", _dequantized(b, 0), _dequantized(b, 3)), 6)


def qlinear_sigmoid(b: Builder) -> _Results:
    """Sigmoid of a quantised tensor."""
    return _quantized(b, b.op("Sigmoid", _dequantized(b, 0)), 3)


def qlinear_leaky_relu(b: Builder) -> _Results:
    """LeakyRelu of a quantised tensor."""
    alpha = b.attribute("alpha", 0.01)
    return _quantized(b, b.op("LeakyRelu", _dequantized(b, 0), alpha=alpha), 3)


def qlinear_softmax(b: Builder) -> _Results:
    """Softmax of a quantised tensor along one axis."""
    if b.attribute("opset", 13) < 13 or b.opset < 13:
        raise CannotRewrite("Softmax over several axes, as before opset 13")
    axis = b.attribute("axis", -1)
    return _quantized(b, b.op("Softmax", _dequantized(b, 0), axis=axis), 3)


def qlinear_global_average_pool(b: Builder) -> _Results:
    """Mean over all axes of the image."""
    return _pooled(b, "GlobalAveragePool")


def qlinear_average_pool(b: Builder) -> _Results:
    """AveragePool of a quantised tensor."""
    return _pooled(b, "AveragePool")


def _pooled(b: Builder, operator: str) -> _Results:
    x = _moved(b, _dequantized(b, 0), _to_front)
    (result,) = _quantized(b, b.op(operator, x, **_attributes(b)), 3)
    return [_moved(b, result, _to_back, b.input(0))]


def qlinear_conv(b: Builder) -> _Results:
    """QLinearConv of images whose channels may be last."""
    x, *rest = (b.optional(place) for place in range(len(b.node.inputs)))
    result = b.op("QLinearConv", _moved(b, x, _to_front), *rest, **_attributes(b))
    return [_moved(b, result, _to_back, x)]


def nhwc_max_pool(b: Builder) -> _Results:
    """MaxPool of quantised images whose channels are last."""
    x = b.input(0)
    rank = _rank(x)
    front = b.op("Transpose", x, perm=_to_front(rank))
    return [b.op("Transpose", b.op("MaxPool", front, **_attributes(b)), perm=_to_back(rank))]


def _attributes(b: Builder) -> dict[str, Any]:
    return {k: a.value for k, a in b.node.attributes.items() if k != "channels_last"}


def _moved(
    b: Builder,
    value: ir.Value | None,
    order: Callable[[int], list[int]],
    like: ir.Value | None = None,
) -> ir.Value:
    """The image with its channels moved if the node says that they are last."""
    if value is None:
        raise CannotRewrite("no image")
    if not b.attribute("channels_last", 0):
        return value
    return b.op("Transpose", value, perm=order(_rank(like or b.input(0))))


def _rank(value: ir.Value) -> int:
    if value.shape is None:
        raise CannotRewrite("the rank of its input is not known")
    return len(value.shape)


def _to_front(rank: int) -> list[int]:
    return [0, rank - 1, *range(1, rank - 1)]


def _to_back(rank: int) -> list[int]:
    return [0, *range(2, rank), 1]


def qlinear_concat(b: Builder) -> _Results:
    """Concat of tensors, each with a scale and a zero point of its own."""
    parts = [_dequantized(b, first) for first in range(2, len(b.node.inputs), 3)]
    return _quantized(b, b.op("Concat", *parts, axis=b.attribute("axis")), 0)


def qlinear_where(b: Builder) -> _Results:
    """Where between two quantised tensors."""
    chosen = b.op("Where", b.input(0), _dequantized(b, 1), _dequantized(b, 4))
    return _quantized(b, chosen, 7)


def qgemm(b: Builder) -> _Results:
    """``alpha * A @ B + C`` with an int32 ``C``; float32 where the output has no scale."""
    a, c = b.input(0), b.input(3)
    a = b.op("Transpose", a, perm=[1, 0]) if b.attribute("transA", 0) else a
    c = b.op("Transpose", c, perm=[1, 0]) if b.attribute("transB", 0) else c
    total = b.op("MatMulInteger", a, c, b.optional(2), b.optional(5))
    if b.optional(6) is not None:
        total = b.op("Add", total, b.input(6))
    alpha = b.constant(np.array(b.attribute("alpha", 1.0), np.float32))
    factor = b.op("Mul", b.op("Mul", alpha, b.input(1)), b.input(4))
    if b.optional(7) is None:
        return [b.op("Mul", b.cast(total, _FLOAT), factor)]
    # One rounding, as in ONNX Runtime: the sums are scaled to steps of the output.
    steps = b.op("Mul", b.cast(total, _FLOAT), b.op("Div", factor, b.input(7)))
    one = b.constant(np.array(1, np.float32))
    return [b.op("QuantizeLinear", steps, one, b.optional(8))]


def dynamic_quantize_matmul(b: Builder) -> _Results:
    """``A`` quantised in the run times stored integers, as floats."""
    a, scale, zero = b.ops("DynamicQuantizeLinear", 3, [b.input(0)], {})
    total = b.op("MatMulInteger", a, b.input(1), zero, b.optional(3))
    return [_scaled(b, total, b.op("Mul", scale, b.input(2)), b.optional(4))]


def matmul_integer_to_float(b: Builder) -> _Results:
    """MatMulInteger as floats."""
    total = b.op("MatMulInteger", b.input(0), b.input(1), b.optional(4), b.optional(5))
    return [_scaled(b, total, b.op("Mul", b.input(2), b.input(3)), b.optional(6))]


def dynamic_quantize_lstm(b: Builder) -> _Results:
    """LSTM with the weights that the integers stand for.

    ONNX Runtime quantises the inputs of the gates in every step as well, which this does not: it
    is nearer to the LSTM that was quantised.
    """
    w = _lstm_weight(b, 1, 8)
    r = _lstm_weight(b, 2, 10)
    rest = [b.optional(index) for index in range(3, 8)]
    kept = {k: a.value for k, a in b.node.attributes.items()}
    outputs = len(b.node.outputs)
    return list(b.ops("LSTM", outputs, [b.input(0), w, r, *rest], kept))


def matmul_n_bits(b: Builder) -> _Results:
    """MatMul with the stored weights that packed integers of a few bits stand for.

    The weights take the memory of floats.
    """
    arrays = stored(b.input(1), b.input(2), b.optional(3))
    order = stored(b.optional(4))
    if arrays is None or order is None or order[0] is not None:
        raise CannotRewrite("weights that are computed, or g_idx")
    packed, scales, zeros = arrays
    if packed is None or scales is None:
        raise CannotRewrite("no weights")
    bits, block = b.attribute("bits", 4), b.attribute("block_size")
    rows, columns = b.attribute("N"), b.attribute("K")
    blocks = -(-columns // block)
    weight = _unpacked(packed.reshape(rows, -1), bits)[:, : blocks * block]
    weight = weight.reshape(rows, blocks, block).astype(np.float32)
    offset = _offsets(zeros, bits, rows, blocks)
    weight = (weight - offset) * scales.reshape(rows, blocks, 1).astype(np.float32)
    weight = weight.reshape(rows, blocks * block)[:, :columns].T
    stored_weight = b.constant(np.ascontiguousarray(weight).astype(scales.dtype))
    result = b.op("MatMul", b.input(0), stored_weight)
    return [result if b.optional(5) is None else b.op("Add", result, b.input(5))]


def _offsets(zeros: np.ndarray | None, bits: int, rows: int, blocks: int) -> np.ndarray:
    if zeros is None:
        return np.full((1, 1, 1), 1 << (bits - 1), np.float32)
    if zeros.dtype == np.uint8:
        zeros = _unpacked(zeros.reshape(rows, -1), bits)[:, :blocks]
    return zeros.reshape(rows, blocks, 1).astype(np.float32)


def gather_block_quantized(b: Builder) -> _Results:
    """Gather from the stored weights that integers or narrow floats stand for, block by block.

    The weights take the memory of floats.
    """
    arrays = stored(b.input(0), b.input(2), b.optional(3))
    if arrays is None:
        raise CannotRewrite("weights that are computed")
    data, scales, zeros = arrays
    if data is None or scales is None:
        raise CannotRewrite("no weights")
    offset: np.ndarray | float = 0.0 if zeros is None else zeros
    if data.dtype == np.uint8:
        data, offset = _unpacked_table(b, data, scales, zeros)
    axis = b.attribute("quantize_axis", 1)
    # A block of 0 elements is the whole axis.
    block = b.attribute("block_size", 128) or max(data.shape[axis], 1)
    if scales.shape[axis] != -(-data.shape[axis] // block):
        raise CannotRewrite("scales for another number of blocks")
    places = np.arange(data.shape[axis]) // block
    if isinstance(offset, np.ndarray):
        offset = np.take(offset, places, axis).astype(np.float32)
    factor = np.take(scales, places, axis).astype(np.float32)
    table = ((data.astype(np.float32) - offset) * factor).astype(scales.dtype)
    gathered = b.op("Gather", b.constant(table), b.input(1), axis=b.attribute("gather_axis", 0))
    gathered.dtype = b.input(2).dtype
    return [gathered]


def _unpacked_table(
    b: Builder, data: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | float]:
    """Integers of a few bits in bytes along the last axis, and their zero points."""
    bits = b.attribute("bits", 4)
    if b.attribute("quantize_axis", 1) not in (-1, data.ndim - 1):
        raise CannotRewrite("bytes that are not packed along the last axis")
    if zeros is None:
        return _unpacked(data, bits), float(1 << (bits - 1))
    return _unpacked(data, bits), _unpacked(zeros, bits)[..., : scales.shape[-1]]


def _unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The integers of each row, the first one in the lowest bits of its byte."""
    if bits not in (2, 4, 8):
        raise CannotRewrite(f"{bits} bits")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    split = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return split.reshape(*packed.shape[:-1], -1)


def _scaled(b: Builder, total: ir.Value, scale: ir.Value, bias: ir.Value | None) -> ir.Value:
    result = b.op("Mul", b.cast(total, _FLOAT), scale)
    return result if bias is None else b.op("Add", result, bias)


def _lstm_weight(b: Builder, weight: int, scale: int) -> ir.Value:
    """[directions, inputs, 4 * hidden] of integers as [directions, 4 * hidden, inputs] of floats.

    The scale is one number a direction, or one for each column of it.
    """
    arrays = stored(b.input(weight), b.input(scale), b.input(scale + 1))
    if arrays is None:
        raise CannotRewrite("weights that are computed")
    numbers, factor, zero = (np.asarray(array) for array in arrays)
    directions = numbers.shape[0]
    centred = numbers.astype(np.float32) - zero.astype(np.float32).reshape(directions, 1, -1)
    floats = centred * factor.reshape(directions, 1, -1)
    return b.constant(np.ascontiguousarray(floats.transpose(0, 2, 1)))

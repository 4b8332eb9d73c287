"""Quantised operators of com.microsoft in default operators.

The integer products are exact. QLinearAdd and the like go through float32 as the default
domain's QuantizeLinear and DequantizeLinear do; ONNX Runtime has tables and fixed ratios of
scales there, which may differ by one step at the border between two.
"""

from typing import Any

import numpy as np
import onnx_ir as ir

from tvm_ext.configs.errors import FormError, NotApplicable
from tvm_ext.onnx_frontend.microsoft.attention import attention_of_rows, rank
from tvm_ext.onnx_frontend.microsoft.builder import Builder, stored
from tvm_ext.onnx_frontend.microsoft.fused import embedded
from tvm_ext.onnx_frontend.onnx_graph import INPUT_STEPS, QUANTIZED_STATE, RECURRENT_STEPS

_Results = list[ir.Value | None]
_FLOAT = ir.DataType.FLOAT
_INTEGERS = (ir.DataType.INT8, ir.DataType.UINT8)
_SOFTMAX_OF_ONE_AXIS = 13


def _dequantized(b: Builder, first: int) -> ir.Value:
    """The input ``first`` with the scale and the zero point behind it."""
    given = b.input(first), b.input(first + 1), b.optional(first + 2)
    _check_parameters(b, first, first + 1)
    return b.op("DequantizeLinear", *given)


def _quantized(b: Builder, value: ir.Value, scale: int, like: int = 0) -> _Results:
    """In steps of the input ``scale``, with the zero point behind it, or 0, of the type of the
    input ``like``.
    """
    _check_parameters(b, like, scale)
    zero, dtype = b.optional(scale + 1), b.input(like).dtype
    if zero is None and dtype is not None:
        zero = b.constant(np.zeros((), dtype.numpy()))
    return [b.op("QuantizeLinear", value, b.input(scale), zero)]


def _check_parameters(b: Builder, data: int, scale: int) -> None:
    """The scale and the zero point of a tensor are one number each; ONNX's checker knows nothing
    of these operators.
    """
    kind, zero = b.input(data).dtype, b.optional(scale + 1)
    if kind is not None and kind not in _INTEGERS:
        raise FormError(f"its input {data} is {kind.name.lower()}, expected int8 or uint8")
    if zero is not None and None not in (kind, zero.dtype) and zero.dtype != kind:
        found, wanted = (str(np.dtype(value.dtype.numpy())) for value in (zero, b.input(data)))
        raise FormError(f"its input {scale + 1}, a zero point, is {found}, expected {wanted}")
    for index in (scale, scale + 1):
        shape = getattr(b.optional(index), "shape", None)
        if shape is not None and (
            len(shape) > 1 or any(isinstance(size, int) and size != 1 for size in shape)
        ):
            raise FormError(f"its input {index} has the sizes {shape}, expected one number")


def qlinear_pair(operator: str, b: Builder) -> _Results:
    """Sum or product of two quantised tensors."""
    return _quantized(b, b.op(operator, _dequantized(b, 0), _dequantized(b, 3)), 6)


def qlinear_sigmoid(b: Builder) -> _Results:
    """Sigmoid of a quantised tensor."""
    return _quantized(b, b.op("Sigmoid", _dequantized(b, 0)), 3)


def qlinear_leaky_relu(b: Builder) -> _Results:
    """LeakyRelu of a quantised tensor."""
    alpha = b.attribute("alpha", 0.01)
    return _quantized(b, b.op("LeakyRelu", _dequantized(b, 0), alpha=alpha), 3)


def qlinear_softmax(b: Builder) -> _Results:
    """Softmax of a quantised tensor along one axis; over all from it on before opset 13."""
    x, axis = _dequantized(b, 0), b.attribute("axis", -1)
    axes = rank(b.input(0))
    if axis in (-1, (axes or 0) - 1):
        return _softmax_steps(b, b.op("Softmax", x, axis=axis if axes is None else axes - 1))
    if b.attribute("opset") < _SOFTMAX_OF_ONE_AXIS:
        rows = b.op("Softmax", b.op("Flatten", x, axis=axis), axis=1)
        return _softmax_steps(b, b.op("Reshape", rows, b.op("Shape", x)))
    if b.opset < _SOFTMAX_OF_ONE_AXIS:
        raise NotApplicable("Softmax of one axis in a model whose Softmax is over several")
    return _softmax_steps(b, b.op("Softmax", x, axis=axis))


def _softmax_steps(b: Builder, value: ir.Value) -> _Results:
    """With the endless scale of a mask of -inf, rows are NaN: ONNX Runtime has the integer 0."""
    scale = stored(b.input(1))
    if scale is None or scale[0] is None or np.isfinite(scale[0]).all():
        return _quantized(b, value, 3)
    zero = b.op("Mul", b.op("Neg", b.cast(b.input(4), _FLOAT)), b.input(3))
    return _quantized(b, b.op("Where", b.op("IsNaN", value), zero, value), 3)


def qlinear_global_average_pool(b: Builder) -> _Results:
    """Mean over all axes of the image."""
    axes = rank(b.input(0))
    pooled = _channels_first(b, axes, "GlobalAveragePool", _dequantized(b, 0))
    return _quantized(b, pooled, 3)


def qlinear_average_pool(b: Builder) -> _Results:
    """AveragePool of a quantised tensor."""
    axes = len(b.required("kernel_shape")) + 2
    return _quantized(b, _channels_first(b, axes, "AveragePool", _dequantized(b, 0)), 3)


def nhwc_max_pool(b: Builder) -> _Results:
    """MaxPool with channels last."""
    axes = len(b.required("kernel_shape")) + 2
    return [_channels_first(b, axes, "MaxPool", b.input(0), channels_last=True)]


def qlinear_conv(b: Builder) -> _Results:
    """QLinearConv of the default domain, or with channels last in what it reads and gives."""
    operands = [b.optional(index) for index in range(9)]
    return [_channels_first(b, rank(b.input(3)), "QLinearConv", *operands)]


def _channels_first(
    b: Builder, axes: int | None, name: str, *operands: Any, channels_last: bool = False
) -> ir.Value:
    """The node ``name``, whose first operand and result have channels first and ``axes`` axes."""
    kept = {k: a.value for k, a in b.node.attributes.items() if k != "channels_last"}
    if not channels_last and not b.attribute("channels_last", 0):
        return b.op(name, *operands, **kept)
    if axes is None:
        raise NotApplicable("the rank of its input is not known")
    x = b.op("Transpose", operands[0], perm=[0, axes - 1, *range(1, axes - 1)])
    result = b.op(name, x, *operands[1:], **kept)
    return b.op("Transpose", result, perm=[0, *range(2, axes), 1])


def qlinear_concat(b: Builder) -> _Results:
    """Concat of tensors, each with a scale and a zero point of its own."""
    parts = [_dequantized(b, first) for first in range(2, len(b.node.inputs), 3)]
    return _quantized(b, b.op("Concat", *parts, axis=b.required("axis")), 0, 2)


def qlinear_where(b: Builder) -> _Results:
    """Where between two quantised tensors."""
    chosen = b.op("Where", b.input(0), _dequantized(b, 1), _dequantized(b, 4))
    return _quantized(b, chosen, 7, 1)


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
    """LSTM of a rounded input and state, with the weights that the integers stand for.

    Its converter gets the integers back from the weights' steps, and multiplies these.

    ONNX Runtime rounds the states of all sequences that a thread computes by one scale, which
    depends on the number of threads; here each sequence has its own.
    """
    w, w_steps = _lstm_weight(b, 1, 8)
    r, r_steps = _lstm_weight(b, 2, 10)
    x: ir.Value | None = b.input(0)
    rest = [b.optional(index) for index in range(3, 8)]
    kept = {k: a.value for k, a in b.node.attributes.items()} | {QUANTIZED_STATE: 1}
    if w_steps and r_steps:
        kept |= {INPUT_STEPS: w_steps, RECURRENT_STEPS: r_steps}
    else:
        x = b.op("DequantizeLinear", *b.ops("DynamicQuantizeLinear", 3, [x], {}))
    return list(b.ops("LSTM", len(b.node.outputs), [x, w, r, *rest], kept))


def q_embed_layer_normalization(b: Builder) -> _Results:
    """EmbedLayerNormalization with tables of integers."""

    def floats(quantized: ir.Value, table: int) -> ir.Value:
        return b.op("DequantizeLinear", quantized, b.input(table + 6), b.input(table + 11))

    def rows(table: int, places: ir.Value) -> ir.Value:
        return floats(b.op("Gather", b.input(table), places), table)

    return embedded(b, rows, None, floats(b.input(5), 5), floats(b.input(6), 6))


def q_attention(b: Builder) -> _Results:
    """Attention whose query, key and value are a product of integers."""
    if b.attribute("do_rotary", 0) or b.attribute("past_present_share_buffer", 0):
        raise NotApplicable("a shared buffer of keys and values, or rotary embeddings")
    total = b.op("MatMulInteger", b.input(0), b.input(1), b.optional(6), b.optional(7))
    rows = _scaled(b, total, b.op("Mul", b.input(3), b.input(4)), b.input(2))
    return attention_of_rows(b, rows, b.optional(5), b.optional(8))


def _scaled(b: Builder, total: ir.Value, scale: ir.Value, bias: ir.Value | None) -> ir.Value:
    result = b.op("Mul", b.cast(total, _FLOAT), scale)
    return result if bias is None else b.op("Add", result, bias)


def _lstm_weight(b: Builder, weight: int, scale: int) -> tuple[ir.Value, list[float]]:
    """[directions, inputs, 4 * hidden] of integers as [directions, 4 * hidden, inputs] of floats.

    The scale is one number a direction, or one for each column of it. Given back is one for each
    row of the floats, and none where these do not say which integers they were.
    """
    arrays = stored(b.input(weight), b.input(scale), b.input(scale + 1))
    if arrays is None:
        raise NotApplicable("weights that are computed")
    numbers, factor, zero = (np.asarray(array) for array in arrays)
    directions = numbers.shape[0]
    centred = numbers.astype(np.float32) - zero.astype(np.float32).reshape(directions, 1, -1)
    steps = np.broadcast_to(factor.reshape(directions, 1, -1), (directions, 1, numbers.shape[2]))
    with np.errstate(all="ignore"):
        floats = np.ascontiguousarray((centred * steps).transpose(0, 2, 1))
        is_told = np.isfinite(floats).all() and (steps >= np.finfo(np.float32).tiny).all()
    return b.constant(floats), steps.ravel().tolist() if is_told else []


# Operators of com.microsoft whose stored weights take a few bits each, in default operators.
#
# The weights become the floats that they stand for, while compiling. Where a node asks for products
# of integers (``accuracy_level`` 4), the other operand is rounded in blocks as ONNX Runtime rounds
# it; a pass makes these products of bytes, and drops the rounding on machines without them.


# What the numbers of MatMulBnb4 stand for: bitsandbytes' 4-bit floats and normal floats.
_FLOATS = (0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
_NORMAL_FLOATS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_BNB4 = ((*_FLOATS, *(-number for number in _FLOATS)), _NORMAL_FLOATS)


def matmul_n_bits(b: Builder) -> _Results:
    """MatMul with the stored weights that packed integers of a few bits stand for."""
    if b.attribute("weight_prepacked", 0):
        raise NotApplicable("weights packed for another library")
    arrays = stored(*(b.optional(index) for index in range(1, 5)))
    if arrays is None:
        raise NotApplicable("weights that are computed")
    packed, scales, zeros, order = arrays
    if packed is None or scales is None:
        raise NotApplicable("no weights")
    if zeros is not None and order is not None:
        raise NotApplicable("zero points and g_idx, of which ONNX Runtime drops the former")
    bits, block = b.attribute("bits", 4), b.attribute("block_size")
    rows, columns = b.attribute("N"), b.attribute("K")
    blocks = -(-columns // block)
    numbers = unpacked(packed.reshape(rows, -1), bits)[:, :columns]
    scales = scales.reshape(rows, blocks)
    if zeros is None:
        zeros = np.full((rows, blocks), 1 << (bits - 1), np.uint8)
    elif zeros.dtype == np.uint8:
        zeros = unpacked(zeros.reshape(rows, -1), bits)[:, :blocks]
    zeros = zeros.reshape(rows, blocks)
    if order is None and zeros.dtype == np.uint8:
        wide = scales.astype(np.float32)
        operands = (b.constant(np.ascontiguousarray(a)) for a in (numbers, wide, zeros))
        weight = b.op("DequantizeLinear", *operands, axis=1, block_size=block)
        if scales.dtype != np.float32:
            weight = b.cast(weight, ir.DataType.from_numpy(scales.dtype))
    else:
        # Which block's scale each column has: the columns may have been sorted (g_idx).
        groups = np.arange(columns) // block if order is None else order[:columns]
        floats = numbers.astype(np.float32) - zeros[:, groups].astype(np.float32)
        floats *= scales[:, groups].astype(np.float32)
        weight = b.constant(floats.astype(scales.dtype))
    data = b.input(0)
    is_exact = order is None and zeros.dtype == np.uint8 and scales.dtype == np.float32
    if b.attribute("accuracy_level", 0) == _INTEGER_PRODUCTS and is_exact and bits == 4:
        data = _rounded_in_blocks(b, data, columns, block)
    result = b.op("MatMul", data, b.op("Transpose", weight, perm=[1, 0]))
    return [result if b.optional(5) is None else b.op("Add", result, b.input(5))]


# What ``accuracy_level`` says then.
_INTEGER_PRODUCTS = 4
# Of blocks of fewer, the bytes would not fill the vectors that round them.
_BLOCKS_OF = 16
# In blocks without a larger number, all become zeros.
_SMALLEST = 1e-30


def _rounded_in_blocks(b: Builder, data: ir.Value, columns: int, block: int) -> ir.Value:
    """Rows in which the largest number of each block stands for 127, and others for whole ones."""
    if columns % block or block % _BLOCKS_OF:
        return data
    shape = b.constant(np.array([-1, columns // block, block], np.int64))
    blocks = b.op("Reshape", data, shape)
    axes = b.constant(np.array([-1], np.int64))
    largest = b.op("ReduceMax", b.op("Abs", blocks), axes, keepdims=1)
    most, steps = (b.constant(np.array(n, np.float32)) for n in (127, 1 / 127))
    smallest = b.constant(np.array(_SMALLEST, np.float32))
    factor = b.op("Div", most, b.op("Max", largest, smallest))
    numbers = b.op("Round", b.op("Mul", blocks, factor))
    rounded = b.op("Mul", numbers, b.op("Mul", largest, steps))
    return b.op("Reshape", rounded, b.op("Shape", data))


def matmul_bnb4(b: Builder) -> _Results:
    """MatMul with stored weights of 4 bits as bitsandbytes writes them, block by block."""
    arrays = stored(b.input(1), b.input(2))
    packed, largest = arrays or (None, None)
    if packed is None or largest is None:
        raise NotApplicable("weights that are computed")
    rows, columns = b.attribute("N"), b.attribute("K")
    # The first number of a byte is in its upper bits.
    places = np.stack([packed.reshape(-1) >> 4, packed.reshape(-1) & 15], 1).reshape(-1)
    numbers = np.array(_BNB4[b.attribute("quant_type")], np.float32)[places[: rows * columns]]
    factors = np.repeat(largest.astype(np.float32), b.attribute("block_size"))[: numbers.size]
    weight = (numbers * factors).reshape(rows, columns).astype(largest.dtype)
    weight = weight.T if b.attribute("transB", 1) else weight.reshape(columns, rows)
    return [b.op("MatMul", b.input(0), b.constant(np.ascontiguousarray(weight)))]


def gather_block_quantized(b: Builder) -> _Results:
    """Gather from the stored weights that integers or narrow floats stand for, block by block."""
    arrays = stored(b.input(0), b.input(2), b.optional(3))
    if arrays is None:
        raise NotApplicable("weights that are computed")
    data, scales, zeros = arrays
    if data is None or scales is None:
        raise NotApplicable("no weights")
    offset: np.ndarray | float = 0.0 if zeros is None else zeros
    if data.dtype == np.uint8:
        data, offset = _unpacked_table(b, data, scales, zeros)
    axis = b.attribute("quantize_axis", 1)
    # A block of 0 elements is the whole axis.
    block = b.attribute("block_size", 128) or max(data.shape[axis], 1)
    if scales.shape[axis] != -(-data.shape[axis] // block):
        raise NotApplicable("scales for another number of blocks")
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
        raise NotApplicable("bytes that are not packed along the last axis")
    if zeros is None:
        return unpacked(data, bits), float(1 << (bits - 1))
    return unpacked(data, bits), unpacked(zeros, bits)[..., : scales.shape[-1]]


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The integers of each row, the first one in the lowest bits of its byte."""
    if bits not in (2, 4, 8):
        raise NotApplicable(f"{bits} bits")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    split = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return split.reshape(*packed.shape[:-1], -1)

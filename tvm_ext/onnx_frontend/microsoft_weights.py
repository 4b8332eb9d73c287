"""Operators of com.microsoft whose stored weights take a few bits each, in default operators.

The weights become the floats that they stand for, while compiling, and take their memory. Sums are
those of floats, also where a node asks for products of integers (``accuracy_level`` 4): ONNX
Runtime then quantises the other operand too, by blocks, so that its results differ from the
model's by some thousandths.
"""

import numpy as np
import onnx_ir as ir

from tvm_ext.onnx_frontend.microsoft_builder import Builder, CannotRewrite, stored

_Results = list[ir.Value | None]

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
        raise CannotRewrite("weights packed for another library")
    arrays = stored(*(b.optional(index) for index in range(1, 5)))
    if arrays is None:
        raise CannotRewrite("weights that are computed")
    packed, scales, zeros, order = arrays
    if packed is None or scales is None:
        raise CannotRewrite("no weights")
    if zeros is not None and order is not None:
        raise CannotRewrite("zero points and g_idx, of which ONNX Runtime drops the former")
    bits, block = b.attribute("bits", 4), b.attribute("block_size")
    rows, columns = b.attribute("N"), b.attribute("K")
    blocks = -(-columns // block)
    # Which block's scale each column has: the columns may have been sorted (g_idx).
    groups = np.arange(columns) // block if order is None else order[:columns]
    weight = _unpacked(packed.reshape(rows, -1), bits)[:, :columns].astype(np.float32)
    if zeros is None:
        weight -= 1 << (bits - 1)
    else:
        if zeros.dtype == np.uint8:
            zeros = _unpacked(zeros.reshape(rows, -1), bits)[:, :blocks]
        weight -= zeros.reshape(rows, blocks)[:, groups].astype(np.float32)
    weight *= scales.reshape(rows, blocks)[:, groups].astype(np.float32)
    stored_weight = b.constant(np.ascontiguousarray(weight.T).astype(scales.dtype))
    result = b.op("MatMul", b.input(0), stored_weight)
    return [result if b.optional(5) is None else b.op("Add", result, b.input(5))]


def matmul_bnb4(b: Builder) -> _Results:
    """MatMul with stored weights of 4 bits as bitsandbytes writes them, block by block."""
    arrays = stored(b.input(1), b.input(2))
    packed, largest = arrays or (None, None)
    if packed is None or largest is None:
        raise CannotRewrite("weights that are computed")
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

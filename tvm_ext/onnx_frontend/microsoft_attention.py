"""Attention and MultiHeadAttention of com.microsoft in default operators.

The formulas are those of ONNX Runtime's ContribOperators.md.
"""

import math

import numpy as np
import onnx_ir as ir

from tvm_ext.onnx_frontend.microsoft_builder import Builder, CannotRewrite

_Results = list[ir.Value | None]

# What is added to the scores of keys that a mask hides, where the node does not say.
_HIDDEN = -10_000.0

# Axes of a tensor with one row for each position.
_ROWS = 3


def multi_head_attention(b: Builder) -> _Results:
    """Query, key and value with one row for each position: heads side by side."""
    if any(b.optional(index) is not None for index in (6, 7, 8, 9)) or b.used(3):
        raise CannotRewrite("keys and values of earlier runs")
    query, key, value = b.input(0), b.input(1), b.input(2)
    if _rank(query) != _ROWS or {_rank(key), _rank(value)} - {_ROWS, 4}:
        raise CannotRewrite("query, key and value in one tensor")
    depth, bias = _last(query) // b.attribute("num_heads"), b.optional(3)
    # What is added up here has no shape yet.
    ranks = [_rank(operand) for operand in (query, key, value)]
    if bias is not None:
        if set(ranks) != {_ROWS}:
            raise CannotRewrite("a bias for heads that are apart")
        sizes = [_last(operand) for operand in (query, key, value)]
        parts = _parts(b, bias, sizes, axis=0)
        pairs = zip((query, key, value), parts, strict=True)
        query, key, value = (b.op("Add", operand, part) for operand, part in pairs)
    heads = [
        _heads(b, operand) if rank == _ROWS else operand
        for operand, rank in zip((query, key, value), ranks, strict=True)
    ]
    return _attend(b, heads, depth, b.optional(4), b.optional(5))


def attention(b: Builder) -> _Results:
    """The same, with the products that make query, key and value of one input."""
    if any(b.optional(index) is not None for index in (4, 6)) or b.attribute("do_rotary", 0):
        raise CannotRewrite("keys and values of earlier runs")
    if b.used(1):
        raise CannotRewrite("keys and values for later runs")
    total = _last(b.input(1))
    sizes = list(b.attribute("qkv_hidden_sizes", ())) or [total // 3] * 3
    rows = b.op("MatMul", b.input(0), b.input(1))
    bias = b.optional(2)
    rows = rows if bias is None else b.op("Add", rows, bias)
    heads = [_heads(b, part) for part in _parts(b, rows, sizes, axis=2)]
    depth = sizes[0] // b.attribute("num_heads")
    return _attend(b, heads, depth, b.optional(3), b.optional(5))[:1]


def _attend(
    b: Builder, heads: list[ir.Value], depth: int, mask: ir.Value | None, added: ir.Value | None
) -> _Results:
    """The result, and the keys and values that a later run may start from."""
    if b.attribute("unidirectional", 0):
        raise CannotRewrite("a causal mask")
    query, key, value = heads
    scale = b.attribute("scale", 0.0) or 1 / math.sqrt(depth)
    turned = b.op("Transpose", key, perm=[0, 1, 3, 2])
    scores = b.op("Mul", b.op("MatMul", query, turned), b.number(scale))
    if mask is not None:
        scores = b.op("Add", scores, _hidden(b, mask))
    if added is not None:
        scores = b.op("Add", scores, added)
    weights = b.op("Softmax", scores, axis=-1)
    rows = b.op("Transpose", b.op("MatMul", weights, value), perm=[0, 2, 1, 3])
    return [b.op("Reshape", rows, b.constant(np.array([0, 0, -1]))), key, value]


def _hidden(b: Builder, mask: ir.Value) -> ir.Value:
    """What is added to the scores, of a mask by key, or by query and key."""
    axes = {2: [1, 2], 3: [1], 4: []}.get(_rank(mask) or 0)
    if axes is None or mask.dtype is None:
        raise CannotRewrite("a mask of lengths, or of unknown rank")
    none = b.constant(np.array(0, mask.dtype.numpy()))
    lowest = b.number(b.attribute("mask_filter_value", _HIDDEN))
    found = b.op("Where", b.op("Greater", mask, none), b.number(0), lowest)
    if not axes:
        return found
    if b.opset < 13:
        return b.op("Unsqueeze", found, axes=axes)
    return b.op("Unsqueeze", found, b.constant(np.array(axes)))


def _heads(b: Builder, rows: ir.Value) -> ir.Value:
    """Rows cut into heads: [batch, heads, positions, elements]."""
    shape = b.constant(np.array([0, 0, b.attribute("num_heads"), -1]))
    return b.op("Transpose", b.op("Reshape", rows, shape), perm=[0, 2, 1, 3])


def _parts(b: Builder, value: ir.Value, sizes: list[int], axis: int) -> list[ir.Value]:
    """A tensor cut along an axis."""
    if b.opset < 13:
        return list(b.ops("Split", len(sizes), [value], {"axis": axis, "split": sizes}))
    cuts = b.constant(np.array(sizes))
    return list(b.ops("Split", len(sizes), [value, cuts], {"axis": axis}))


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else len(value.shape)


def _last(value: ir.Value) -> int:
    size = None if value.shape is None else value.shape[-1]
    if not isinstance(size, int):
        raise CannotRewrite("the size of a row is not known")
    return size

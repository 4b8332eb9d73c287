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
ROWS = 3


def multi_head_attention(b: Builder) -> _Results:
    """Query, key and value with one row for each position: heads side by side."""
    if any(b.optional(index) is not None for index in (8, 9)) or b.used(3):
        raise CannotRewrite("beam search, or scores as a result")
    query, key, value = b.input(0), b.input(1), b.input(2)
    if rank(query) != ROWS or {rank(key), rank(value)} - {ROWS, 4}:
        raise CannotRewrite("query, key and value in one tensor")
    depth, bias = last_size(query) // b.attribute("num_heads"), b.optional(3)
    # What is added up here has no shape yet.
    ranks = [rank(operand) for operand in (query, key, value)]
    if bias is not None:
        if set(ranks) != {ROWS}:
            raise CannotRewrite("a bias for heads that are apart")
        sizes = [last_size(operand) for operand in (query, key, value)]
        parts = cut(b, bias, sizes, axis=0)
        pairs = zip((query, key, value), parts, strict=True)
        query, key, value = (b.op("Add", operand, part) for operand, part in pairs)
    heads = [
        cut_heads(b, operand, b.attribute("num_heads")) if rank == ROWS else operand
        for operand, rank in zip((query, key, value), ranks, strict=True)
    ]
    past = (b.optional(6), b.optional(7))
    heads[1:] = [
        new if old is None else b.op("Concat", old, new, axis=2)
        for old, new in zip(past, heads[1:], strict=True)
    ]
    return [_attend(b, heads, depth, b.optional(4), b.optional(5)), *heads[1:]]


def attention(b: Builder) -> _Results:
    """The same, with the products that make query, key and value of one input."""
    if b.optional(6) is not None or b.attribute("do_rotary", 0):
        raise CannotRewrite("a shared buffer of keys and values, or rotary embeddings")
    rows = b.op("MatMul", b.input(0), b.input(1))
    bias = b.optional(2)
    rows = rows if bias is None else b.op("Add", rows, bias)
    return attention_of_rows(b, rows, b.optional(3), b.optional(4), b.optional(5))


def attention_of_rows(
    b: Builder,
    rows: ir.Value,
    mask: ir.Value | None,
    past: ir.Value | None,
    added: ir.Value | None = None,
) -> _Results:
    """Attention from the products on, which hold query, key and value side by side."""
    total = last_size(b.input(1))
    sizes = list(b.attribute("qkv_hidden_sizes", ())) or [total // 3] * 3
    count = b.attribute("num_heads")
    query, *new = [cut_heads(b, part, count) for part in cut(b, rows, sizes, axis=2)]
    both: ir.Value | None = None
    if past is not None or b.used(1):
        # Keys are one half of the tensor that later runs start from, values the other.
        both = b.op("Concat", *(b.unsqueezed(half, 0) for half in new), axis=0)
    if both is not None and past is not None:
        both = b.op("Concat", past, both, axis=3)
        new = [b.op("Gather", both, b.constant(np.array(half)), axis=0) for half in (0, 1)]
    return [_attend(b, [query, *new], sizes[0] // count, mask, added), both]


def _attend(
    b: Builder, heads: list[ir.Value], depth: int, mask: ir.Value | None, added: ir.Value | None
) -> ir.Value:
    """Rows with the heads' results side by side."""
    hidden = [] if mask is None else [_hidden(b, mask, heads[1])]
    if b.attribute("unidirectional", 0):
        hidden.append(hidden_where(b, b.op("Not", _seen_causally(b, heads))))
    hidden += [] if added is None else [added]
    query, key, value = heads
    scores = scaled_scores(b, query, key, depth)
    for one in hidden:
        scores = b.op("Add", scores, one)
    return joined_heads(b, b.op("MatMul", b.op("Softmax", scores, axis=-1), value))


def scaled_scores(b: Builder, query: ir.Value, key: ir.Value, depth: int) -> ir.Value:
    """Scores of heads of ``depth`` elements, times the node's scale."""
    scale = b.attribute("scale", 0.0) or 1 / math.sqrt(depth)
    turned = b.op("Transpose", key, perm=[0, 1, 3, 2])
    return b.op("Mul", b.op("MatMul", query, turned), b.number(scale))


def joined_heads(b: Builder, heads: ir.Value) -> ir.Value:
    """[batch, heads, positions, elements] as rows: [batch, positions, all elements]."""
    rows = b.op("Transpose", heads, perm=[0, 2, 1, 3])
    return b.op("Reshape", rows, b.constant(np.array([0, 0, -1])))


def hidden_where(b: Builder, hidden: ir.Value) -> ir.Value:
    """What is added to scores so that none is left where ``hidden`` is true."""
    return b.op("Where", hidden, b.number(-math.inf), b.number(0))


def _seen_causally(b: Builder, heads: list[ir.Value]) -> ir.Value:
    """For each query and key whether the key is no later; the last query is at the last key."""
    queries, keys = (b.size(operand, 2) for operand in heads[:2])
    own = b.op("Add", b.counted(queries), b.op("Sub", keys, queries))
    return b.op("Not", b.op("Greater", b.counted(keys), b.unsqueezed(own, 1)))


def _hidden(b: Builder, mask: ir.Value, keys: ir.Value) -> ir.Value:
    """What is added to the scores, of a mask by key, by query and key, or of lengths."""
    axes = {1: [1, 2], 2: [1, 2], 3: [1], 4: []}.get(rank(mask) or 0)
    if axes is None or mask.dtype is None:
        raise CannotRewrite("a mask of unknown rank or type")
    if rank(mask) == 1:
        seen = _within(b, mask, keys)
    else:
        seen = b.op("Greater", mask, b.constant(np.array(0, mask.dtype.numpy())))
    lowest = b.number(b.attribute("mask_filter_value", _HIDDEN))
    found = b.op("Where", seen, b.number(0), lowest)
    return b.unsqueezed(found, *axes) if axes else found


def _within(b: Builder, limits: ir.Value, keys: ir.Value) -> ir.Value:
    """Whether a key lies before its sequence's end, and, where those follow, at its start or after.

    ``limits`` holds the ends of all sequences, then perhaps their starts.
    """
    (count,) = limits.shape or (None,)
    batch = None if b.input(0).shape is None else b.input(0).shape[0]
    place = b.cast(b.counted(b.size(keys, 2)), ir.DataType.INT32)
    # Exporters write ends alone; names of the two sizes may differ although they are the same.
    if count == batch or (limits.shape is not None and not isinstance(count, int)):
        return b.op("Less", place, b.unsqueezed(limits, 1))
    if not isinstance(batch, int) or count != 2 * batch:
        raise CannotRewrite("limits of keys that are not one or two a sequence")
    ends, starts = (b.unsqueezed(part, 1) for part in cut(b, limits, [batch, batch], axis=0))
    return b.op("And", b.op("Less", place, ends), b.op("Not", b.op("Less", place, starts)))


def cut_heads(b: Builder, rows: ir.Value, count: int) -> ir.Value:
    """Rows cut into heads: [batch, heads, positions, elements]."""
    shape = b.constant(np.array([0, 0, count, -1]))
    return b.op("Transpose", b.op("Reshape", rows, shape), perm=[0, 2, 1, 3])


def cut(b: Builder, value: ir.Value, sizes: list[int], axis: int) -> list[ir.Value]:
    """A tensor cut along an axis."""
    if b.opset < 13:
        return list(b.ops("Split", len(sizes), [value], {"axis": axis, "split": sizes}))
    cuts = b.constant(np.array(sizes))
    return list(b.ops("Split", len(sizes), [value, cuts], {"axis": axis}))


def rank(value: ir.Value) -> int | None:
    """Axes of a tensor, None where they are not known."""
    return None if value.shape is None else len(value.shape)


def last_size(value: ir.Value) -> int:
    """Elements of a row."""
    size = None if value.shape is None else value.shape[-1]
    if not isinstance(size, int):
        raise CannotRewrite("the size of a row is not known")
    return size

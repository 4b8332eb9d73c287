"""GroupQueryAttention of com.microsoft in default operators: the attention of language models.

The formula is that of ONNX Runtime's ContribOperators.md: several heads of the query share one of
the keys and values; new keys and values follow those of earlier runs, a query sees no later key.
"""

import numpy as np
import onnx_ir as ir

from tvm_ext.onnx_frontend.microsoft_attention import (
    cut,
    cut_heads,
    hidden_where,
    joined_heads,
    last_size,
    scaled_scores,
)
from tvm_ext.onnx_frontend.microsoft_builder import Builder, CannotRewrite
from tvm_ext.onnx_frontend.microsoft_rotary import rotated


def group_query_attention(b: Builder) -> list[ir.Value | None]:
    """The result, and the keys and values for later runs.

    The tensors with keys and values of earlier runs have no room for new ones: the results are
    longer by as many positions as the query has.
    """
    _refuse(b)
    count, shared = b.attribute("num_heads"), b.attribute("kv_num_heads")
    query, key, value, depth = _operands(b, count, shared)
    past = b.optional(3)
    before = _positions_before(b, b.input(5), b.size(b.input(0), 1), past)
    own = b.op("Add", before, b.unsqueezed(b.counted(b.size(b.input(0), 1)), 0))
    if b.attribute("do_rotary", 0):
        positions = own if b.optional(9) is None else b.input(9)
        caches = (b.input(7), b.input(8))
        query, key = (
            rotated(b, heads, depth, positions, caches, "rotary_interleaved")
            for heads in (query, key)
        )
    if past is not None:
        key = _appended(b, past, key, before)
        value = _appended(b, b.input(4), value, before)
    scores = _capped(b, scaled_scores(b, query, _repeated(b, key, count, depth), depth))
    scores = b.op("Add", scores, _hidden(b, own, b.size(key, 2)))
    if b.optional(10) is not None:
        scores = b.op("Add", scores, b.input(10))
    weights = b.op("Softmax", scores, axis=-1)
    result = b.op("MatMul", weights, _repeated(b, value, count, depth))
    return [joined_heads(b, result), key, value]


def _refuse(b: Builder) -> None:
    if b.attribute("smooth_softmax", 0) > 0 or b.optional(11) is not None:
        raise CannotRewrite("a sink of the softmax")
    if b.attribute("qk_output", 0) or b.used(3):
        raise CannotRewrite("scores as a result")
    if any(b.attribute(f"{of}_quant_type", "NONE") not in ("NONE", b"NONE") for of in "kv"):
        raise CannotRewrite("quantised keys and values")


def _operands(b: Builder, count: int, shared: int) -> tuple[ir.Value, ir.Value, ir.Value, int]:
    """Heads of query, key and value, and the elements of each."""
    rows = b.input(0)
    if b.optional(1) is not None:
        parts, depth = [rows, b.input(1), b.input(2)], last_size(rows) // count
    else:
        depth = last_size(rows) // (count + 2 * shared)
        parts = cut(b, rows, [count * depth, shared * depth, shared * depth], axis=2)
    counts = (count, shared, shared)
    query, key, value = (cut_heads(b, p, n) for p, n in zip(parts, counts, strict=True))
    return query, key, value, depth


def _positions_before(
    b: Builder, lengths: ir.Value, new: ir.Value, past: ir.Value | None
) -> ir.Value:
    """How many keys of earlier runs each sequence has, [batch, 1]; ``lengths`` is one below all.

    Shorter sequences of a first run are filled up behind: none has any.
    """
    column = b.op("Reshape", b.cast(lengths, ir.DataType.INT64), b.constant(np.array([-1, 1])))
    if past is None:
        return b.op("Sub", column, column)
    one = b.constant(np.array(1))
    before = b.op("Sub", b.op("Add", column, one), new)
    none = b.constant(np.array(0))
    least = b.op("Where", b.op("Greater", before, none), before, none)
    most = b.size(past, 2)
    return b.op("Where", b.op("Greater", least, most), most, least)


def _appended(b: Builder, past: ir.Value, new: ir.Value, before: ir.Value) -> ir.Value:
    """Keys of earlier runs and new ones behind the last that a sequence has of those."""
    both = b.op("Concat", past, new, axis=2)
    if past.shape is not None and past.shape[0] == 1:
        return both
    # By position and sequence: its own earlier ones, its new ones, then what is hidden anyway.
    most = b.size(past, 2)
    at = b.unsqueezed(b.counted(b.size(both, 2)), 0)
    moved = b.op("Sub", b.op("Add", at, most), before)
    last = b.op("Sub", b.size(both, 2), b.constant(np.array(1)))
    moved = b.op("Where", b.op("Greater", moved, last), last, moved)
    source = b.op("Where", b.op("Greater", before, at), at, moved)
    rows = b.op("Transpose", both, perm=[0, 2, 1, 3])
    found = b.op("GatherND", rows, b.unsqueezed(source, 2), batch_dims=1)
    return b.op("Transpose", found, perm=[0, 2, 1, 3])


def _repeated(b: Builder, heads: ir.Value, count: int, depth: int) -> ir.Value:
    """Each head of keys or values as often as heads of the query share it."""
    times = count // b.attribute("kv_num_heads")
    if times == 1:
        return heads
    shape = b.constant(np.array([1, 1, times, 1, 1]))
    repeated = b.op("Expand", b.unsqueezed(heads, 2), shape)
    return b.op("Reshape", repeated, b.constant(np.array([0, count, -1, depth])))


def _capped(b: Builder, scores: ir.Value) -> ir.Value:
    cap = b.attribute("softcap", 0.0)
    if not cap:
        return scores
    return b.op("Mul", b.op("Tanh", b.op("Div", scores, b.number(cap))), b.number(cap))


def _hidden(b: Builder, own: ir.Value, keys: ir.Value) -> ir.Value:
    """What is added to scores [batch, heads, queries, keys], by the queries' own positions."""
    at, query = b.counted(keys), b.unsqueezed(own, 2)
    hidden = b.op("Greater", at, query)
    window = b.attribute("local_window_size", -1)
    if window > 0:
        behind = b.op("Sub", query, b.constant(np.array(window - 1)))
        hidden = b.op("Or", hidden, b.op("Greater", behind, at))
    return b.unsqueezed(hidden_where(b, hidden), 1)

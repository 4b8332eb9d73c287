"""Attention of com.microsoft in default operators: multi-head, grouped-query, rotary embedding."""

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.onnx_frontend.microsoft.builder import Builder
from tvm_ext.onnx_frontend.onnx_graph import INTERNAL

_Results = list[ir.Value | None]

# What is added to the scores of keys that a mask hides, where the node does not say.
_HIDDEN = -10_000.0

# Axes of a tensor with one row for each position.
ROWS = 3


def multi_head_attention(b: Builder) -> _Results:
    """Query, key and value with one row for each position: heads side by side."""
    if any(b.optional(index) is not None for index in (8, 9)) or b.used(3):
        raise NotApplicable("beam search, or scores as a result")
    query, key, value = b.input(0), b.input(1), b.input(2)
    if rank(query) != ROWS or {rank(key), rank(value)} - {ROWS, 4}:
        raise NotApplicable("query, key and value in one tensor")
    depth, bias = last_size(query) // b.attribute("num_heads"), b.optional(3)
    # What is added up here has no shape yet.
    ranks = [rank(operand) for operand in (query, key, value)]
    as_many = _positions(query) == _positions(key) is not None
    if bias is not None:
        if set(ranks) != {ROWS}:
            raise NotApplicable("a bias for heads that are apart")
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
    first = None
    if not as_many:
        first = b.constant(np.array(0)) if past[0] is None else b.size(past[0], 2)
    return [_attend(b, heads, depth, b.optional(4), b.optional(5), first), *heads[1:]]


def _positions(operand: ir.Value) -> int | str | None:
    """How many of them rows or heads have: a number or a name, None where neither is known."""
    if operand.shape is None:
        return None
    size = operand.shape[1 if rank(operand) == ROWS else 2]
    return size if isinstance(size, int) else size.value


def attention(b: Builder) -> _Results:
    """The same, with the products that make query, key and value of one input."""
    if b.optional(6) is not None or b.attribute("do_rotary", 0):
        raise NotApplicable("a shared buffer of keys and values, or rotary embeddings")
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
    b: Builder,
    heads: list[ir.Value],
    depth: int,
    mask: ir.Value | None,
    added: ir.Value | None,
    first: ir.Value | None = None,
) -> ir.Value:
    """Rows with the heads' results side by side; ``first``: see ``_seen_causally``."""
    hidden = [] if mask is None else [_hidden(b, mask, heads[1])]
    if b.attribute("unidirectional", 0):
        hidden.append(hidden_where(b, b.op("Not", _seen_causally(b, heads, first))))
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


def _seen_causally(b: Builder, heads: list[ir.Value], first: ir.Value | None) -> ir.Value:
    """For each query and key whether the key is no later.

    The last query is at the last key. Or the first query is at the key ``first``, where new keys
    may be more or fewer than queries: ONNX Runtime lets the last query see all keys then as well.
    """
    queries, keys = (b.size(operand, 2) for operand in heads[:2])
    start = b.op("Sub", keys, queries) if first is None else first
    own = b.op("Add", b.counted(queries), start)
    seen = b.op("Not", b.op("Greater", b.counted(keys), b.unsqueezed(own, 1)))
    if first is None:
        return seen
    last = b.op("Equal", b.counted(queries), b.op("Sub", queries, b.constant(np.array(1))))
    return b.op("Or", seen, b.unsqueezed(last, 1))


def _hidden(b: Builder, mask: ir.Value, keys: ir.Value) -> ir.Value:
    """What is added to the scores, of a mask by key, by query and key, or of lengths."""
    axes = {1: [1, 2], 2: [1, 2], 3: [1], 4: []}.get(rank(mask) or 0)
    if axes is None or mask.dtype is None:
        raise NotApplicable("a mask of unknown rank or type")
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
        raise NotApplicable("limits of keys that are not one or two a sequence")
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
        raise NotApplicable("the size of a row is not known")
    return size


# RotaryEmbedding of com.microsoft in default operators.
#
# The formula is that of ONNX Runtime's ContribOperators.md (Su et al., "RoFormer", 2021): pairs
# of elements of a head are turned by an angle that grows with the position.


def rotary_embedding(b: Builder) -> list[ir.Value | None]:
    """Of rows [batch, positions, elements], or of heads [batch, heads, positions, elements]."""
    x, positions = b.input(0), b.input(1)
    if rank(positions) == 1:
        steps = b.counted(b.size(x, 1 if rank(x) == ROWS else 2))
        positions = b.unsqueezed(b.op("Add", steps, positions), 0)

    def turned(heads: ir.Value, depth: int) -> ir.Value:
        return rotated(b, heads, depth, positions, (b.input(2), b.input(3)))

    return _by_head(b, turned)


def multimodal_rotary_embedding(b: Builder) -> list[ir.Value | None]:
    """The same with three positions of each element: in time, in height and in width.

    ``mrope_section`` says how many angles are of each, and ``mrope_layout`` in which order.
    """
    counts = [int(count) for count in b.required("mrope_section")]
    half = sum(counts)
    kinds = np.repeat(np.arange(len(counts)), counts)
    if b.attribute("mrope_layout", 0):
        kinds = np.zeros(half, np.int64)
        for kind in (1, 2):
            kinds[kind : 3 * counts[kind] : 3] = kind
    angles = [_of_kinds(b, b.input(cache), kinds) for cache in (2, 3)]

    def turned(heads: ir.Value, depth: int) -> ir.Value:
        return _turned(b, heads, (depth, half), (angles[0], angles[1]), "interleaved")

    return _by_head(b, turned)


def _of_kinds(b: Builder, cache: ir.Value, kinds: np.ndarray) -> ir.Value:
    """Cosines or sines, each of them by the position of its kind."""
    rows = b.op("Gather", cache, b.input(1), axis=0)
    mixed, *others = (b.op("Gather", rows, b.constant(np.array(k)), axis=0) for k in range(3))
    for kind, one in enumerate(others, 1):
        mixed = b.op("Where", b.constant(kinds == kind), one, mixed)
    return b.unsqueezed(mixed, 1)


def _by_head(b: Builder, turned: Callable[[ir.Value, int], ir.Value]) -> list[ir.Value | None]:
    """What ``turned`` makes of the heads of the first input and their depth, as that input is."""
    x = b.input(0)
    if b.attribute("scale", 1.0) != 1 or b.attribute("is_packed_batching", 0):
        raise NotApplicable("a scale, or sequences side by side")
    if rank(x) == 4:
        return [turned(x, last_size(x))]
    if rank(x) != ROWS:
        raise NotApplicable("the rank of its input is not known")
    count = b.attribute("num_heads", 0) or last_size(x) // (2 * last_size(b.input(2)))
    depth = last_size(x) // count
    shape = b.constant(np.array([0, 0, count, depth]))
    heads = b.op("Transpose", b.op("Reshape", x, shape), perm=[0, 2, 1, 3])
    return [joined_heads(b, turned(heads, depth))]


def rotated(
    b: Builder,
    heads: ir.Value,
    depth: int,
    positions: ir.Value,
    caches: tuple[ir.Value, ir.Value],
    interleaved: str = "interleaved",
) -> ir.Value:
    """Heads [batch, heads, positions, depth] turned by the angles of their positions.

    ``caches``: cosine and sine by position, for half as many elements as are turned; the rest stays
    as it is. ``interleaved``: the attribute that says whether neighbours are a pair, not halves.
    """
    cosine, sine = (b.unsqueezed(b.op("Gather", c, positions, axis=0), 1) for c in caches)
    return _turned(b, heads, (depth, last_size(caches[0])), (cosine, sine), interleaved)


def _turned(
    b: Builder,
    heads: ir.Value,
    depths: tuple[int, int],
    angles: tuple[ir.Value, ir.Value],
    interleaved: str,
) -> ir.Value:
    """Heads turned by angles [batch, 1, positions, half]; ``depths``: of the heads, and half."""
    (depth, half), (cosine, sine) = depths, angles
    turning, rest = heads, []
    if 2 * half < depth:
        turning, *rest = cut(b, heads, [2 * half, depth - 2 * half], axis=3)
    is_interleaved = b.attribute(interleaved, 0)
    if is_interleaved:
        # Pairs become halves for the time being.
        turning = _regrouped(b, turning, [half, 2])
    first, second = cut(b, turning, [half, half], axis=3)
    parts = [
        b.op("Sub", b.op("Mul", first, cosine), b.op("Mul", second, sine)),
        b.op("Add", b.op("Mul", first, sine), b.op("Mul", second, cosine)),
    ]
    if is_interleaved:
        parts = [_regrouped(b, b.op("Concat", *parts, axis=3), [2, half])]
    return b.op("Concat", *parts, *rest, axis=3) if len(parts) + len(rest) > 1 else parts[0]


def _regrouped(b: Builder, x: ir.Value, shape: list[int]) -> ir.Value:
    """The last axis as a matrix of ``shape``, turned."""
    matrix = b.op("Reshape", x, b.constant(np.array([0, 0, 0, *shape])))
    turned = b.op("Transpose", matrix, perm=[0, 1, 2, 4, 3])
    return b.op("Reshape", turned, b.constant(np.array([0, 0, 0, shape[0] * shape[1]])))


# GroupQueryAttention of com.microsoft in default operators: the attention of language models.
#
# The formula is that of ONNX Runtime's ContribOperators.md: several heads of the query share one
# of the keys and values; new keys and values follow those of earlier runs, a query sees no later
# key.


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
    scores = b.op("Add", scores, _hidden_from(b, own, b.size(key, 2)))
    if b.optional(10) is not None:
        scores = b.op("Add", scores, b.input(10))
    weights = _weights_beside_sink(b, scores, count)
    result = b.op("MatMul", weights, _repeated(b, value, count, depth))
    return [joined_heads(b, result), key, value]


def _weights_beside_sink(b: Builder, scores: ir.Value, count: int) -> ir.Value:
    """The softmax of the scores and of a score by head that has no value, 0 for a smooth one."""
    sink = b.optional(11)
    if sink is None and b.attribute("smooth_softmax", 0) <= 0:
        return b.op("Softmax", scores, axis=-1)
    if sink is None:
        sink = b.op("Expand", b.number(0), b.constant(np.array([count])))
    one, none, last = (b.constant(np.array([place])) for place in (1, 0, -1))
    sizes = b.op("Concat", b.op("Shape", scores, start=0, end=3), one, axis=0)
    column = b.op("Expand", b.unsqueezed(sink, 1, 2), sizes)
    both = b.op("Softmax", b.op("Concat", scores, column, axis=3), axis=3)
    return b.op("Slice", both, none, last, b.constant(np.array([3])))


def _refuse(b: Builder) -> None:
    if b.attribute("qk_output", 0) or b.used(3):
        raise NotApplicable("scores as a result")
    if any(b.attribute(f"{of}_quant_type", "NONE") not in ("NONE", b"NONE") for of in "kv"):
        raise NotApplicable("quantised keys and values")


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
    if past.shape is not None and past.shape[0] == 1:
        return b.op("Concat", past, new, axis=2)
    held = b.op("Reshape", before, b.constant(np.array([-1])))
    found = b.op("AppendRows", past, new, held, domain=INTERNAL, axis=2)
    if past.shape is not None and new.dtype is not None:
        found.type = ir.TensorType(new.dtype)
        found.shape = ir.Shape([*past.shape[:2], None, *past.shape[3:]])
    return found


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


def _hidden_from(b: Builder, own: ir.Value, keys: ir.Value) -> ir.Value:
    """What is added to scores [batch, heads, queries, keys], by the queries' own positions."""
    at, query = b.counted(keys), b.unsqueezed(own, 2)
    hidden = b.op("Greater", at, query)
    window = b.attribute("local_window_size", -1)
    if window > 0:
        behind = b.op("Sub", query, b.constant(np.array(window - 1)))
        hidden = b.op("Or", hidden, b.op("Greater", behind, at))
    return b.unsqueezed(hidden_where(b, hidden), 1)

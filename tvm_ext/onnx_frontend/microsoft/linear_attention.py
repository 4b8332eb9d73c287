"""Linear attention of com.microsoft, whose state is a matrix for each head, as a Scan over tokens.

Each token multiplies the state by its decay, adds the product of its key and what its value adds,
and reads the state with its query. The formulas are those of ONNX Runtime's ContribOperators.md:
Qwen3-Next, Kimi Linear, RWKV and Mamba-like models are exported with these operators.
"""

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.onnx_frontend.microsoft.attention import last_size, rank
from tvm_ext.onnx_frontend.microsoft.builder import Builder, type_of
from tvm_ext.onnx_frontend.microsoft.fused import over_root_mean_square

_Results = list[ir.Value | None]
_FLOAT = ir.DataType.FLOAT
# Rules with a decay, and rules that take away what the state gives for a key already.
_DECAYING, _CORRECTING = ("gated", "gated_delta"), ("delta", "gated_delta")
_RULES = ("linear", *_DECAYING, *_CORRECTING)
# Added to the squared length of queries and keys before they are divided by it.
_LENGTH_EPSILON = 1e-6
# The first operator set whose Scan has the batch as one axis of many.
_SCAN_OPSET = 11


@dataclass(frozen=True)
class _Heads:
    """How many heads of queries, keys and values there are, and the lengths of the last two."""

    queries: int
    keys: int
    values: int
    key_length: int
    value_length: int


def linear_attention(b: Builder) -> _Results:
    """Queries, keys and values of all heads side by side: ``[batch, tokens, heads * length]``."""
    if b.attribute("state_window", 0):
        raise NotApplicable("the states of several tokens (state_window)")
    query, key, value = b.input(0), b.input(1), b.input(2)
    queries, values = b.required("q_num_heads"), b.required("kv_num_heads")
    length = last_size(query) // queries
    heads = _Heads(queries, last_size(key) // length, values, length, last_size(value) // values)
    past, decay, beta = b.optional(3), b.optional(4), b.optional(5)
    operands = [
        _cut(b, query, queries),
        _cut(b, key, heads.keys),
        _cut(b, value, values),
        None if decay is None else _cut(b, decay, values),
        None if beta is None else _cut(b, beta, last_size(beta)),
    ]
    given = type_of(query)
    state = _no_state(b, query, heads) if past is None else b.cast(past, _FLOAT)
    made, state = _scanned(b, heads, operands, state)
    rows = b.op("Reshape", made, b.constant(np.array([0, 0, -1])))
    return [b.cast(rows, given), b.cast(state, given if past is None else type_of(past))]


def gated_delta_net(b: Builder) -> _Results:
    """The same with axes for heads, the axes of the state exchanged, and gates computed inside."""
    query, key, value, past = b.input(0), b.optional(1), b.optional(2), b.optional(6)
    if key is None or value is None:
        raise NotApplicable("query, key and value in one tensor")
    if b.optional(3) is not None:
        raise NotApplicable("sequences of several lengths in one tensor (cu_seqlens)")
    if b.attribute("state_update_capacity", 0) or b.used(2):
        raise NotApplicable("the changes of the state as a result (state_update)")
    if past is None and rank(query) != 4:
        raise NotApplicable("neither a state nor an axis for the batch")
    heads = _Heads(
        _size(query, -2), _size(key, -2), _size(value, -2), last_size(query), last_size(value)
    )
    batch = None if rank(query) == 4 else past
    rows = [_batched(b, one, batch, 4) for one in (query, key, value)]
    if b.attribute("qk_l2_norm", 0):
        rows[:2] = [_of_length_one(b, one) for one in rows[:2]]
    decay, beta = b.optional(4), b.optional(5)
    beta = None if beta is None else _batched(b, beta, batch, 3)
    if beta is not None:
        beta = b.op("Sigmoid", beta) if b.attribute("beta_activation", "none") != "none" else beta
        beta = b.unsqueezed(beta, 3)
    decay = None if decay is None else _decay(b, decay, batch, heads)
    state = _no_state(b, rows[0], heads) if past is None else b.cast(past, _FLOAT)
    state = state if past is None else b.op("Transpose", state, perm=[0, 1, 3, 2])
    made, state = _scanned(b, heads, [*rows, decay, beta], state)
    like = b.op("Shape", value)
    sizes = b.op(
        "Concat", b.sliced(like, 0, -2), b.constant(np.array([-1, heads.value_length])), axis=0
    )
    out = b.cast(b.op("Reshape", made, sizes), type_of(query))
    return [out, b.op("Transpose", state, perm=[0, 1, 3, 2])]


def linear_attention_gate(b: Builder) -> _Results:
    """``decay_scale * softplus(a + dt_bias)``, and the sigmoid of another input."""
    kind, rates = type_of(b.input(0)), b.optional(3)
    shifted = b.op("Add", b.cast(b.input(0), _FLOAT), b.input(1))
    decay = b.op("Mul", b.op("Softplus", shifted), b.input(2))
    beta = None if rates is None else b.cast(b.op("Sigmoid", b.cast(rates, _FLOAT)), kind)
    return [b.cast(decay, kind), beta]


def gated_rms_norm(b: Builder) -> _Results:
    """Groups of a row divided by their root mean square, times a scale and an activated gate."""
    kind, group = type_of(b.input(0)), last_size(b.input(1))
    sizes = b.op("Shape", b.input(0))
    x, scale, gate = (b.cast(b.input(index), _FLOAT) for index in range(3))
    groups = b.op("Concat", b.sliced(sizes, 0, -1), b.constant(np.array([-1, group])), axis=0)
    x, gate = b.op("Reshape", x, groups), b.op("Reshape", gate, groups)
    normed = over_root_mean_square(b, x, b.float32(b.attribute("epsilon", 1e-6)))
    opened = b.op("Sigmoid", gate)
    if b.attribute("activation", "silu") in ("silu", "swish"):
        opened = b.op("Mul", gate, opened)
    made = b.op("Mul", b.op("Mul", normed, scale), opened)
    return [b.cast(b.op("Reshape", made, sizes), kind)]


def _scanned(
    b: Builder, heads: _Heads, operands: list[ir.Value | None], state: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """What all tokens give, ``[batch, tokens, heads, length]``, and the last state.

    ``operands`` are query, key, value, decay and beta, with axes for batch, tokens and heads.
    """
    rule = b.attribute("update_rule", "gated_delta")
    if rule not in _RULES or b.opset < _SCAN_OPSET:
        raise NotApplicable(f"update rule {rule} in a model of opset {b.opset}")
    names = ["query", "key", "value"]
    names += ["decay"] * (rule in _DECAYING) + ["beta"] * (rule in _CORRECTING)
    given = {
        name: one
        for name, one in zip(("query", "key", "value", "decay", "beta"), operands, strict=True)
        if name in names and one is not None
    }
    if list(given) != names:
        raise NotApplicable(f"update rule {rule} without a decay or without beta")
    given = {name: b.cast(one, _FLOAT) for name, one in given.items()}
    given["key"] = _for_values(b, given["key"], heads.keys, heads)
    query = _for_values(b, given["query"], heads.queries, heads)
    # The query heads of a head of keys and values stand beside each other.
    shared = b.constant(np.array([0, 0, heads.values, -1, heads.key_length]))
    factor = b.float32(b.attribute("scale", 0.0) or 1 / math.sqrt(heads.key_length))
    given["query"] = b.op("Mul", b.op("Reshape", query, shared), factor)
    attributes = {
        "body": _token(b, names, heads),
        "num_scan_inputs": len(names),
        "scan_input_axes": [1] * len(names),
    }
    last, made = b.ops("Scan", 2, [state, *given.values()], attributes)
    made = b.op("Transpose", made, perm=[1, 0, 2, 3, 4])
    rows = b.constant(np.array([0, 0, -1, heads.value_length]))
    return b.op("Reshape", made, rows), last


def _token(b: Builder, names: list[str], heads: _Heads) -> ir.Graph:
    """What one token does: the new state, and what its query reads of it."""
    inner = b.inside("token")
    given = {name: inner.argument(name, _FLOAT) for name in ("state", *names)}
    state, key, added = given["state"], given["key"], given["value"]
    if "decay" in given:
        state = inner.op("Mul", state, inner.unsqueezed(inner.op("Exp", given["decay"]), 3))
    if "beta" in given:
        known = inner.op("MatMul", inner.unsqueezed(key, 2), state)
        sizes = inner.constant(np.array([0, heads.values, heads.value_length]))
        left = inner.op("Sub", added, inner.op("Reshape", known, sizes))
        added = inner.op("Mul", left, given["beta"])
    product = inner.op("Mul", inner.unsqueezed(key, 3), inner.unsqueezed(added, 2))
    state = inner.op("Add", state, product)
    return inner.graph([*given.values()], [state, inner.op("MatMul", given["query"], state)])


def _for_values(b: Builder, rows: ir.Value, own: int, heads: _Heads) -> ir.Value:
    """``[batch, tokens, heads, length]`` with each head as often as heads of values share it."""
    if own >= heads.values:
        return rows
    if heads.values % own:
        raise NotApplicable(f"{own} heads beside {heads.values}")
    times = b.constant(np.array([1, 1, 1, heads.values // own, 1]))
    repeated = b.op("Expand", b.unsqueezed(rows, 3), times)
    return b.op("Reshape", repeated, b.constant(np.array([0, 0, heads.values, heads.key_length])))


def _decay(b: Builder, given: ir.Value, batch: ir.Value | None, heads: _Heads) -> ir.Value:
    """The logarithm of the decay, ``[batch, tokens, heads, 1 or length of keys]``."""
    each = rank(given) == (3 if batch is not None else 4)
    decay = _batched(b, given, batch, 4 if each else 3)
    decay = decay if each else b.unsqueezed(decay, 3)
    gate = b.attribute("gate_activation", "none")
    if gate == "none":
        return decay
    sizes = b.constant(np.array([heads.values, -1]))
    rate = b.op("Exp", b.op("Reshape", b.input(7), sizes))
    shift = b.optional(8)
    decay = decay if shift is None else b.op("Add", decay, b.op("Reshape", shift, sizes))
    if gate in ("softplus", "qwen"):
        return b.op("Neg", b.op("Mul", rate, b.op("Softplus", decay)))
    bound = b.float32(b.attribute("gate_lower_bound", -5.0))
    return b.op("Mul", bound, b.op("Sigmoid", b.op("Mul", rate, decay)))


def _batched(b: Builder, rows: ir.Value, batch: ir.Value | None, axes: int) -> ir.Value:
    """In float32, with an axis for the batch, which is that of ``batch`` where it has none."""
    rows = b.cast(rows, _FLOAT)
    if batch is None:
        return rows
    sizes = [b.sliced(b.op("Shape", batch), 0, 1), b.constant(np.array([-1]))]
    kept = b.sliced(b.op("Shape", rows), 1, axes)
    return b.op("Reshape", rows, b.op("Concat", *sizes, kept, axis=0))


def _of_length_one(b: Builder, rows: ir.Value) -> ir.Value:
    square = b.unsqueezed(b.total(b.op("Mul", rows, rows), 3), 3)
    return b.op("Div", rows, b.op("Sqrt", b.op("Add", square, b.float32(_LENGTH_EPSILON))))


def _no_state(b: Builder, query: ir.Value, heads: _Heads) -> ir.Value:
    sizes = b.constant(np.array([heads.values, heads.key_length, heads.value_length]))
    shape = b.op("Concat", b.sliced(b.op("Shape", query), 0, 1), sizes, axis=0)
    return b.op("Expand", b.float32(0.0), shape)


def _cut(b: Builder, rows: ir.Value, count: int) -> ir.Value:
    """``[batch, tokens, heads * length]`` with an axis for heads."""
    return b.op("Reshape", rows, b.constant(np.array([0, 0, count, -1])))


def _size(value: ir.Value, axis: int) -> int:
    size = None if value.shape is None else value.shape[axis]
    if not isinstance(size, int):
        raise NotApplicable("the number of heads is not known")
    return size

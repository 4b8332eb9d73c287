"""Recognises ``softmax(masked(scale * Q K^T)) V`` around its last matmul."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from ml_dtypes import finfo
from tvm import relax

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.passes.attention_operands import (
    AttentionOperand,
    extents,
    find_operand,
    scaled_by,
    uniform_value,
)
from tvm_ext.passes.attention_sinks import AttentionSink, find_sink
from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.expressions import constant_value
from tvm_ext.tir_schedules.operators.attention import AttentionCompute, Mask

# Recognises what changes the scores between the two products of an attention.


# Of scores, by rank.
_SCORE_AXES = {3: "bqk", 4: "bhqk"}

# Between the products: masks, scales and casts.
_MAX_STEPS = 12

# A number that takes a score out as minus infinity does lies beyond this part of the type's lowest.
_HIDING = 0.5
# Beyond this number too where there is no other mask: no score of a model comes near, and what is
# left of its weight is zero. Beside keys that another mask hides as far it has a weight.
_FAR_BELOW = -1e8


def from_matmul(view: GraphView, expr: relax.Expr, steps: int = _MAX_STEPS) -> bool:
    """Whether a product is up to ``steps`` masks, scales and casts away."""
    if view.call(expr, "relax.matmul") is not None:
        return True
    names = (
        *("relax.add", "relax.where", "relax.multiply", "relax.divide"),
        *("relax.astype", "relax.tanh"),
    )
    call = view.call(expr, *names)
    if call is None or steps == 0:
        return False
    shape = extents(call)
    sides = [a for a in call.args if shape is not None and extents(a) == shape]
    return any(from_matmul(view, side, steps - 1) for side in sides)


def read_mask(view: GraphView, call: relax.Call) -> tuple[relax.Expr, Mask, relax.Expr]:
    """The scores that a call masks, the mask and its tensor.

    Raises
    ------
    NotApplicable
        It changes the scores in another way.
    """
    name = call.op.name.removeprefix("relax.")
    axes = _SCORE_AXES[call.ty.ndim]
    if name == "add":
        left, right = call.args
        if not _is_side(view, call, left):
            left, right = right, left
        return _checked(left, Mask("add", axes[len(axes) - right.ty.ndim :]), right, call)
    if name != "where":
        raise NotApplicable(f"{name} of the scores is neither a mask nor one number above zero")
    condition, kept, other = call.args
    fill = uniform_value(view, other)
    if fill is not None and _is_side(view, call, kept):
        mask = Mask("keep", axes[len(axes) - condition.ty.ndim :], fill)
        return _checked(kept, mask, condition, call)
    fill = uniform_value(view, kept)
    if fill is None or not _is_side(view, call, other):
        raise NotApplicable("what takes the place of hidden scores is not one number")
    mask = Mask("drop", axes[len(axes) - condition.ty.ndim :], fill)
    return _checked(other, mask, condition, call)


def _is_side(view: GraphView, call: relax.Call, expr: relax.Expr) -> bool:
    same = extents(expr) == extents(call)
    return same and from_matmul(view, expr)


def _checked(
    scores: relax.Expr, mask: Mask, tensor: relax.Expr, call: relax.Call
) -> tuple[relax.Expr, Mask, relax.Expr]:
    if extents(scores) != extents(call) or extents(tensor) is None:
        raise NotApplicable("the shape of a mask is not known")
    if math.isnan(mask.fill):
        raise NotApplicable("hidden scores become NaN")
    return scores, mask, tensor


def unexpanded(view: GraphView, tensor: relax.Expr) -> relax.Expr:
    """What a mask was before it was repeated to the size of the scores."""
    call = view.call(tensor, "relax.broadcast_to")
    if call is None or call.args[0].ty.ndim != tensor.ty.ndim:
        return tensor
    return call.args[0]


# A mask, its tensor, and the call that changes the scores by it.
_ReadMask = tuple[Mask, relax.Expr, relax.Call]


def causal_offset(view: GraphView, read: _ReadMask, lowest: float) -> float | None:
    """By how much a query may look ahead, when that is all a constant mask says.

    ``lowest`` and what is below it hides a key. Infinity for a mask that hides nothing; None for
    any other.
    """
    mask, tensor, call = read
    array = constant_value(view, tensor)
    if array is None or array.ndim < 2 or math.prod(array.shape[:-2]) != 1:
        return None
    array = array.reshape(array.shape[-2:])
    if mask.kind == "add":
        values = array.astype("float64")
        seen = values == 0
        if not np.all(seen | (values <= lowest)):
            return None
    else:
        seen = array.astype(bool) == (mask.kind == "keep")
        if not seen.all() and mask.fill > lowest:
            return None
    return _offset(seen, (extents(call) or [None] * call.ty.ndim)[-2])


def _offset(seen: np.ndarray, queries: object) -> float | None:
    if seen.all():
        return math.inf
    if not isinstance(queries, int) or len(seen) != queries:
        # One row is the same for all queries.
        return None
    counts = seen.sum(axis=1)
    if not counts.any():
        return None
    first = int(np.argmax(counts > 0))
    offset = int(counts[first]) - 1 - first
    # Numbers that are only very low leave a query that sees no key with a mean of all values.
    every_row_sees = first == 0
    matches = np.array_equal(seen, np.tri(len(seen), seen.shape[1], offset, dtype=bool))
    return offset if matches and every_row_sees else None


def _without_rules(
    view: GraphView, read: Sequence[_ReadMask]
) -> tuple[list[tuple[Mask, relax.Expr]], int | None]:
    """The masks but those that say how far a query looks ahead, and how far that is."""
    found: list[_ReadMask] = []
    offsets: list[float] = []

    def sort(one: _ReadMask, lowest: float) -> None:
        offset = causal_offset(view, one, lowest)
        if offset is None:
            found.append(one)
        elif offset != math.inf:
            offsets.append(offset)

    for one in read:
        sort(one, float(finfo(str(one[2].ty.dtype)).min) * _HIDING)
    if len(found) == 1:
        sort(found.pop(), _FAR_BELOW)
    masks = [(mask, unexpanded(view, tensor)) for mask, tensor, _ in found]
    return masks, int(min(offsets)) if offsets else None


# Of query, key and value, by rank.
_AXES = {3: ("bsd", "bds", "bsd"), 4: ("bhsd", "bhds", "bhsd")}

# How often the weights are used where NaN, of queries that see no key, become zeros.
_USES_WITH_NAN_CHECK = 2


@dataclass
class AttentionMatch:
    """An attention that was found.

    Attributes
    ----------
    compute : AttentionCompute
        What it computes.
    arguments : list[relax.Expr]
        Query, key, value, the masks, and the sink if there is one.
    passed : list[relax.Var]
        The variables that it replaces, in their order.
    empty_rows : relax.Expr or None
        Where the result is zero, the same for all elements of a row; none where it is None.
    """

    compute: AttentionCompute
    arguments: list[relax.Expr]
    passed: list[relax.Var]
    empty_rows: relax.Expr | None = None


@dataclass
class _Scores:
    """What stands between the products, from the weights up to the scores."""

    product: relax.Call
    scale: float
    masks: list[tuple[Mask, relax.Expr]]
    causal: int | None
    cap: float | None = None
    passed: list[relax.Var] = field(default_factory=list)


def find_attention(view: GraphView, product: relax.Call) -> AttentionMatch | None:
    """The attention that ends in the product of weights and values; None for other products.

    Raises
    ------
    NotApplicable
        It is attention in a form that is left alone.
    """
    weights = _Chain(view, [])
    softmax = weights.softmax(product.args[0])
    if softmax is None or product.args[0].ty.ndim not in _AXES:
        return None
    if int(softmax.attrs.axis) % softmax.args[0].ty.ndim != softmax.args[0].ty.ndim - 1:
        return None
    sink = weights.sink
    scores = _read_scores(view, softmax.args[0] if sink is None else sink.scores)
    if scores is None:
        return None
    query_axes, key_axes, value_axes = _AXES[product.args[0].ty.ndim]
    query = find_operand(view, scores.product.args[0], query_axes)
    key = find_operand(view, scores.product.args[1], key_axes)
    value = find_operand(view, product.args[1], value_axes)
    if value.scale != 1:
        raise NotApplicable("the values are scaled")
    compute = AttentionCompute(
        query.axes,
        key.axes,
        value.axes,
        query_axes,
        scores.scale * query.scale * key.scale,
        str(product.ty.dtype),
        _group(query, key, value),
        tuple(mask for mask, _ in scores.masks),
        scores.causal,
        weights.zero_rows,
        cap=scores.cap,
    )
    arguments = [query.value, key.value, value.value, *(tensor for _, tensor in scores.masks)]
    if sink is not None:
        tensor, axes = sink.operand(view)
        compute = replace(compute, sink=axes)
        arguments.append(tensor)
    parts = (query.passed, key.passed, scores.passed, weights.passed, value.passed)
    inner = [var for part in parts for var in reversed(part)]
    passed = [var for var in inner if view.uses(var) == 1]
    return AttentionMatch(compute, arguments, passed, weights.empty_rows)


def _group(query: AttentionOperand, key: AttentionOperand, value: AttentionOperand) -> int:
    """How many heads of the query share one of keys and values."""

    def heads(operand: AttentionOperand) -> int:
        shape = extents(operand.value)
        if shape is None:
            raise NotApplicable("a shape is not known")
        count = shape[operand.axes.index("h")] if "h" in operand.axes else 1
        if not isinstance(count, int):
            raise NotApplicable("the number of heads is symbolic")
        return count

    counts = heads(query), heads(key), heads(value)
    if counts[1] != counts[2] or counts[0] % counts[1]:
        raise NotApplicable(f"heads of query, key and value are {counts}")
    shapes = [(operand.axes, extents(operand.value) or []) for operand in (query, key, value)]
    batches = [shape[axes.index("b")] for axes, shape in shapes]
    if any(batch != batches[0] for batch in batches):
        raise NotApplicable("query, key and value are of different batches")
    group = counts[0] // counts[1]
    shared = {operand.repeats for operand in (key, value)}
    if counts[1] > 1 and shared != {group}:
        raise NotApplicable("heads are repeated in another order")
    return group


@dataclass
class _Chain:
    """Walks up values that have one user each."""

    view: GraphView
    passed: list[relax.Var]
    zero_rows: bool = False
    empty_rows: relax.Expr | None = None
    sink: AttentionSink | None = None

    def through(self, expr: relax.Expr, uses: int = 1) -> relax.Expr:
        """``expr``, noted as replaced. Raises NotApplicable when it has other users."""
        if isinstance(expr, relax.Var):
            if self.view.uses(expr) > uses:
                raise NotApplicable("the scores or the weights have another user")
            self.passed.append(expr)
        return expr

    def uncast(self, expr: relax.Expr) -> relax.Expr:
        """What was converted between floating-point types."""
        while (call := self.view.call(expr, "relax.astype")) is not None:
            if "float" not in str(call.args[0].ty.dtype):
                break
            self.passed.append(expr)
            expr = call.args[0]
        return expr

    def softmax(self, expr: relax.Expr) -> relax.Call | None:
        """The softmax behind the weights; notes which rows of it become zeros."""
        start = expr
        expr = self.uncast(expr)
        uses = 1
        where = self.view.call(expr, "relax.where")
        if where is not None:
            if uniform_value(self.view, where.args[1]) != 0 or not self._chooses_rows(where):
                return None
            self.passed.append(expr)
            uses = _USES_WITH_NAN_CHECK if self.zero_rows else 1
            expr = where.args[2]
        weights = self.uncast(expr)
        self.sink = find_sink(self.view, weights)
        softmax = self.view.call(weights, "relax.nn.softmax")
        if self.sink is not None:
            softmax = self.sink.softmax
        if softmax is not None:
            self.through(start)
            self.through(expr, uses)
        if self.sink is not None:
            self.through(self.view.value(weights).args[0])
            self.through(self.sink.both)
        return softmax

    def _chooses_rows(self, where: relax.Call) -> bool:
        """Whether a choice is made for whole rows: of those without keys, or by a condition."""
        condition, _, kept = where.args
        check = self.view.call(condition, "relax.isnan")
        if check is not None and check.args[0].same_as(kept):
            self.passed.append(condition)
            self.zero_rows = True
            return True
        if uniform_value(self.view, condition) == 0:
            return True
        shape = extents(condition)
        if not shape or shape[-1] != 1:
            return False
        self.empty_rows = condition
        return True


def _read_scores(view: GraphView, scores: relax.Expr) -> _Scores | None:
    """Masks and scales up to the product; None when no product is behind them."""
    if not from_matmul(view, scores):
        return None
    chain = _Chain(view, [])
    read: list[_ReadMask] = []
    cap: float | None = None
    scale = outer = 1.0
    expr = scores
    while (product := view.call(chain.through(expr), "relax.matmul")) is None:
        call = view.value(expr)
        if call.op.name == "relax.astype":
            expr = call.args[0]
            continue
        step = scaled_by(view, expr)
        if step is not None:
            expr, scale, outer = step[0], scale * step[1], outer * step[1]
            continue
        if call.op.name == "relax.tanh" and cap is None:
            expr, cap, scale = call.args[0], scale, 1.0
            continue
        if cap is not None:
            raise NotApplicable("scores are masked before they are capped")
        expr, mask, tensor = read_mask(view, call)
        if outer != 1 and mask.kind == "add":
            raise NotApplicable("scores are scaled after a mask is added")
        mask = Mask(mask.kind, mask.axes, mask.fill * outer)
        read.insert(0, (mask, tensor, call))
    found, causal = _without_rules(view, read)
    # What is left of the scale is that of the share of the cap.
    return _Scores(product, scale * (cap or 1.0), found, causal, cap, chain.passed)

"""Recognises ``softmax(masked(scale * Q K^T)) V`` around its last matrix product."""

import math
from dataclasses import dataclass, field

from tvm import relax

from tvm_ext.passes.attention.attention_masks import (
    causal_offset,
    from_product,
    read_mask,
    unexpanded,
)
from tvm_ext.passes.attention.attention_operands import (
    AttentionOperand,
    NotFused,
    find_operand,
    scaled_by,
    uniform_value,
)
from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.static_shape import static_shape
from tvm_ext.tir_schedules.attention_compute import AttentionCompute, Mask

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
        Query, key, value and the masks.
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
    passed: list[relax.Var] = field(default_factory=list)


def find_attention(view: GraphView, product: relax.Call) -> AttentionMatch | None:
    """The attention that ends in the product of weights and values; None for other products.

    Raises
    ------
    NotFused
        It is attention in a form that is left alone.
    """
    weights = _Chain(view, [])
    softmax = weights.softmax(product.args[0])
    if softmax is None or product.args[0].ty.ndim not in _AXES:
        return None
    if int(softmax.attrs.axis) % softmax.args[0].ty.ndim != softmax.args[0].ty.ndim - 1:
        return None
    scores = _read_scores(view, softmax.args[0])
    if scores is None:
        return None
    query_axes, key_axes, value_axes = _AXES[product.args[0].ty.ndim]
    query = find_operand(view, scores.product.args[0], query_axes)
    key = find_operand(view, scores.product.args[1], key_axes)
    value = find_operand(view, product.args[1], value_axes)
    if value.scale != 1:
        raise NotFused("the values are scaled")
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
    )
    arguments = [query.value, key.value, value.value, *(tensor for _, tensor in scores.masks)]
    parts = (query.passed, key.passed, scores.passed, weights.passed, value.passed)
    inner = [var for part in parts for var in reversed(part)]
    passed = [var for var in inner if view.uses(var) == 1]
    return AttentionMatch(compute, arguments, passed, weights.empty_rows)


def _group(query: AttentionOperand, key: AttentionOperand, value: AttentionOperand) -> int:
    """How many heads of the query share one of keys and values."""

    def heads(operand: AttentionOperand) -> int:
        shape = static_shape(operand.value)
        if shape is None:
            raise NotFused("a shape is not known or symbolic")
        return shape[operand.axes.index("h")] if "h" in operand.axes else 1

    counts = heads(query), heads(key), heads(value)
    if counts[1] != counts[2] or counts[0] % counts[1]:
        raise NotFused(f"heads of query, key and value are {counts}")
    batches = [o.value.ty.shape[o.axes.index("b")] for o in (query, key, value)]
    if len({int(batch) for batch in batches}) > 1:
        raise NotFused("query, key and value are of different batches")
    group = counts[0] // counts[1]
    shared = {operand.repeats for operand in (key, value)}
    if counts[1] > 1 and shared != {group}:
        raise NotFused("heads are repeated in another order")
    return group


@dataclass
class _Chain:
    """Walks up values that have one user each."""

    view: GraphView
    passed: list[relax.Var]
    zero_rows: bool = False
    empty_rows: relax.Expr | None = None

    def through(self, expr: relax.Expr, uses: int = 1) -> relax.Expr:
        """``expr``, noted as replaced. Raises NotFused when it has other users."""
        if isinstance(expr, relax.Var):
            if self.view.uses(expr) > uses:
                raise NotFused("the scores or the weights have another user")
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
        softmax = self.view.call(self.uncast(expr), "relax.nn.softmax")
        if softmax is not None:
            self.through(start)
            self.through(expr, uses)
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
        shape = static_shape(condition)
        if not shape or shape[-1] != 1:
            return False
        self.empty_rows = condition
        return True


def _read_scores(view: GraphView, scores: relax.Expr) -> _Scores | None:
    """Masks and scales up to the product; None when no product is behind them."""
    if not from_product(view, scores):
        return None
    chain = _Chain(view, [])
    found: list[tuple[Mask, relax.Expr]] = []
    causal: int | None = None
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
        expr, mask, tensor = read_mask(view, call)
        if outer != 1 and mask.kind == "add":
            raise NotFused("scores are scaled after a mask is added")
        mask = Mask(mask.kind, mask.axes, mask.fill * outer)
        offset = causal_offset(view, mask, tensor, str(call.ty.dtype))
        if offset is None:
            found.insert(0, (mask, unexpanded(view, tensor)))
        elif offset != math.inf:
            causal = int(offset) if causal is None else min(causal, int(offset))
    return _Scores(product, scale, found, causal, chain.passed)

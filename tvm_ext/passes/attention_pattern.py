"""Recognises ``softmax(masked(scale * Q K^T)) V`` around its last matmul."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tvm_ffi
from ml_dtypes import finfo
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.tir_schedules.operators.attention import AttentionCompute, Mask

# Queries, keys and values of an attention as they lie in memory, behind transposes and scales.


NARROW = ("float16", "bfloat16")
"""Types whose products are added up in float32, with casts to it or without."""


@dataclass(frozen=True)
class AttentionOperand:
    """``scale`` times a tensor whose axes are lettered as in ``AttentionCompute``.

    Attributes
    ----------
    value : relax.Expr
        The tensor.
    axes : str
        A letter for each of its axes.
    scale : float
        What it is multiplied by.
    repeats : int
        How often each head stands in the operand that was looked at.
    passed : tuple[relax.Var, ...]
        The variables between the tensor and that operand.
    """

    value: relax.Expr
    axes: str
    scale: float = 1.0
    repeats: int = 1
    passed: tuple[relax.Var, ...] = ()


def find_operand(view: GraphView, expr: relax.Expr, axes: str) -> AttentionOperand:
    """The tensor behind ``expr``: through transposes, scales, casts and repeated heads."""
    found = AttentionOperand(expr, axes)
    while isinstance(found.value, relax.Var):
        deeper = _one_step(view, found)
        if deeper is None:
            return found
        found = replace(deeper, passed=(*found.passed, found.value))
    return found


def _one_step(view: GraphView, operand: AttentionOperand) -> AttentionOperand | None:
    call = view.call(operand.value, "relax.permute_dims")
    if call is not None:
        rank = len(operand.axes)
        order = range(rank)[::-1] if call.attrs.axes is None else call.attrs.axes
        letters = [""] * rank
        for letter, axis in zip(operand.axes, order, strict=True):
            letters[int(axis) % rank] = letter
        return replace(operand, value=call.args[0], axes="".join(letters))
    widened = view.call(operand.value, "relax.astype")
    if widened is not None:
        narrow, wide = str(widened.args[0].ty.dtype), str(widened.ty.dtype)
        if narrow not in NARROW or wide != "float32":
            return None
        return replace(operand, value=widened.args[0])
    scaled = scaled_by(view, operand.value)
    if scaled is not None:
        return replace(operand, value=scaled[0], scale=operand.scale * scaled[1])
    return _shared_heads(view, operand)


def _shared_heads(view: GraphView, operand: AttentionOperand) -> AttentionOperand | None:
    """Through ``reshape(broadcast_to(expand_dims(x)))``, which repeats each head."""
    reshape = view.call(operand.value, "relax.reshape")
    repeated = view.call(reshape.args[0], "relax.broadcast_to") if reshape is not None else None
    if reshape is None or repeated is None or "h" not in operand.axes:
        return None
    heads = operand.axes.index("h")
    expanded = repeated.args[0]
    shape, wide = _extents(expanded), _extents(reshape.args[0])
    if shape is None or wide is None or len(wide) != len(operand.axes) + 1:
        return None
    times = wide[heads + 1]
    if not isinstance(times, int) or not isinstance(wide[heads], int):
        return None
    joined = [*wide[:heads], wide[heads] * times, *wide[heads + 2 :]]
    kept = [*shape[: heads + 1], *shape[heads + 2 :]]
    if shape[heads + 1] != 1 or joined != _extents(operand.value):
        return None
    inserted = view.call(expanded, "relax.expand_dims", "relax.reshape")
    if inserted is None or _extents(inserted.args[0]) != kept or kept[heads] != wide[heads]:
        return None
    if [*shape[:heads], *shape[heads + 2 :]] != [*wide[:heads], *wide[heads + 2 :]]:
        return None
    return replace(operand, value=inserted.args[0], repeats=operand.repeats * times)


def scaled_by(view: GraphView, expr: relax.Expr) -> tuple[relax.Expr, float] | None:
    """What is multiplied by one finite number above zero, or divided by it, and that factor."""
    call = view.call(expr, "relax.multiply", "relax.divide")
    if call is None:
        return None
    left, right = call.args
    factor = uniform_value(view, right)
    if factor is None and call.op.name == "relax.multiply":
        factor, left = uniform_value(view, left), right
    shape = _extents(expr)
    if factor is None or not 0 < factor < math.inf or shape is None or _extents(left) != shape:
        return None
    if call.op.name == "relax.divide":
        factor = 1 / factor
    return (left, factor) if math.isfinite(factor) else None


def uniform_value(view: GraphView, expr: relax.Expr) -> float | None:
    """The number that all elements of a constant are, infinities included."""
    constant = constant_array(view, expr)
    if constant is None or not constant.size or constant.dtype.kind not in "fiuVb":
        return None
    values = constant.astype("float64").reshape(-1)
    return float(values[0]) if (values == values[0]).all() else None


def constant_array(view: GraphView, expr: relax.Expr) -> np.ndarray | None:
    """The elements of a constant."""
    value = view.value(expr)
    return value.value.numpy() if isinstance(value, GenericConst) else None


# Recognises what changes the scores between the two products of an attention.


# Of scores, by rank.
_SCORE_AXES = {3: "bqk", 4: "bhqk"}

# Between the products: masks, scales and casts.
_MAX_STEPS = 12

# A number that takes a score out as minus infinity does lies beyond this part of the type's lowest.
_HIDING = 0.5


def from_matmul(view: GraphView, expr: relax.Expr, steps: int = _MAX_STEPS) -> bool:
    """Whether a product is up to ``steps`` masks, scales and casts away."""
    if view.call(expr, "relax.matmul") is not None:
        return True
    names = ("relax.add", "relax.where", "relax.multiply", "relax.divide", "relax.astype")
    call = view.call(expr, *names)
    if call is None or steps == 0:
        return False
    shape = _extents(call)
    sides = [a for a in call.args if shape is not None and _extents(a) == shape]
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
    same = _extents(expr) == _extents(call)
    return same and from_matmul(view, expr)


def _checked(
    scores: relax.Expr, mask: Mask, tensor: relax.Expr, call: relax.Call
) -> tuple[relax.Expr, Mask, relax.Expr]:
    if _extents(scores) != _extents(call) or _extents(tensor) is None:
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


def causal_offset(view: GraphView, mask: Mask, tensor: relax.Expr, dtype: str) -> float | None:
    """By how much a query may look ahead, when that is all a constant mask says.

    Infinity for a mask that hides nothing; None for any other.
    """
    array = constant_array(view, tensor)
    if array is None or array.ndim < 2 or math.prod(array.shape[:-2]) != 1:
        return None
    array = array.reshape(array.shape[-2:])
    lowest = float(finfo(dtype).min) * _HIDING
    if mask.kind == "add":
        values = array.astype("float64")
        seen = values == 0
        if not np.all(seen | (values <= lowest)):
            return None
    else:
        seen = array.astype(bool) == (mask.kind == "keep")
        if not seen.all() and mask.fill > lowest:
            return None
    return _offset(seen)


def _offset(seen: np.ndarray) -> float | None:
    if seen.all():
        return math.inf
    counts = seen.sum(axis=1)
    if not counts.any():
        return None
    first = int(np.argmax(counts > 0))
    offset = int(counts[first]) - 1 - first
    # Numbers that are only very low leave a query that sees no key with a mean of all values.
    every_row_sees = first == 0
    matches = np.array_equal(seen, np.tri(len(seen), seen.shape[1], offset, dtype=bool))
    return offset if matches and every_row_sees else None


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
    NotApplicable
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
    )
    arguments = [query.value, key.value, value.value, *(tensor for _, tensor in scores.masks)]
    parts = (query.passed, key.passed, scores.passed, weights.passed, value.passed)
    inner = [var for part in parts for var in reversed(part)]
    passed = [var for var in inner if view.uses(var) == 1]
    return AttentionMatch(compute, arguments, passed, weights.empty_rows)


def _group(query: AttentionOperand, key: AttentionOperand, value: AttentionOperand) -> int:
    """How many heads of the query share one of keys and values."""

    def heads(operand: AttentionOperand) -> int:
        shape = _extents(operand.value)
        if shape is None:
            raise NotApplicable("a shape is not known")
        count = shape[operand.axes.index("h")] if "h" in operand.axes else 1
        if not isinstance(count, int):
            raise NotApplicable("the number of heads is symbolic")
        return count

    counts = heads(query), heads(key), heads(value)
    if counts[1] != counts[2] or counts[0] % counts[1]:
        raise NotApplicable(f"heads of query, key and value are {counts}")
    shapes = [(operand.axes, _extents(operand.value) or []) for operand in (query, key, value)]
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
        shape = _extents(condition)
        if not shape or shape[-1] != 1:
            return False
        self.empty_rows = condition
        return True


def _read_scores(view: GraphView, scores: relax.Expr) -> _Scores | None:
    """Masks and scales up to the product; None when no product is behind them."""
    if not from_matmul(view, scores):
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
            raise NotApplicable("scores are scaled after a mask is added")
        mask = Mask(mask.kind, mask.axes, mask.fill * outer)
        offset = causal_offset(view, mask, tensor, str(call.ty.dtype))
        if offset is None:
            found.insert(0, (mask, unexpanded(view, tensor)))
        elif offset != math.inf:
            causal = int(offset) if causal is None else min(causal, int(offset))
    return _Scores(product, scale, found, causal, chain.passed)


def _extents(expr: relax.Expr) -> list[Any] | None:
    """The extents of a tensor, each equal to others that are the same in every run: a number, or
    an expression. None where they are not known.
    """
    shape = expr.ty.shape if isinstance(expr.ty, relax.TensorType) else None
    if not isinstance(shape, relax.ShapeExpr):
        return None
    return [
        int(extent) if isinstance(extent, tirx.IntImm) else _Extent(extent)
        for extent in shape.values[:]
    ]


class _Extent:
    """An extent that a run decides; equal to others that are the same in every run."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, size: tirx.Expr) -> None:
        self._size = size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Extent):
            return False
        if tvm_ffi.structural_equal(self._size, other._size):
            return True
        # Exporters write past + length here and length + past there.
        return bool(Analyzer().can_prove_equal(self._size, other._size))

"""Recognises what changes the scores between the two products of an attention."""

import math

import numpy as np
from ml_dtypes import finfo
from tvm import relax

from tvm_ext.passes.attention.attention_operands import NotFused, constant_array, uniform_value
from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.static_shape import static_shape
from tvm_ext.tir_schedules.attention_compute import Mask

# Of scores, by rank.
_AXES = {3: "bqk", 4: "bhqk"}

# Between the products: masks, scales and casts.
_MAX_STEPS = 12

# A number that takes a score out as minus infinity does lies beyond this part of the type's lowest.
_HIDING = 0.5


def from_product(view: GraphView, expr: relax.Expr, steps: int = _MAX_STEPS) -> bool:
    """Whether a product is up to ``steps`` masks, scales and casts away."""
    if view.call(expr, "relax.matmul") is not None:
        return True
    names = ("relax.add", "relax.where", "relax.multiply", "relax.divide", "relax.astype")
    call = view.call(expr, *names)
    if call is None or steps == 0:
        return False
    shape = static_shape(call)
    sides = [a for a in call.args if shape is not None and static_shape(a) == shape]
    return any(from_product(view, side, steps - 1) for side in sides)


def read_mask(view: GraphView, call: relax.Call) -> tuple[relax.Expr, Mask, relax.Expr]:
    """The scores that a call masks, the mask and its tensor.

    Raises
    ------
    NotFused
        It changes the scores in another way.
    """
    name = call.op.name.removeprefix("relax.")
    axes = _AXES[call.ty.ndim]
    if name == "add":
        left, right = call.args
        if not _is_side(view, call, left):
            left, right = right, left
        return _checked(left, Mask("add", axes[len(axes) - right.ty.ndim :]), right, call)
    if name != "where":
        raise NotFused(f"{name} of the scores is neither a mask nor one number above zero")
    condition, kept, other = call.args
    fill = uniform_value(view, other)
    if fill is not None and _is_side(view, call, kept):
        mask = Mask("keep", axes[len(axes) - condition.ty.ndim :], fill)
        return _checked(kept, mask, condition, call)
    fill = uniform_value(view, kept)
    if fill is None or not _is_side(view, call, other):
        raise NotFused("what takes the place of hidden scores is not one number")
    mask = Mask("drop", axes[len(axes) - condition.ty.ndim :], fill)
    return _checked(other, mask, condition, call)


def _is_side(view: GraphView, call: relax.Call, expr: relax.Expr) -> bool:
    same = static_shape(expr) == static_shape(call)
    return same and from_product(view, expr)


def _checked(
    scores: relax.Expr, mask: Mask, tensor: relax.Expr, call: relax.Call
) -> tuple[relax.Expr, Mask, relax.Expr]:
    if static_shape(scores) != static_shape(call) or static_shape(tensor) is None:
        raise NotFused("the shape of a mask is not known or symbolic")
    if math.isnan(mask.fill):
        raise NotFused("hidden scores become NaN")
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

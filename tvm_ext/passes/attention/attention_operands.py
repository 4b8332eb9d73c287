"""Queries, keys and values of an attention as they lie in memory, behind transposes and scales."""

import math
from dataclasses import dataclass, replace

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.static_shape import static_shape

NARROW = ("float16", "bfloat16")
"""Types whose products are added up in float32, with casts to it or without."""


class NotFused(Exception):
    """Why something that looks like attention is left alone."""


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


def _one_step(view: GraphView, found: AttentionOperand) -> AttentionOperand | None:
    call = view.call(found.value, "relax.permute_dims")
    if call is not None:
        rank = len(found.axes)
        order = range(rank)[::-1] if call.attrs.axes is None else call.attrs.axes
        letters = [""] * rank
        for letter, axis in zip(found.axes, order, strict=True):
            letters[int(axis) % rank] = letter
        return replace(found, value=call.args[0], axes="".join(letters))
    widened = view.call(found.value, "relax.astype")
    if widened is not None:
        narrow, wide = str(widened.args[0].ty.dtype), str(widened.ty.dtype)
        if narrow not in NARROW or wide != "float32":
            return None
        return replace(found, value=widened.args[0])
    scaled = scaled_by(view, found.value)
    if scaled is not None:
        return replace(found, value=scaled[0], scale=found.scale * scaled[1])
    return _shared_heads(view, found)


def _shared_heads(view: GraphView, found: AttentionOperand) -> AttentionOperand | None:
    """Through ``reshape(broadcast_to(expand_dims(x)))``, which repeats each head."""
    reshape = view.call(found.value, "relax.reshape")
    repeated = view.call(reshape.args[0], "relax.broadcast_to") if reshape is not None else None
    if reshape is None or repeated is None or "h" not in found.axes:
        return None
    heads = found.axes.index("h")
    expanded = repeated.args[0]
    shape, wide = static_shape(expanded), static_shape(reshape.args[0])
    if shape is None or wide is None or len(wide) != len(found.axes) + 1:
        return None
    times = wide[heads + 1]
    joined = [*wide[:heads], wide[heads] * times, *wide[heads + 2 :]]
    kept = [*shape[: heads + 1], *shape[heads + 2 :]]
    if shape[heads + 1] != 1 or joined != static_shape(found.value):
        return None
    inserted = view.call(expanded, "relax.expand_dims", "relax.reshape")
    if inserted is None or static_shape(inserted.args[0]) != kept or kept[heads] != wide[heads]:
        return None
    if [*shape[:heads], *shape[heads + 2 :]] != [*wide[:heads], *wide[heads + 2 :]]:
        return None
    return replace(found, value=inserted.args[0], repeats=found.repeats * times)


def scaled_by(view: GraphView, expr: relax.Expr) -> tuple[relax.Expr, float] | None:
    """What is multiplied by one finite number above zero, or divided by it, and that factor."""
    call = view.call(expr, "relax.multiply", "relax.divide")
    if call is None:
        return None
    left, right = call.args
    factor = uniform_value(view, right)
    if factor is None and call.op.name == "relax.multiply":
        factor, left = uniform_value(view, left), right
    if factor is None or not 0 < factor < math.inf or not _keeps_shape(expr, left):
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


def _keeps_shape(expr: relax.Expr, left: relax.Expr) -> bool:
    shape = static_shape(expr)
    return shape is not None and static_shape(left) == shape

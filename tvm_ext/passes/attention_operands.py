"""Queries, keys and values of an attention as they lie in memory: what is behind an operand.

Between a product and the tensor that it multiplies stand transposes, scales, casts, and views that
repeat heads of keys for several heads of queries. All but the casts and scales change axes alone,
and are followed here axis by axis: an axis of the operand can become several in a view, and one of
these can be the repetition.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi
from tvm import relax, tirx
from tvm.sym import Analyzer

from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.expressions import constant_value

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


@dataclass(frozen=True)
class _Part:
    """An axis of the operand, or a part of it that a view has as an axis.

    ``order`` tells the place among the parts of the same axis, from the slowest to the fastest.
    """

    letter: str
    size: Any
    order: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Step:
    """How far the walk up from an operand has come: for each axis of ``value`` the parts it is."""

    value: relax.Expr
    axes: tuple[tuple[_Part, ...], ...]
    repeated: tuple[_Part, ...] = ()
    scale: float = 1.0
    passed: tuple[relax.Var, ...] = ()

    def operand(self) -> AttentionOperand | None:
        """What was found, if each axis is all of an axis of the operand again."""
        parts = [part for axis in self.axes for part in axis]
        if any(len({part.letter for part in axis}) > 1 for axis in self.axes):
            return None
        letters = self._letters()
        if len(set(letters)) < len(letters) or not set("bsd") <= set(letters):
            return None
        # Each head is followed by its repetitions: these are the fastest of the parts.
        kept = [part.order for part in parts if part.letter == "h"]
        others = [part.order for part in self.repeated]
        if kept != sorted(kept) or any(order < last for order in others for last in kept[-1:]):
            return None
        if any(list(axis) != sorted(axis, key=lambda part: part.order) for axis in self.axes):
            return None
        repeats = math.prod(part.size for part in self.repeated)
        return AttentionOperand(self.value, letters, self.scale, repeats, self.passed)

    def _letters(self) -> str:
        """One for each axis; an axis of size 1 without a part has one that no other axis has."""
        known = [axis[0].letter if axis else "" for axis in self.axes]
        missing = [letter for letter in "bshd" if letter not in known]
        return "".join(letter or (missing.pop(0) if missing else "?") for letter in known)


def find_operand(view: GraphView, expr: relax.Expr, axes: str) -> AttentionOperand:
    """The tensor behind ``expr``: through transposes, scales, casts and repeated heads."""
    found = AttentionOperand(expr, axes)
    sizes = extents(expr)
    if sizes is None:
        return found
    parts = tuple((_Part(letter, size),) for letter, size in zip(axes, sizes, strict=True))
    step: _Step | None = _Step(expr, parts)
    while step is not None:
        behind = step.operand()
        if behind is not None and not _has_axes_added(behind, found):
            found = behind
        step = _next(view, step)
    return found


def _has_axes_added(behind: AttentionOperand, found: AttentionOperand) -> bool:
    """Whether ``behind`` is ``found`` with more axes of size 1.

    Passes that read heads out of a product know them by the views that take such axes away.
    """
    if "?" not in behind.axes or behind.value.ty.dtype != found.value.ty.dtype:
        return False
    (new, *scale), (old, *other) = (
        (one.axes.replace("?", ""), one.scale, one.repeats) for one in (behind, found)
    )
    return new == old and scale == other


def _next(view: GraphView, step: _Step) -> _Step | None:
    """One operator further up."""
    if not isinstance(step.value, relax.Var):
        return None
    step = replace(step, passed=(*step.passed, step.value))
    call = view.call(step.value, "relax.permute_dims")
    if call is not None:
        rank = len(step.axes)
        order = range(rank)[::-1] if call.attrs.axes is None else call.attrs.axes
        moved: list[tuple[_Part, ...]] = [()] * rank
        for parts, axis in zip(step.axes, order, strict=True):
            moved[int(axis) % rank] = parts
        return replace(step, value=call.args[0], axes=tuple(moved))
    call = view.call(step.value, "relax.astype")
    if call is not None:
        narrow, wide = str(call.args[0].ty.dtype), str(call.ty.dtype)
        is_widened = narrow in NARROW and wide == "float32"
        return replace(step, value=call.args[0]) if is_widened else None
    scaled = scaled_by(view, step.value)
    if scaled is not None:
        return replace(step, value=scaled[0], scale=step.scale * scaled[1])
    call = view.call(step.value, "relax.broadcast_to")
    if call is not None:
        return _unrepeated(step, call.args[0])
    call = view.call(step.value, "relax.reshape", "relax.expand_dims", "relax.squeeze")
    return None if call is None else _viewed(step, call.args[0])


def _unrepeated(step: _Step, source: relax.Expr) -> _Step | None:
    """Before axes of size 1 were repeated: those of heads alone may be."""
    shape = extents(source)
    if shape is None or len(shape) != len(step.axes):
        return None
    axes, repeated = [], list(step.repeated)
    for parts, size, whole in zip(step.axes, shape, extents(step.value) or [], strict=True):
        if size == whole:
            axes.append(parts)
            continue
        if size != 1 or not all(part.letter == "h" and _is_count(part.size) for part in parts):
            return None
        axes.append(())
        repeated += parts
    return replace(step, value=source, axes=tuple(axes), repeated=tuple(repeated))


def _is_count(size: Any) -> bool:
    return isinstance(size, int)


def _viewed(step: _Step, source: relax.Expr) -> _Step | None:
    """Before a view: the same elements, with other axes."""
    shape = extents(source)
    if shape is None:
        return None
    left = [part for parts in step.axes for part in parts]
    axes = []
    for size in shape:
        taken = _taken(left, size)
        if taken is None:
            return None
        axes.append(tuple(taken))
    if any(part.size != 1 for part in left):
        return None
    return replace(step, value=source, axes=tuple(axes))


def _taken(left: list[_Part], size: Any) -> list[_Part] | None:
    """The next parts that make up an axis of this size; they are removed from ``left``."""
    if size == 1:
        return [left.pop(0)] if left and left[0].size == 1 else []
    while left and left[0].size == 1:
        left.pop(0)
    if left and left[0].size == size:
        return [left.pop(0)]
    if not isinstance(size, int):
        return _taken_together(left, size)
    taken: list[_Part] = []
    while size > 1:
        if not left or not isinstance(left[0].size, int):
            return None
        part = left.pop(0)
        common = math.gcd(part.size, size)
        if common == part.size:
            taken.append(part)
        elif common == size:
            # An axis of the source is the slow part of one of the view.
            slow, fast = (*part.order, 0), (*part.order, 1)
            taken.append(_Part(part.letter, size, slow))
            left.insert(0, _Part(part.letter, part.size // size, fast))
        else:
            return None
        size //= common
    return taken


def _taken_together(left: list[_Part], size: "_Extent") -> list[_Part] | None:
    """The next parts whose sizes have this product, of which a run decides one at least."""
    product = tirx.const(1, "int64")
    for count, part in enumerate(left, 1):
        product = product * (part.size if isinstance(part.size, int) else part.size.size)
        if size == _Extent(product):
            taken = left[:count]
            del left[:count]
            return taken
    return None


def scaled_by(view: GraphView, expr: relax.Expr) -> tuple[relax.Expr, float] | None:
    """What is multiplied by one finite number above zero, or divided by it, and that factor."""
    call = view.call(expr, "relax.multiply", "relax.divide")
    if call is None:
        return None
    left, right = call.args
    factor = uniform_value(view, right)
    if factor is None and call.op.name == "relax.multiply":
        factor, left = uniform_value(view, left), right
    shape = extents(expr)
    if factor is None or not 0 < factor < math.inf or shape is None or extents(left) != shape:
        return None
    if call.op.name == "relax.divide":
        factor = 1 / factor
    return (left, factor) if math.isfinite(factor) else None


def uniform_value(view: GraphView, expr: relax.Expr) -> float | None:
    """The number that all elements of a constant are, infinities included."""
    full = view.call(expr, "relax.full")
    constant = constant_value(view, expr if full is None else full.args[1])
    if constant is None or not constant.size or constant.dtype.kind not in "fiuVb":
        return None
    values = constant.astype("float64").reshape(-1)
    return float(values[0]) if (values == values[0]).all() else None


def extents(expr: relax.Expr) -> list[Any] | None:
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
        self.size = size

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Extent):
            return False
        if tvm_ffi.structural_equal(self.size, other.size):
            return True
        # Exporters write past + length here and length + past there.
        return bool(Analyzer().can_prove_equal(self.size, other.size))

"""Finds the normalisations that a graph spells out, in each of the ways that exporters write them.

The divisor is a root of a sum of squares: ``sqrt``, ``power(., 0.5)``, or an inverse that is
multiplied with, ``rsqrt``, ``power(., -0.5)``, ``1 / sqrt``. The sum is ``mean``, ``sum``,
``variance``, or one of them times a number, and may drop its axes and have them put back. The
squares are ``power(., 2)``, ``square``, products. A scale may be multiplied with either side first,
and TensorFlow distributes it: with ``s`` the inverse times the scale it writes
``x * s + (shift - mean(x) * s)``.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from math import prod
from typing import Any

from tvm import relax, tirx
from tvm_ffi import structural_equal

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.gemm_epilogue import scalar_value
from tvm_ext.relay_passes.normalization import NARROW_TYPES, Divisor, Guard, Normalization, Squares

# Where a clip has this upper limit or a larger one, it is a maximum.
_NO_LIMIT = 3.0e38

# How far a number may be from the inverse of a count that it was rounded from.
_ROUNDING = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-22, "float64": 2**-51}

# One of these is in every divisor.
ROOTS = ("relax.sqrt", "relax.rsqrt", "relax.power")
# Operators that put axes back which a reduction has dropped.
RESHAPES = ("relax.reshape", "relax.expand_dims")
_VIEWS = (*RESHAPES, "relax.broadcast_to")
_ONE = tirx.const(1, "int64")
_REDUCTIONS = ("relax.mean", "relax.sum", "relax.variance")

# A divisor as it is read from the root down: the guard, its number, and what is below the root.
_Guarded = tuple[Guard, float, relax.Expr]
# An operator and what it is applied with to the normalised values.
Step = tuple[str, relax.Expr]


@dataclass(frozen=True)
class Spelled:
    """A normalisation that was found.

    Attributes
    ----------
    norm : Normalization
        What it computes.
    steps : tuple of (str, relax.Expr)
        What is done to its result by the same operators: scale and shift.
    inner : tuple of relax.Var
        The variables between the input and the last operator.
    """

    norm: Normalization
    steps: tuple[Step, ...]
    inner: tuple[relax.Var, ...]


@dataclass(frozen=True)
class _Reduced:
    """``factor`` times the sum, or the mean, over ``axes`` of ``of``."""

    of: relax.Expr
    axes: tuple[int, ...]
    is_mean: bool
    factor: float = 1.0

    def times(self, number: float) -> "_Reduced":
        """Multiplied; a sum over its number of elements is the mean."""
        factor = self.factor * number
        extents = [self.of.ty.shape[axis] for axis in self.axes]
        if not self.is_mean and all(isinstance(extent, tirx.IntImm) for extent in extents):
            off = abs(factor * prod(int(extent) for extent in extents) - 1.0)
            if off <= _ROUNDING.get(str(self.of.ty.dtype), 0.0):
                return replace(self, is_mean=True, factor=1.0)
        return replace(self, factor=factor)


@dataclass(frozen=True)
class _Reading:
    """One way to read a value: ``numerator`` over ``guarded``, times ``scale``, plus ``shift``.

    With ``mean`` the numerator is less that. ``multiplies`` says that an inverse is multiplied
    with.
    """

    numerator: relax.Expr
    guarded: _Guarded
    multiplies: bool
    scale: relax.Expr | None = None
    mean: relax.Expr | None = None
    shift: relax.Expr | None = None

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is done to the normalised values."""
        found = (("relax.multiply", self.scale), ("relax.add", self.shift))
        return tuple((name, operand) for name, operand in found if operand is not None)


def spelled_out(view: GraphView, value: relax.Call) -> Spelled | None:
    """The normalisation whose last operator is ``value``.

    Raises
    ------
    NotApplicable
        It is one, except for what the text says.
    """
    for reading in chain(_quotients(view, value), _distributed(view, value)):
        found = _normalization(view, reading)
        if found is not None:
            ends = [found.x, *(operand for _, operand in reading.steps)]
            inner = inner_variables(view, value, ends)
            if not _rows_line_up(view, value, inner, found):
                return None
            norm = replace(found, multiplies=reading.multiplies)
            return Spelled(_narrow(view, norm), reading.steps, inner)
    return None


# Ways to read a value.


def _quotients(view: GraphView, value: relax.Expr) -> Iterator[_Reading]:
    """``value`` as a quotient, or as a product with an inverse."""
    if (divide := view.call(value, "relax.divide")) is not None:
        guarded = _divisor(view, divide.args[1])
        if guarded is not None:
            yield from _unscaled(view, _Reading(divide.args[0], guarded, False))
    for factor, other in _either_way(view, value, "relax.multiply"):
        scaled = _scaled_inverse(view, other)
        if scaled is not None:
            yield from _unscaled(view, _Reading(factor, scaled[0], True, scaled[1]))


def _unscaled(view: GraphView, reading: _Reading) -> Iterator[_Reading]:
    """The reading, and those that take a factor of its numerator for the scale."""
    yield reading
    if reading.scale is None:
        for factor, other in _either_way(view, reading.numerator, "relax.multiply"):
            yield replace(reading, numerator=factor, scale=other)


def _distributed(view: GraphView, value: relax.Expr) -> Iterator[_Reading]:
    """``x * s + (shift - mean * s)`` and the like, ``s`` being an inverse times a scale."""
    is_difference = view.call(value, "relax.subtract") is not None
    name = "relax.subtract" if is_difference else "relax.add"
    for product, rest in _either_way(view, value, name):
        for x, factor in _either_way(view, product, "relax.multiply"):
            scaled = _scaled_inverse(view, factor)
            if scaled is None:
                continue
            mean, shift = _times(view, rest, factor), None
            if not is_difference:
                mean, shift = _less_the_mean(view, rest, factor)
            if mean is not None:
                yield _Reading(x, scaled[0], True, scaled[1], mean, shift)


def _less_the_mean(
    view: GraphView, expr: relax.Expr, factor: relax.Expr
) -> tuple[relax.Expr | None, relax.Expr | None]:
    """``mean`` and ``shift`` where ``expr`` is ``shift - mean * factor``, or has no shift."""
    difference = view.call(expr, "relax.subtract")
    if difference is not None:
        return _times(view, difference.args[1], factor), difference.args[0]
    for part, shift in ((expr, None), *_either_way(view, expr, "relax.add")):
        mean = _negated_times(view, part, factor)
        if mean is not None:
            return mean, shift
    return None, None


def _negated_times(view: GraphView, expr: relax.Expr, factor: relax.Expr) -> relax.Expr | None:
    """``mean`` where ``expr`` is ``-mean * factor``."""
    if (negative := view.call(expr, "relax.negative")) is not None:
        return _times(view, negative.args[0], factor)
    other = _times(view, expr, factor)
    negative = None if other is None else view.call(other, "relax.negative")
    return None if negative is None else negative.args[0]


def _times(view: GraphView, expr: relax.Expr, factor: relax.Expr) -> relax.Expr | None:
    """What ``expr`` is ``factor`` times of."""
    pairs = _either_way(view, expr, "relax.multiply")
    return next((one for one, other in pairs if other.same_as(factor)), None)


def _either_way(
    view: GraphView, expr: relax.Expr, name: str
) -> tuple[tuple[relax.Expr, relax.Expr], ...]:
    """The operands of a call of ``name``, and the other way round where that is the same."""
    call = view.call(expr, name)
    if call is None:
        return ()
    left, right = call.args
    return ((left, right),) if name == "relax.subtract" else ((left, right), (right, left))


# Divisors.


def _scaled_inverse(view: GraphView, expr: relax.Expr) -> tuple[_Guarded, relax.Expr | None] | None:
    """``expr`` as an inverse, or as the product of one and a scale."""
    if (guarded := _inverse(view, expr)) is not None:
        return guarded, None
    for factor, scale in _either_way(view, expr, "relax.multiply"):
        if (guarded := _inverse(view, factor)) is not None:
            return guarded, scale
    return None


def _inverse(view: GraphView, expr: relax.Expr) -> _Guarded | None:
    """What is divided by where the model multiplies by ``expr``."""
    expr = _unviewed(view, expr)
    if (call := view.call(expr, "relax.rsqrt")) is not None:
        return _below_root(view, call.args[0])
    if (call := view.call(expr, "relax.power")) is not None:
        is_inverse = scalar_value(call.args[1], call.args[0]) == -0.5
        return _below_root(view, call.args[0]) if is_inverse else None
    if (limited := _with_number(view, expr, "relax.minimum")) is not None:
        # The smaller of 1 / root and a limit divides by the larger of the root and 1 / limit.
        guarded = _inverse(view, limited[0])
        is_free = guarded is not None and guarded[:2] == (Guard.ADD_INSIDE, 0.0)
        if guarded is None or not is_free or not limited[1] > 0.0:
            return None
        return Guard.MAX_OUTSIDE, 1.0 / limited[1], guarded[2]
    call = view.call(expr, "relax.divide")
    if call is None or scalar_value(call.args[0], call.args[1]) != 1.0:
        return None
    return _divisor(view, call.args[1])


def _divisor(view: GraphView, expr: relax.Expr) -> _Guarded | None:
    """``expr`` as a root of something, with a number that keeps it away from zero."""
    expr = _unviewed(view, expr)
    if (inside := _root(view, expr)) is not None:
        return _below_root(view, inside)
    if (call := view.call(expr, "relax.where")) is not None:
        return _one_for_zero(view, call)
    for guard, names in (
        (Guard.ADD_OUTSIDE, ("relax.add",)),
        (Guard.MAX_OUTSIDE, ("relax.maximum", "relax.clip")),
    ):
        with_number = _with_number(view, expr, *names)
        inside = None if with_number is None else _root(view, with_number[0])
        if with_number is not None and inside is not None:
            return guard, with_number[1], inside
    return None


def _below_root(view: GraphView, expr: relax.Expr) -> _Guarded:
    expr = _unviewed(view, expr)
    for guard, names in (
        (Guard.ADD_INSIDE, ("relax.add",)),
        (Guard.MAX_INSIDE, ("relax.maximum", "relax.clip")),
    ):
        with_number = _with_number(view, expr, *names)
        if with_number is not None:
            return guard, with_number[1], with_number[0]
    return Guard.ADD_INSIDE, 0.0, expr


def _root(view: GraphView, expr: relax.Expr) -> relax.Expr | None:
    """What ``expr`` is the square root of."""
    expr = _unviewed(view, expr)
    if (call := view.call(expr, "relax.sqrt")) is not None:
        return call.args[0]
    call = view.call(expr, "relax.power")
    is_root = call is not None and scalar_value(call.args[1], call.args[0]) == 0.5
    return call.args[0] if call is not None and is_root else None


def _one_for_zero(view: GraphView, where: relax.Call) -> _Guarded | None:
    """``where(root == 0, 1, root)``."""
    condition, one, root = where.args
    equal = view.call(condition, "relax.equal")
    inside = _root(view, root)
    if equal is None or inside is None or scalar_value(one, root) != 1.0:
        return None
    compared = equal.args[0], scalar_value(equal.args[1], root)
    is_zero = compared[0].same_as(root) and compared[1] == 0.0
    return (Guard.ONE_FOR_ZERO, 0.0, inside) if is_zero else None


def _with_number(view: GraphView, expr: relax.Expr, *names: str) -> tuple[relax.Expr, float] | None:
    """The value and the number of an operator of ``names`` that has one number."""
    call = view.call(expr, *names)
    if call is None:
        return None
    if call.op.name == "relax.clip":
        low, high = (getattr(limit, "value", None) for limit in call.args[1:3])
        if not isinstance(low, int | float) or not isinstance(high, int | float):
            return None
        return (call.args[0], float(low)) if high >= _NO_LIMIT else None
    for value, other in (call.args, reversed(call.args)):
        number = scalar_value(other, value)
        if number is not None:
            return value, number
    return None


# What is below the root.


def _normalization(view: GraphView, reading: _Reading) -> Normalization | None:
    guard, eps, below = reading.guarded
    found = _squares(view, below)
    if found is None:
        return None
    squares, kind = found
    axes, numerator = squares.axes, reading.numerator
    centred = _centred(view, reading, axes)
    if kind is Squares.OF_VALUES and centred is not None:
        deviating = _less_its_mean(view, squares.of, axes)
        if deviating is not None:
            kind, squares = Squares.OF_DEVIATIONS, replace(squares, of=deviating)
    x = numerator if kind is Squares.OF_VALUES and reading.mean is None else centred
    if x is None or not _same(view, x, squares.of):
        return None
    divisor = Divisor(guard, eps, squares.is_mean, squares.factor)
    return Normalization(x, axes, kind, divisor, str(numerator.ty.dtype))


def _centred(view: GraphView, reading: _Reading, axes: tuple[int, ...]) -> relax.Expr | None:
    """``x`` where the numerator is ``x`` less its mean over ``axes``."""
    if reading.mean is None:
        return _less_its_mean(view, reading.numerator, axes)
    is_mean = _is_mean(view, reading.mean, reading.numerator, axes)
    return reading.numerator if is_mean else None


def _squares(view: GraphView, expr: relax.Expr) -> tuple[_Reduced, Squares] | None:
    """``expr`` as a sum or mean of squares."""
    if (variance := view.call(_unviewed(view, expr), "relax.variance")) is not None:
        axes = reduced_axes(variance)
        found = None if axes is None else _Reduced(variance.args[0], axes, True)
        return None if found is None else (found, Squares.OF_DEVIATIONS)
    if (reduced := _reduced(view, expr)) is not None:
        base = _square_root(view, reduced.of)
        return None if base is None else (replace(reduced, of=base), Squares.OF_VALUES)
    return _difference_of_means(view, _unviewed(view, expr))


def _reduced(view: GraphView, expr: relax.Expr) -> _Reduced | None:
    """``expr`` as a sum or a mean, or as a number of times one."""
    expr = _unviewed(view, expr)
    with_number = _with_number(view, expr, "relax.multiply")
    if with_number is None and (call := view.call(expr, "relax.divide")) is not None:
        number = scalar_value(call.args[1], call.args[0])
        with_number = (call.args[0], 1.0 / number) if number else None
    if with_number is not None:
        found = _reduced(view, with_number[0]) if with_number[1] > 0.0 else None
        return None if found is None else found.times(with_number[1])
    call = view.call(expr, "relax.mean", "relax.sum")
    axes = None if call is None else reduced_axes(call)
    if call is None or axes is None:
        return None
    return _Reduced(call.args[0], axes, call.op.name == "relax.mean")


def _difference_of_means(view: GraphView, expr: relax.Expr) -> tuple[_Reduced, Squares] | None:
    """``mean(x * x) - mean(x) * mean(x)``, which may be kept from being below zero."""
    limited = _with_number(view, expr, "relax.maximum", "relax.clip")
    if limited is not None:
        found = _difference_of_means(view, _unviewed(view, limited[0]))
        is_zero = limited[1] == 0.0
        return (found[0], Squares.DIFFERENCE_FROM_ZERO) if found and is_zero else None
    difference = view.call(expr, "relax.subtract")
    if difference is None:
        return None
    squares = _reduced(view, difference.args[0])
    x = None if squares is None else _square_root(view, squares.of)
    mean = _square_root(view, _unviewed(view, difference.args[1]))
    if squares is None or x is None or mean is None or not squares.is_mean:
        return None
    if squares.factor != 1.0 or not _is_mean(view, mean, x, squares.axes):
        return None
    return replace(squares, of=x), Squares.DIFFERENCE


def reduced_axes(call: relax.Call) -> tuple[int, ...] | None:
    """The axes of a reduction, without repetition; None for one that has none."""
    attrs: Any = call.attrs
    rank = call.args[0].ty.ndim
    if rank < 1 or not isinstance(call.args[0].ty.shape, relax.ShapeExpr):
        return None
    axes = range(rank) if attrs.axis is None else attrs.axis
    return tuple(sorted({int(axis) % rank for axis in axes})) or None


def kept_shape(x: relax.Expr, axes: Sequence[int]) -> relax.ShapeExpr:
    """The shape of a reduction of ``x`` that leaves its axes with an extent of 1."""
    extents = enumerate(x.ty.shape)
    return relax.ShapeExpr([_ONE if axis in axes else extent for axis, extent in extents])


def _less_its_mean(view: GraphView, expr: relax.Expr, axes: tuple[int, ...]) -> relax.Expr | None:
    """``x`` where ``expr`` is ``x`` less its mean over ``axes``."""
    call = view.call(expr, "relax.subtract")
    if call is None or not _is_mean(view, call.args[1], call.args[0], axes):
        return None
    return call.args[0]


def _is_mean(view: GraphView, expr: relax.Expr, x: relax.Expr, axes: tuple[int, ...]) -> bool:
    """Whether ``expr`` is the mean of ``x`` over ``axes``."""
    found = _reduced(view, expr)
    is_mean = found is not None and found.is_mean and found.factor == 1.0
    return found is not None and is_mean and found.axes == axes and _same(view, found.of, x)


def _unviewed(view: GraphView, expr: relax.Expr) -> relax.Expr:
    """``expr`` without views of it, which ``_rows_line_up`` looks at once ``x`` is known."""
    while (call := view.call(expr, *_VIEWS)) is not None:
        expr = call.args[0]
    return expr


def _square_root(view: GraphView, expr: relax.Expr) -> relax.Expr | None:
    """What ``expr`` is the square of, without its sign where that is taken off first."""
    base = _squared(view, expr)
    absolute = None if base is None else view.call(base, "relax.abs")
    return base if absolute is None else absolute.args[0]


def _squared(view: GraphView, expr: relax.Expr) -> relax.Expr | None:
    power = view.call(expr, "relax.power")
    if power is not None and scalar_value(power.args[1], power.args[0]) == 2.0:
        return power.args[0]
    if (square := view.call(expr, "relax.square")) is not None:
        return square.args[0]
    product = view.call(expr, "relax.multiply")
    is_square = product is not None and _same(view, *product.args)
    return product.args[0] if product is not None and is_square else None


def _same(view: GraphView, a: relax.Expr, b: relax.Expr) -> bool:
    """Whether two expressions are the same value, or the same operator on the same values."""
    return a.same_as(b) or bool(structural_equal(view.value(a), view.value(b)))


def _narrow(view: GraphView, found: Normalization) -> Normalization:
    """The same, reading the 16-bit numbers that a model casts to float32 for it."""
    cast = view.call(found.x, "relax.astype")
    is_narrow = cast is not None and str(cast.args[0].ty.dtype) in NARROW_TYPES
    if cast is None or not is_narrow or str(found.x.ty.dtype) != "float32":
        return found
    return replace(found, x=cast.args[0])


def inner_variables(
    view: GraphView, value: relax.Expr, ends: Iterable[relax.Expr]
) -> tuple[relax.Var, ...]:
    """The variables between ``ends`` and ``value``.

    Raises
    ------
    NotApplicable
        One of them has other readers: it would be computed twice.
    """
    ends = list(ends)
    reads: Counter[relax.Var] = Counter()
    left = [value]
    while left:
        expr = left.pop()
        operands = expr.args if isinstance(expr, relax.Call) else [expr]
        for operand in operands:
            if not isinstance(operand, relax.Var):
                continue
            # A model may compute the same value twice, once for each reader.
            if any(_same(view, operand, end) for end in ends):
                continue
            if operand not in reads:
                left.append(view.bindings()[operand])
            reads[operand] += 1
    if any(view.uses(var) > count for var, count in reads.items()):
        raise NotApplicable(
            "a value inside of it, such as the deviation, is used elsewhere as well"
        )
    return tuple(reversed(reads))


def _rows_line_up(
    view: GraphView, value: relax.Call, inner: Sequence[relax.Var], norm: Normalization
) -> bool:
    """Whether values of rows meet others only with all axes, those of an extent of 1 included.

    Values that lack the reduced axes are computed with among themselves, and a reshape puts these
    back where they were. None is repeated for more than the input has.
    """
    own, shape = {hash(var) for var in inner}, list(norm.x.ty.shape)
    kept = kept_shape(norm.x, norm.axes)
    calls = [value, *(view.value(var) for var in inner)]
    if not all(isinstance(call.ty.shape, relax.ShapeExpr) for call in calls):
        return False
    for call in calls:
        if view.call(call, *RESHAPES) is not None:
            fits = structural_equal(call.ty.shape, kept)
        elif view.call(call, "relax.broadcast_to") is not None:
            fits = _is_within(list(call.ty.shape), shape)
        elif view.call(call, *_REDUCTIONS) is None:
            fits = all(hash(a) not in own or a.ty.ndim == call.ty.ndim for a in call.args)
        else:
            fits = True
        if not fits:
            return False
    return True


def _is_within(extents: Sequence[Any], shape: Sequence[Any]) -> bool:
    """Whether ``extents`` are those of ``shape``, or 1."""
    if len(extents) != len(shape):
        return False
    pairs = zip(extents, shape, strict=True)
    return all(structural_equal(one, _ONE) or structural_equal(one, other) for one, other in pairs)

"""Finds the normalisations that a graph spells out, in each of the ways that exporters write them.

The divisor is a root of a sum of squares: ``sqrt``, ``power(., 0.5)``, or an inverse that is
multiplied with, ``rsqrt``, ``power(., -0.5)``, ``1 / sqrt``. The sum is ``mean``, ``sum``,
``variance``, or one of them times a number. The squares are ``power(., 2)``, ``square``, products.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tvm import relax
from tvm_ffi import structural_equal

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.gemm_epilogue import scalar_value
from tvm_ext.relay_passes.normalization import NARROW_TYPES, Divisor, Guard, Normalization

# Where a clip has this upper limit or a larger one, it is a maximum.
_NO_LIMIT = 3.0e38

# A divisor as it is read from the root down: the guard, its number, and what is below the root.
_Guarded = tuple[Guard, float, relax.Expr]


@dataclass(frozen=True)
class _Squares:
    """``factor`` times the sum, or the mean, over ``axes`` of the squares of ``of``.

    ``deviates`` says that the squares are of the deviations of ``of`` from its mean.
    """

    of: relax.Expr
    axes: tuple[int, ...]
    is_mean: bool
    factor: float = 1.0
    deviates: bool = False


def spelled_out(
    view: GraphView, value: relax.Expr
) -> tuple[Normalization, tuple[relax.Var, ...]] | None:
    """The normalisation whose last operator is ``value``, and the variables on the way to it.

    Raises
    ------
    NotApplicable
        It is one, except for what the text says.
    """
    for numerator, guarded, multiplies in _quotients(view, value):
        found = _normalization(view, numerator, guarded)
        if found is not None:
            inner = _inner(view, value, found.x)
            return _narrow(view, replace(found, multiplies=multiplies)), inner
    return None


def _quotients(view: GraphView, value: relax.Expr) -> Iterator[tuple[relax.Expr, _Guarded, bool]]:
    """Each way to read ``value`` as a quotient: what is divided, by what, and whether an inverse is
    multiplied with.
    """
    if (divide := view.call(value, "relax.divide")) is not None:
        guarded = _divisor(view, divide.args[1])
        if guarded is not None:
            yield divide.args[0], guarded, False
    product = view.call(value, "relax.multiply")
    for factor, other in () if product is None else (product.args, reversed(product.args)):
        guarded = _inverse(view, other)
        if guarded is not None:
            yield factor, guarded, True


def _inverse(view: GraphView, expr: relax.Expr) -> _Guarded | None:
    """What is divided by where the model multiplies by ``expr``."""
    if (call := view.call(expr, "relax.rsqrt")) is not None:
        return _below_root(view, call.args[0])
    if (call := view.call(expr, "relax.power")) is not None:
        is_inverse = scalar_value(call.args[1], call.args[0]) == -0.5
        return _below_root(view, call.args[0]) if is_inverse else None
    call = view.call(expr, "relax.divide")
    if call is None or scalar_value(call.args[0], call.args[1]) != 1.0:
        return None
    return _divisor(view, call.args[1])


def _divisor(view: GraphView, expr: relax.Expr) -> _Guarded | None:
    """``expr`` as a root of something, with a number that keeps it away from zero."""
    if (call := view.call(expr, "relax.broadcast_to")) is not None:
        return _divisor(view, call.args[0])
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


def _normalization(
    view: GraphView, numerator: relax.Expr, guarded: _Guarded
) -> Normalization | None:
    guard, eps, below = guarded
    squares = _squares(view, below)
    if squares is None:
        return None
    divisor = Divisor(guard, eps, squares.is_mean, squares.factor)
    dtype = str(numerator.ty.dtype)
    x = _less_its_mean(view, numerator, squares.axes)
    if squares.deviates:
        is_same = x is not None and _same(view, x, squares.of)
        return Normalization(x, squares.axes, True, divisor, dtype) if is_same else None
    if not _same(view, numerator, squares.of):
        return None
    if x is not None:
        return Normalization(x, squares.axes, True, divisor, dtype)
    return Normalization(numerator, squares.axes, False, divisor, dtype)


def _squares(view: GraphView, expr: relax.Expr) -> _Squares | None:
    """``expr`` as a sum or mean of squares."""
    if view.call(expr, "relax.multiply", "relax.divide") is not None:
        return _scaled_squares(view, expr)
    call = view.call(expr, "relax.mean", "relax.sum", "relax.variance")
    if call is None:
        _refuse_difference_of_means(view, expr)
        return None
    axes = kept_axes(call)
    if axes is None:
        return None
    if call.op.name == "relax.variance":
        return _Squares(call.args[0], axes, True, deviates=True)
    base = _square_root(view, call.args[0])
    return None if base is None else _Squares(base, axes, call.op.name == "relax.mean")


def _scaled_squares(view: GraphView, expr: relax.Expr) -> _Squares | None:
    with_number = _with_number(view, expr, "relax.multiply")
    if with_number is None and (call := view.call(expr, "relax.divide")) is not None:
        number = scalar_value(call.args[1], call.args[0])
        with_number = (call.args[0], 1.0 / number) if number else None
    found = None if with_number is None else _squares(view, with_number[0])
    if with_number is None or found is None or not with_number[1] > 0.0:
        return None
    return replace(found, factor=found.factor * with_number[1])


def _refuse_difference_of_means(view: GraphView, expr: relax.Expr) -> None:
    """Raises for ``mean(x * x) - mean(x) * mean(x)``, which has other digits."""
    difference = view.call(expr, "relax.subtract")
    mean = None if difference is None else view.call(difference.args[0], "relax.mean")
    if difference is None or mean is None:
        return
    squares = mean.args[0], difference.args[1]
    if all(_square_root(view, part) is not None for part in squares):
        raise NotApplicable("its variance is a difference of two means, which has other digits")


def kept_axes(call: relax.Call) -> tuple[int, ...] | None:
    """The axes of a reduction that leaves them with an extent of 1; None for another one."""
    attrs: Any = call.attrs
    rank = call.args[0].ty.ndim
    if not attrs.keepdims or rank < 1:
        return None
    axes = range(rank) if attrs.axis is None else attrs.axis
    return tuple(sorted(int(axis) % rank for axis in axes)) or None


def _less_its_mean(view: GraphView, expr: relax.Expr, axes: tuple[int, ...]) -> relax.Expr | None:
    """``x`` where ``expr`` is ``x`` less its mean over ``axes``."""
    call = view.call(expr, "relax.subtract")
    mean = None if call is None else view.call(call.args[1], "relax.mean")
    if call is None or mean is None or kept_axes(mean) != axes:
        return None
    x = call.args[0]
    return x if _same(view, mean.args[0], x) else None


def _square_root(view: GraphView, expr: relax.Expr) -> relax.Expr | None:
    """What ``expr`` is the square of."""
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


def _inner(view: GraphView, value: relax.Expr, x: relax.Expr) -> tuple[relax.Var, ...]:
    """The variables between ``x`` and ``value``.

    Raises NotApplicable where one has other readers: it would be computed twice.
    """
    reads: Counter[relax.Var] = Counter()
    left = [value]
    while left:
        expr = left.pop()
        operands = expr.args if isinstance(expr, relax.Call) else [expr]
        for operand in operands:
            if not isinstance(operand, relax.Var) or operand.same_as(x):
                continue
            if operand not in reads:
                left.append(view.bindings()[operand])
            reads[operand] += 1
    if any(view.uses(var) > count for var, count in reads.items()):
        raise NotApplicable(
            "a value inside of it, such as the deviation, is used elsewhere as well"
        )
    return tuple(reversed(reads))

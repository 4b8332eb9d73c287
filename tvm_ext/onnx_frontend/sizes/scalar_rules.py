"""What ONNX's operators make of single numbers and of expressions of sizes.

Every rule gives exactly what the operator computes in the run: integers of a narrow type wrap
around, integer division cuts off, floats round. A rule gives None for what no expression says.
"""

import math
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.sym import Analyzer

from tvm_ext.onnx_frontend.sizes.quasi_affine import always
from tvm_ext.onnx_frontend.sizes.size_values import FLOATS, INTEGERS, Element
from tvm_ext.tensor_spec import SizeRange
from tvm_ext.tir_schedules.analysis.loop_nest import substitute

# What one size of a tensor is taken to be at most: with about twice as many elements of a byte no
# kernel could count them, and tf2onnx writes this number for the end of an axis.
LARGEST_SIZE = 10**9
# Integers that float32 and float64 hold exactly.
_EXACT = {"float32": 1 << 24, "float64": 1 << 53}


@dataclass
class SizeLimits:
    """What an import knows of symbolic sizes, and what it finds out.

    Attributes
    ----------
    named : set of variable
        Dimensions of inputs: no two have one name, as those have that a run finds out.
    known : dict of variable to SizeRange
        The sizes that dimensions of inputs can have.
    largest : dict of variable to int
        The largest size of a dimension with which every operator of the model can run.
    some : set of variable
        Dimensions of which none but 0 is in the way of knowing a size.
    single : set of variable
        Dimensions that must be 1 in every run that has any elements.
    results : dict of key to int
        Which of the sizes that broadcast is the result's in every run: by the sizes, see
        ``key_of_sizes``, its place among them. What an import before this one found out.
    found : dict of key to int
        The same, as this import finds it out.
    columns : dict of variable to sequence of sizes
        What a size that a run finds out is broadcast of.
    is_unclear : bool
        Whether there are sizes of which only the run can tell whether they agree.
    """

    named: Collection[tirx.Var] = ()
    known: dict[tirx.Var, SizeRange] = field(default_factory=dict)
    largest: dict[tirx.Var, int] = field(default_factory=dict)
    some: set[tirx.Var] = field(default_factory=set)
    single: set[tirx.Var] = field(default_factory=set)
    results: Mapping[Any, int] = field(default_factory=dict)
    found: dict[Any, int] = field(default_factory=dict)
    columns: dict[tirx.Var, Sequence[Any]] = field(default_factory=dict)
    is_unclear: bool = False


_limits: ContextVar[SizeLimits | None] = ContextVar("size_limits", default=None)


@contextmanager
def within(limits: SizeLimits) -> Iterator[SizeLimits]:
    """What rules say as long as it lasts holds for sizes within ``limits``."""
    token = _limits.set(limits)
    try:
        yield limits
    finally:
        _limits.reset(token)


_broadcasts: ContextVar[dict[Any, list[tirx.Var]] | None] = ContextVar("broadcasts", default=None)


@contextmanager
def in_own_scope() -> Iterator[None]:
    """Sizes that are defined as long as it lasts are known there only: in a branch, a body."""
    token = _broadcasts.set({})
    try:
        yield
    finally:
        _broadcasts.reset(token)


def known_broadcasts() -> dict[Any, list[tirx.Var]]:
    """What sizes broadcast to, which the run finds out, by these sizes.

    The masks of all layers are of the same sizes, so that the run compares them once.
    """
    known = _broadcasts.get()
    return {} if known is None else known


def note_equal(first: Any, second: Any) -> None:
    """Two sizes are equal in every run without an error: ``n`` and ``min(n, 512)``, so n <= 512.

    So it is where tables of positions and causal masks, which end somewhere, are cut to a length.
    """
    limits = _limits.get()
    for variable, other in ((first, second), (second, first)):
        if limits is None or not isinstance(variable, tirx.Var) or not isinstance(other, tirx.Min):
            continue
        sides = (other.a, other.b)
        most = [int(side) for side in sides if isinstance(side, tirx.IntImm)]
        # One row would broadcast.
        if most and most[0] > 1 and any(variable.same_as(side) for side in sides):
            limits.largest[variable] = min(limits.largest.get(variable, LARGEST_SIZE), most[0])


def note_broadcast(result: tirx.Var, column: Sequence[Any]) -> None:
    """The run finds out what sizes broadcast to."""
    limits = _limits.get()
    if limits is not None:
        limits.columns[result] = tuple(column)


def note_result(first: Any, second: Any) -> None:
    """Two sizes, or numbers of elements, are equal in every run without an error.

    So one of the sizes that broadcast is the result's: a mask as long as the tokens so far, beside
    keys, where the product with the values asks for as many columns as there are keys.
    """
    limits = _limits.get()
    if limits is None:
        return
    for value, wanted in ((first, second), (second, first)):
        for variable in variables_of(value):
            column = limits.columns.get(variable, ())
            key = key_of_sizes(column) if column else None
            for place, size in enumerate(column if key is not None else ()):
                known = substitute(value, {variable: size})
                if not is_expression(size) or not is_expression(known):
                    continue
                if analyzer_of(known, wanted).can_prove_equal(known, wanted):
                    limits.found[key] = place


def known_result(column: Sequence[Any]) -> Any:
    """The size of a column that an import before this one found to be the result's; or None."""
    limits = _limits.get()
    place = None if limits is None else limits.results.get(key_of_sizes(column))
    return None if place is None else column[place]


def key_of_sizes(column: Sequence[Any]) -> tuple[Any, ...] | None:
    """Sizes in names of the model's; None where they are made of others that a run finds out."""
    limits = _limits.get()
    columns, named = ({}, ()) if limits is None else (limits.columns, limits.named)
    key: list[Any] = []
    for size in column:
        if is_expression(size) and size in columns:
            key.append(key_of_sizes(columns[size]))
        elif any(variable not in named for variable in variables_of(size)):
            return None
        else:
            key.append(str(size))
    return None if None in key else tuple(key)


def note_some(size: Any) -> None:
    """A size of 0, as of a mask of no tokens, is all that is in the way of knowing another."""
    limits = _limits.get()
    if limits is not None and isinstance(size, tirx.Var):
        limits.some.add(size)


def note_times(count: Any) -> None:
    """A reshape has as many elements if ``count`` is 1: so is each dimension that it multiplies.

    Exporters write the batch of their example, 1, into reshapes, and call it a dynamic dimension.
    """
    limits, waiting = _limits.get(), [count]
    while waiting and limits is not None:
        factor = waiting.pop()
        if isinstance(factor, tirx.Mul):
            waiting += [factor.a, factor.b]
        elif isinstance(factor, tirx.Var):
            limits.single.add(factor)


def note_unclear() -> None:
    """There are sizes of which only the run can tell whether they agree."""
    limits = _limits.get()
    if limits is not None:
        limits.is_unclear = True


def analyzer_of(*values: Any) -> Analyzer:
    """An analyzer that knows what sizes can be."""
    analyzer = Analyzer()
    for variable in variables_of(*values):
        bound = analyzer.const_int_bound(variable)
        analyzer.update(variable, type(bound)(*ends_of(variable)))
    return analyzer


def ends_of(variable: tirx.Var) -> tuple[int, int]:
    """The least and the largest size that a variable stands for."""
    limits, anything = _limits.get(), SizeRange(0, LARGEST_SIZE)
    sizes = limits.known.get(variable, anything) if limits is not None else anything
    return sizes.low, min(sizes.high, LARGEST_SIZE)


def holds(condition: tirx.Expr) -> bool:
    """Whether a condition on integers is known to hold in every run."""
    return bool(analyzer_of(condition).can_prove(condition)) or always(condition, ends_of)


def variables_of(*values: Any) -> list[tirx.Var]:
    """The symbolic sizes in expressions."""
    found: dict[tirx.Var, None] = {}
    for value in values:
        if is_expression(value):
            found.update(dict.fromkeys(tirx.analysis.undefined_vars(value)))
    return list(found)


def is_expression(value: Any) -> bool:
    """Whether an element is an expression of sizes."""
    return isinstance(value, tvm.ir.Expr)


def is_positive(value: Element, least: int = 1) -> bool:
    """Whether an integer is known to be ``least`` or more in every run."""
    if is_expression(value):
        return holds(value >= least)
    return value is not None and value >= least


def _integer(value: Element, dtype: str) -> Element:
    """An integer in the range of its type, simplified."""
    if not is_expression(value):
        return int(np.array(value & ((1 << 64) - 1), np.uint64).astype(dtype))
    analyzer = analyzer_of(value)
    value = analyzer.simplify(value)
    if isinstance(value, tirx.IntImm):
        return _integer(int(value), dtype)
    if dtype == "int64":
        return value
    bound, ends = analyzer.const_int_bound(value), np.iinfo(dtype)
    if int(ends.min) <= bound.min_value and bound.max_value <= int(ends.max):
        return value
    return tirx.Cast("int64", tirx.Cast(dtype, value))


def _float(value: Element, dtype: str) -> Any:
    """A float as an expression; None where there is none."""
    if is_expression(value):
        return value
    return tirx.const(float(value), dtype) if math.isfinite(value) else None


def arithmetic(
    numbers: Callable[[Any, Any], Any], expressions: Callable[[Any, Any], Any]
) -> Callable[[Element, Element, str], Element]:
    """A rule of two operands, the same for integers and floats but for how these round."""

    def rule(a: Element, b: Element, dtype: str) -> Element:
        if a is None or b is None:
            return None
        known = not is_expression(a) and not is_expression(b)
        if dtype in INTEGERS:
            return _integer(numbers(a, b) if known else expressions(_wide(a), _wide(b)), dtype)
        if known:
            return np.dtype(dtype).type(numbers(a, b))
        a, b = _float(a, dtype), _float(b, dtype)
        return None if a is None or b is None else expressions(a, b)

    return rule


def _wide(value: Element) -> tirx.Expr:
    return value if is_expression(value) else tirx.const(int(value), "int64")


def _greater_of(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    return b if _never_above(a, b) else a if _never_above(b, a) else tirx.max(a, b)


def _lesser_of(a: tirx.Expr, b: tirx.Expr) -> tirx.Expr:
    return a if _never_above(a, b) else b if _never_above(b, a) else tirx.min(a, b)


def _never_above(a: tirx.Expr, b: tirx.Expr) -> bool:
    """TVM proves this of n and 2 * n, but leaves the smaller of the two as it is.

    Of floats it proves nothing, since one of them may be no number.
    """
    integers = str(a.ty.dtype) == str(b.ty.dtype) == "int64"
    return integers and holds(a <= b)


add = arithmetic(operator.add, operator.add)
subtract = arithmetic(operator.sub, operator.sub)
multiply = arithmetic(operator.mul, operator.mul)
maximum = arithmetic(max, _greater_of)
minimum = arithmetic(min, _lesser_of)
_quotient = arithmetic(np.divide, tirx.div)


def divide(a: Element, b: Element, dtype: str) -> Element:
    """Integers are cut off, whatever their signs."""
    if dtype in FLOATS:
        return _quotient(a, b, dtype)
    if a is None or b is None or (not is_expression(b) and b == 0):
        return None
    if not is_expression(b) and b < 0:
        return negative(divide(a, -b, dtype), dtype)
    if not is_expression(a) and not is_expression(b):
        return _integer(a // b if a >= 0 else -(-a // b), dtype)
    if not is_positive(b):
        return None
    cut = tirx.floordiv if is_positive(a, 0) else tirx.truncdiv
    return _integer(cut(_wide(a), _wide(b)), dtype)


def remainder(a: Element, b: Element, dtype: str, like_dividend: bool) -> Element:
    """With the sign of the divisor, or that of the dividend."""
    if a is None or b is None:
        return None
    known = not is_expression(a) and not is_expression(b)
    if dtype in FLOATS:
        return np.dtype(dtype).type(np.fmod(a, b)) if known and like_dividend else None
    if like_dividend:
        product = multiply(divide(a, b, dtype), b, dtype)
        return None if product is None else subtract(a, product, dtype)
    if not is_expression(b) and b < 0:
        turned = remainder(negative(a, dtype), -b, dtype, like_dividend)
        return negative(turned, dtype)
    if not is_positive(b):
        return None
    return a % b if known else _integer(tirx.floormod(_wide(a), _wide(b)), dtype)


def negative(a: Element, dtype: str) -> Element:
    """``-a``."""
    return subtract(0 if dtype in INTEGERS else np.dtype(dtype).type(-0.0), a, dtype)


def absolute(a: Element, dtype: str) -> Element:
    """``|a|``."""
    if dtype in FLOATS and is_expression(a):
        return None
    return maximum(a, negative(a, dtype), dtype)


def power(a: Element, exponent: Element, dtype: str) -> Element:
    """Small whole exponents, as ONNX Runtime multiplies them out."""
    if a is None or exponent is None or is_expression(exponent):
        return None
    if exponent not in (1, 2, 3):
        return None
    result = a
    for _ in range(int(exponent) - 1):
        result = multiply(result, a, dtype)
    return result


def _rounding(
    numbers: Callable[[Any], Any], expressions: Callable[[Any], Any] | None
) -> Callable[[Element, str], Element]:
    """A rule for floats; without ``expressions``, TVM has no form that a shape may contain."""

    def rule(a: Element, dtype: str) -> Element:
        if a is None or dtype not in FLOATS:
            return None
        if not is_expression(a):
            return np.dtype(dtype).type(numbers(a))
        if isinstance(a, tirx.Cast) and expressions is not None:
            return a
        return None if expressions is None else expressions(a)

    return rule


floor = _rounding(np.floor, tirx.floor)
ceil = _rounding(np.ceil, tirx.ceil)
# Halves go to the even neighbour.
nearest = _rounding(np.rint, None)
square_root = _rounding(np.sqrt, None)


_CONTRARY = {
    operator.eq: operator.ne,
    operator.gt: operator.le,
    operator.ge: operator.lt,
    operator.lt: operator.ge,
    operator.le: operator.gt,
}
_EXPRESSIONS = {
    operator.eq: tirx.EQ,
    operator.ne: tirx.NE,
    operator.gt: tirx.GT,
    operator.ge: tirx.GE,
    operator.lt: tirx.LT,
    operator.le: tirx.LE,
}


def comparison(relation: Callable[[Any, Any], Any]) -> Callable[[Element, Element, str], Element]:
    """A rule that says True or False where that is so in every run."""

    def rule(a: Element, b: Element, dtype: str) -> Element:
        if a is None or b is None:
            return None
        if not is_expression(a) and not is_expression(b):
            return bool(relation(a, b))
        if dtype == "bool":
            return None
        if dtype in FLOATS:
            a, b = _float(a, dtype), _float(b, dtype)
            return None if a is None or b is None else _EXPRESSIONS[relation](a, b)
        a, b = _wide(a), _wide(b)
        return _decided(_EXPRESSIONS[relation](a, b), _EXPRESSIONS[_CONTRARY[relation]](a, b))

    return rule


def _decided(condition: tirx.Expr, contrary: tirx.Expr) -> Element:
    if holds(condition):
        return True
    return False if holds(contrary) else condition


def _logical(
    decisive: bool, expressions: Callable[[Any, Any], Any]
) -> Callable[[Element, Element, str], Element]:
    """A rule that gives ``decisive`` beside whatever only the run knows."""

    def rule(a: Element, b: Element, dtype: str) -> Element:
        if a is decisive or b is decisive:
            return decisive
        if a is None or b is None:
            return None
        if is_expression(a) and is_expression(b):
            return expressions(a, b)
        return a if is_expression(a) else b

    return rule


both = _logical(False, tirx.all)
either = _logical(True, tirx.any)


def contrary(a: Element, dtype: str) -> Element:
    """Logical not."""
    if a is None:
        return None
    return tirx.Not(a) if is_expression(a) else not a


def chosen(condition: Element, a: Element, b: Element, dtype: str) -> Element:
    """``a`` where the condition holds, else ``b``."""
    if condition is True or condition is False:
        return a if condition else b
    if condition is None or a is None or b is None:
        return None
    if dtype in INTEGERS:
        return _integer(tirx.Select(condition, _wide(a), _wide(b)), dtype)
    if dtype == "bool":
        return either(both(condition, a, dtype), both(contrary(condition, dtype), b, dtype), dtype)
    a, b = _float(a, dtype), _float(b, dtype)
    return None if a is None or b is None else tirx.Select(condition, a, b)


def converted(a: Element, source: str, target: str) -> Element:
    """Cast between integers, floats and booleans."""
    if a is None or source == target:
        return a
    if target == "bool":
        return contrary(comparison(operator.eq)(a, 0, source), "bool")
    if source == "bool" and is_expression(a):
        a, source = tirx.Select(a, _wide(1), _wide(0)), "int64"
    if target in INTEGERS:
        return _integer(_whole(a, source), target) if source in FLOATS else _integer(a, target)
    if not is_expression(a):
        return np.dtype(target).type(a)
    return tirx.Cast(target, a)


def _whole(a: Element, dtype: str) -> Element:
    """A float cut off to an integer."""
    if not is_expression(a):
        return int(a) if math.isfinite(a) else 0
    if isinstance(a, tirx.Cast) and str(a.value.ty.dtype) == "int64":
        bound = analyzer_of(a).const_int_bound(a.value)
        if -_EXACT[dtype] <= bound.min_value and bound.max_value <= _EXACT[dtype]:
            return a.value
    return tirx.Cast("int64", a)

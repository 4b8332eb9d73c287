"""The language of rewrite rules: operators over variables and constants.

``x * 1`` and ``transpose(transpose(x, axes="p"), axes="q")`` are expressions. They say nothing of
how they are used: an interpretation builds Relax of them, computes them with NumPy, or, in the
tests, writes them as terms of a solver.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

T = TypeVar("T")


class Expression:
    """A tree of operators; Python's arithmetic and comparisons on it make larger ones."""

    def __add__(self, other: "Operand") -> "Apply":
        return OPERATORS["add"](self, other)

    def __radd__(self, other: "Operand") -> "Apply":
        return OPERATORS["add"](other, self)

    def __sub__(self, other: "Operand") -> "Apply":
        return OPERATORS["subtract"](self, other)

    def __rsub__(self, other: "Operand") -> "Apply":
        return OPERATORS["subtract"](other, self)

    def __mul__(self, other: "Operand") -> "Apply":
        return OPERATORS["multiply"](self, other)

    def __rmul__(self, other: "Operand") -> "Apply":
        return OPERATORS["multiply"](other, self)

    def __truediv__(self, other: "Operand") -> "Apply":
        return OPERATORS["divide"](self, other)

    def __rtruediv__(self, other: "Operand") -> "Apply":
        return OPERATORS["divide"](other, self)

    def __pow__(self, other: "Operand") -> "Apply":
        return OPERATORS["power"](self, other)

    def __neg__(self) -> "Apply":
        return OPERATORS["negative"](self)

    def __le__(self, other: "Operand") -> "Apply":
        return OPERATORS["less_equal"](self, other)

    def __ge__(self, other: "Operand") -> "Apply":
        return OPERATORS["greater_equal"](self, other)

    def __and__(self, other: "Operand") -> "Apply":
        return OPERATORS["logical_and"](self, other)

    def __or__(self, other: "Operand") -> "Apply":
        return OPERATORS["logical_or"](self, other)


Operand = Expression | int | float | bool


@dataclass(frozen=True, eq=False)
class Variable(Expression):
    """Any tensor. The same variable twice in a pattern is the same tensor twice."""

    name: str


@dataclass(frozen=True, eq=False)
class Constant(Variable):
    """A tensor whose elements are known when the model is compiled."""


@dataclass(frozen=True, eq=False)
class Number(Expression):
    """A constant of which every element is this number; the two zeros are different numbers."""

    value: int | float | bool


# In a pattern, the name under which an attribute is remembered. In a result such a name, or a
# function of the match that computes the attribute.
Attribute = str | Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class Apply(Expression):
    """An operator applied to operands."""

    operator: "Operator"
    operands: tuple[Expression, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Operator:
    """An operator of the language.

    Attributes
    ----------
    name : str
        Its name here, which is Relax's where Relax has one operator for it.
    evaluate : callable
        Arrays, and attributes by name, to an array of NumPy.
    cost : int
        The work of one element, roughly in additions. A rewrite has to lower the sum.
    is_commutative : bool
        Whether its two operands may change places.
    """

    name: str
    evaluate: Callable[..., Any]
    cost: int = 2
    is_commutative: bool = False

    def __call__(self, *operands: Operand, **attributes: Attribute) -> Apply:
        """The operator applied; plain numbers become ``Number``."""
        return Apply(self, tuple(map(_expression, operands)), attributes)


def _expression(operand: Operand) -> Expression:
    return operand if isinstance(operand, Expression) else Number(operand)


class Interpretation(Protocol[T]):
    """What an expression means, bottom up."""

    def number(self, value: int | float | bool, like: T | None) -> T:
        """A number, of the type of ``like``, or of the whole result where that is None."""

    def apply(self, operator: Operator, operands: list[T], attributes: dict[str, Any]) -> T:
        """What ``operator`` makes of its operands."""


def interpret(
    expression: Expression,
    values: Mapping[str, T],
    attribute: Callable[[Attribute], Any],
    meaning: Interpretation[T],
) -> T:
    """The value of ``expression`` where variables have these values.

    ``attribute`` gives the value of an attribute that is written as a name or a function.
    """
    if isinstance(expression, Variable):
        return values[expression.name]
    if isinstance(expression, Number):
        return meaning.number(expression.value, None)
    if not isinstance(expression, Apply):
        raise TypeError(f"{expression!r} is no expression; expected a variable, number or operator")
    known = [
        None if isinstance(one, Number) else interpret(one, values, attribute, meaning)
        for one in expression.operands
    ]
    # A number has the type of the operand beside it: the last, as the first of where is a mask.
    like = next((one for one in reversed(known) if one is not None), None)
    operands = [
        meaning.number(one.value, like) if isinstance(one, Number) else value
        for one, value in zip(expression.operands, known, strict=True)
    ]
    given = {name: attribute(one) for name, one in expression.attributes.items()}
    return meaning.apply(expression.operator, operands, given)  # type: ignore[arg-type]


class WithNumpy:
    """Expressions computed with NumPy; ``dtype`` is that of a number that stands alone."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = np.dtype(dtype)

    def number(self, value: int | float | bool, like: np.ndarray | None) -> np.ndarray:
        """A scalar; True and False are booleans whatever stands beside them."""
        if isinstance(value, bool):
            return np.asarray(value)
        return np.asarray(value, self._dtype if like is None else like.dtype)

    def apply(
        self, operator: Operator, operands: list[np.ndarray], attributes: dict[str, Any]
    ) -> np.ndarray:
        """The operator's result, rounded to the type of its operands as in a kernel."""
        with np.errstate(all="ignore"):
            return np.asarray(operator.evaluate(*operands, **attributes))


def subexpressions(expression: Expression) -> Iterator[Expression]:
    """The expression and all below it, from the root, operands in their order."""
    yield expression
    if isinstance(expression, Apply):
        for operand in expression.operands:
            yield from subexpressions(operand)


def variables_of(expression: Expression) -> list[Variable]:
    """The variables and constants in the order of their first use, each name once."""
    found: dict[str, Variable] = {}
    for one in subexpressions(expression):
        if isinstance(one, Variable):
            found.setdefault(one.name, one)
    return list(found.values())


# Operators as NumPy computes them. What the kernels do with NaN and the two zeros is followed here:
# maximum and minimum have the constant first (PropagateNan), and return the second operand where
# the comparison does not hold.


def _maximum(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.where(first > second, first, second)


def _minimum(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.where(first < second, first, second)


def _clip(x: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    return _minimum(high, _maximum(low, x))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    one = np.asarray(1, x.dtype)
    return one / (one + np.exp(-x))


def _slice(x: np.ndarray, axes: Any, begin: Any, end: Any, strides: Any) -> np.ndarray:
    index = [slice(None)] * x.ndim
    for axis, *bounds in zip(axes, begin, end, strides, strict=True):
        index[axis] = slice(*bounds)
    return x[tuple(index)]


def _take(x: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    return np.take(x, places, axis)


def _split(x: np.ndarray, parts: Any, axis: int, index: int) -> np.ndarray:
    return np.split(x, parts, axis)[index]


def _pad(x: np.ndarray, widths: Any, mode: str, value: Any) -> np.ndarray:
    if not widths:
        return x
    pairs = list(zip(widths[0::2], widths[1::2], strict=True))
    grown = [(max(before, 0), max(after, 0)) for before, after in pairs]
    cut = tuple(
        slice(max(-before, 0), n + max(before, 0) + max(after, 0) - max(-after, 0))
        for (before, after), n in zip(pairs, x.shape, strict=True)
    )
    # Elements that a negative width cuts off are cut after the others were added.
    return np.pad(x, grown, constant_values=np.asarray(value, x.dtype))[cut]


def _reduction(ufunc: Callable[..., Any]) -> Callable[..., Any]:
    def evaluate(x: np.ndarray, axes: Any, keepdims: bool) -> np.ndarray:
        return np.asarray(ufunc(x, axis=tuple(axes), keepdims=keepdims)).astype(x.dtype)

    return evaluate


def _sum(x: np.ndarray, axis: Any, keepdims: bool) -> np.ndarray:
    # From the zero that kernels begin a sum with: it hides the sign of a negative zero.
    return np.asarray(np.sum(x, axis=axis, keepdims=keepdims, initial=x.dtype.type(0)))


OPERATORS: dict[str, Operator] = {
    one.name: one
    for one in (
        Operator("negative", np.negative, 1),
        Operator("abs", np.abs, 1),
        Operator("relu", lambda x: _maximum(np.zeros((), x.dtype), x), 1),
        Operator("square", np.square),
        Operator("floor", np.floor),
        Operator("ceil", np.ceil),
        Operator("round", np.rint),
        Operator("trunc", np.trunc),
        Operator("sign", np.sign),
        Operator("sqrt", np.sqrt, 8),
        Operator("exp", np.exp, 20),
        Operator("log", np.log, 20),
        Operator("cos", np.cos, 20),
        Operator("sigmoid", _sigmoid, 24),
        Operator("tanh", np.tanh, 24),
        Operator("logical_not", np.logical_not, 1),
        Operator("add", np.add, 2, is_commutative=True),
        Operator("subtract", np.subtract),
        Operator("multiply", np.multiply, 2, is_commutative=True),
        Operator("divide", np.divide, 8),
        Operator("power", np.power, 40),
        Operator("maximum", _maximum, 2, is_commutative=True),
        Operator("minimum", _minimum, 2, is_commutative=True),
        Operator("equal", np.equal, 2, is_commutative=True),
        Operator("not_equal", np.not_equal, 2, is_commutative=True),
        Operator("less", np.less),
        Operator("less_equal", np.less_equal),
        Operator("greater", np.greater),
        Operator("greater_equal", np.greater_equal),
        Operator("logical_and", np.logical_and, 2, is_commutative=True),
        Operator("logical_or", np.logical_or, 2, is_commutative=True),
        Operator("logical_xor", np.logical_xor, 2, is_commutative=True),
        Operator("where", np.where),
        Operator("clip", _clip, 3),
        Operator("cast", lambda x, dtype: x.astype(dtype)),
        Operator("full", lambda value, shape: np.full(shape, value, value.dtype), 1),
        Operator("transpose", lambda x, axes: np.transpose(x, axes), 10),
        Operator("reshape", lambda x, shape: np.reshape(x, shape), 1),
        Operator("broadcast_to", lambda x, shape: np.broadcast_to(x, shape)),
        Operator("strided_slice", _slice, 4),
        Operator("take", _take, 5),
        Operator("concat", lambda *xs, axis: np.concatenate(xs, axis), 4),
        Operator("split", _split, 3),
        Operator("pad", _pad, 4),
        Operator("tile", lambda x, repeats: np.tile(x, repeats), 4),
        Operator("repeat", lambda x, repeats, axis: np.repeat(x, repeats, axis), 4),
        Operator("sum", _reduction(_sum), 4),
        Operator("mean", _reduction(np.mean), 5),
        Operator("max", _reduction(np.max), 4),
        Operator("min", _reduction(np.min), 4),
    )
}

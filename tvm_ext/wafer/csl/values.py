"""What an assignment computes, as a tree of loads, numbers and operations."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.tuning.mesh_analysis.affine import Affine
from tvm_ext.wafer.csl.errors import NotCovered

FLOATS = ("float32", "float16")
"""What vector instructions compute on."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a kernel.

    Attributes
    ----------
    number : int
        Of its own in the kernel.
    name : str
        Not always of its own.
    dtype : str
        Of its elements.
    shape : tuple[int, ...]
        Of the whole tensor, over all PEs.
    is_parameter : bool
        Whether the kernel gets or returns it.
    """

    number: int
    name: str
    dtype: str
    shape: tuple[int, ...]
    is_parameter: bool


@dataclass(frozen=True)
class Load:
    """One element of a tensor; ``indices`` has one sum a dimension."""

    tensor: Tensor
    indices: tuple[Affine, ...]

    @property
    def dtype(self) -> str:
        """Of the element."""
        return self.tensor.dtype


@dataclass(frozen=True)
class Number:
    """A constant."""

    value: float
    dtype: str


@dataclass(frozen=True)
class Operation:
    """``name`` applied to ``operands``: see the tables below; ``dtype`` is the result's."""

    name: str
    operands: "tuple[Value, ...]"
    dtype: str


Value = Load | Number | Operation

_BINARY = {
    tirx.Add: "add",
    tirx.Sub: "sub",
    tirx.Mul: "mul",
    tirx.Div: "div",
    tirx.Max: "max",
    tirx.Min: "min",
}
COMPARISONS = {
    tirx.LT: "olt",
    tirx.LE: "ole",
    tirx.GT: "ogt",
    tirx.GE: "oge",
    tirx.EQ: "oeq",
    tirx.NE: "une",
}
# Functions of one value: what TVM calls them, and what the operation is called here.
_FUNCTIONS = {
    "tirx.exp": "exp",
    "tirx.log": "log",
    "tirx.tanh": "tanh",
    "tirx.sqrt": "sqrt",
    "tirx.rsqrt": "invsqrt",
    "tirx.sin": "sin",
    "tirx.cos": "cos",
    "tirx.floor": "floor",
    "prim.floor": "floor",
    "tirx.ceil": "ceil",
    "prim.ceil": "ceil",
    "tirx.fabs": "abs",
    "prim.fabs": "abs",
    "prim.abs": "abs",
}


def value_of(expr: Any, load: Callable[[Any], Load]) -> Value:
    """The tree of an expression on float32 and float16.

    Raises NotCovered for other types and for operations that no code is written for.

    Parameters
    ----------
    expr
        The expression.
    load
        Makes a Load of one load of a tensor.
    """
    return _Translator(load).value(expr)


def loads_of(value: Value) -> Iterator[Load]:
    """All loads of a tree, from left to right."""
    if isinstance(value, Load):
        yield value
    elif isinstance(value, Operation):
        for operand in value.operands:
            yield from loads_of(operand)


def _number(value: float, dtype: str) -> Number:
    if not math.isfinite(value):
        raise NotCovered(f"the constant {value} has no literal")
    return Number(value, dtype)


class _Translator:
    def __init__(self, load: Callable[[Any], Load]) -> None:
        self._load = load

    def value(self, expr: Any) -> Value:
        dtype = str(expr.ty)
        if dtype not in FLOATS:
            raise NotCovered(f"it computes on {dtype}; expected float32 or float16")
        kind = type(expr)
        if kind is tvm.ir.TensorLoad:
            return self._load(expr)
        if kind is tirx.FloatImm:
            return _number(float(expr.value), dtype)
        if kind in _BINARY:
            return Operation(_BINARY[kind], (self.value(expr.a), self.value(expr.b)), dtype)
        if kind is tirx.Cast:
            return self._cast(expr, dtype)
        if kind is tirx.Select:
            return self._choice(dtype, expr.condition, expr.true_value, expr.false_value)
        if kind is tvm.ir.Call:
            return self._call(str(expr.op.name), list(expr.args), dtype)
        raise NotCovered(f"a {kind.__name__} has no instruction")

    def _cast(self, expr: Any, dtype: str) -> Value:
        if isinstance(expr.value, tirx.IntImm):
            return Number(float(expr.value.value), dtype)
        return Operation("cast", (self.value(expr.value),), dtype)

    def _call(self, name: str, arguments: list[Any], dtype: str) -> Value:
        if name in _FUNCTIONS:
            return Operation(_FUNCTIONS[name], (self.value(arguments[0]),), dtype)
        if name == "tirx.pow":
            base, exponent = (self.value(argument) for argument in arguments)
            return Operation("pow", (base, exponent), dtype)
        if name == "tirx.sigmoid":
            one = Number(1.0, dtype)
            negated = Operation("neg", (self.value(arguments[0]),), dtype)
            below = Operation("add", (one, Operation("exp", (negated,), dtype)), dtype)
            return Operation("div", (one, below), dtype)
        if name == "prim.if_then_else":
            return self._choice(dtype, *arguments)
        raise NotCovered(f"the function {name} has no instruction and is not in <math>")

    def _choice(self, dtype: str, condition: Any, true: Any, false: Any) -> Value:
        kind = type(condition)
        if kind not in COMPARISONS:
            raise NotCovered("a condition is no comparison of two values: it is on a border")
        compared = tuple(self.value(side) for side in (condition.a, condition.b))
        name = f"select_{COMPARISONS[kind]}"
        return Operation(name, (*compared, self.value(true), self.value(false)), dtype)

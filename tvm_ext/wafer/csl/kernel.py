"""A kernel as the program of one PE: arrays of its memory, assignments in loops, messages.

Loops are known by numbers of their own, as in the sums of ``Affine``; a PE's row and column are two
more, ``ROW_NUMBER`` and ``COLUMN_NUMBER``.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.tir_schedules.analysis.affine import Affine, affine_of
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW

# What an assignment computes, as a tree of loads, numbers and operations.


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

    Raises NotApplicable for other types and for operations that no code is written for.

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
        raise NotApplicable(f"the constant {value} has no literal")
    return Number(value, dtype)


class _Translator:
    def __init__(self, load: Callable[[Any], Load]) -> None:
        self._load = load

    def value(self, expr: Any) -> Value:
        dtype = str(expr.ty)
        if dtype not in FLOATS:
            raise NotApplicable(f"it computes on {dtype}; expected float32 or float16")
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
        raise NotApplicable(f"a {kind.__name__} has no instruction")

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
        raise NotApplicable(f"the function {name} has no instruction and is not in <math>")

    def _choice(self, dtype: str, condition: Any, true: Any, false: Any) -> Value:
        kind = type(condition)
        if kind not in COMPARISONS:
            raise NotApplicable("a condition is no comparison of two values: it is on a border")
        compared = tuple(self.value(side) for side in (condition.a, condition.b))
        name = f"select_{COMPARISONS[kind]}"
        return Operation(name, (*compared, self.value(true), self.value(false)), dtype)


ROW_NUMBER = -1
COLUMN_NUMBER = -2

PLACES = {ROW: (COLUMN, COLUMN_NUMBER), COLUMN: (ROW, ROW_NUMBER)}
"""Along a row of PEs, places are columns."""

INPUT = "input"
OUTPUT = "output"
LOCAL = "local"

ELEMENT_BYTES = {"float32": 4, "float16": 2}
_WORD_BYTES = 4


@dataclass(frozen=True)
class LocalTile:
    """The part of a tensor that lies in the memory of one PE, as one array.

    Attributes
    ----------
    tensor : Tensor
        What it is a part of.
    role : str
        "input" or "output" if the host writes or reads it, else "local".
    shape : tuple[int, ...]
        Elements along each dimension of the tensor.
    origins : tuple[Affine, ...]
        For each dimension, the tensor's index of the first element: a sum over the PE's row and
        column (and over the step, for an array that is filled in each step).
    order : tuple[int, ...]
        The dimensions from the outermost to the innermost in memory.
    """

    tensor: Tensor
    role: str
    shape: tuple[int, ...]
    origins: tuple[Affine, ...]
    order: tuple[int, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """For each dimension, elements between neighbours in memory."""
        found, stride = [0] * len(self.shape), 1
        for dimension in reversed(self.order):
            found[dimension] = stride
            stride *= self.shape[dimension]
        return tuple(found)

    @property
    def elements(self) -> int:
        """Length of the array: whole words of 32 bits, which is what messages carry."""
        per_word = _WORD_BYTES // ELEMENT_BYTES[self.tensor.dtype]
        return -(-math.prod(self.shape) // per_word) * per_word

    @property
    def bytes(self) -> int:
        """Of memory."""
        return self.elements * ELEMENT_BYTES[self.tensor.dtype]

    @property
    def words(self) -> int:
        """Words of 32 bits."""
        return self.bytes // _WORD_BYTES

    def offset(self, indices: tuple[Affine, ...]) -> Affine:
        """Where an element lies in the array: elements from its start."""
        total = Affine(0)
        for index, origin, stride in zip(indices, self.origins, self.strides, strict=True):
            total = total.plus(index, stride).plus(origin, -stride)
        return total


@dataclass(frozen=True)
class CslLoop:
    """``extent`` iterations, from 0 on."""

    number: int
    extent: int


@dataclass(frozen=True)
class Assignment:
    """``target = value`` for each iteration of ``loops``.

    Attributes
    ----------
    name : str
        Of the kernel's block.
    loops : tuple[CslLoop, ...]
        From the outermost to the innermost, which one vector instruction goes along.
    target : Load
        What is written.
    value : Value
        What is computed.
    limits : tuple[tuple[Affine, int], ...]
        Sums over the loops, each with the number that it has to stay below.
    pattern : str
        The pattern of messages that the block's annotation names; empty for plain work.
    """

    name: str
    loops: tuple[CslLoop, ...]
    target: Load
    value: Value
    limits: tuple[tuple[Affine, int], ...] = ()
    pattern: str = ""

    @property
    def loads(self) -> tuple[Load, ...]:
        """What is read."""
        return tuple(loads_of(self.value))


@dataclass(frozen=True)
class Repeat:
    """``items`` one after the other, for each iteration of a loop."""

    loop: CslLoop
    items: "tuple[Assignment | Repeat, ...]"


@dataclass(frozen=True)
class Multicast:
    """A tile that one PE of each row, or of each column, sends to all PEs of it.

    Attributes
    ----------
    array : Tensor
        Where it comes to lie, in the sender as well.
    copy : Assignment or None
        What the sender does before: its part of the tensor, into that array. None where it is
        there already.
    along : str
        "row" or "column": which PEs share the tile.
    first_sender : int
        Who sends in the first step: its place along the line.
    per_sender : int
        Steps until the next one sends; 0 if the same PE sends in all steps.
    within : int
        The number of the loop that counts those steps, in the offsets of ``copy``.
    """

    array: Tensor
    copy: Assignment | None
    along: str
    first_sender: int = 0
    per_sender: int = 0
    within: int = 0


@dataclass(frozen=True)
class CslSteps:
    """Messages, then work, once or several times.

    Attributes
    ----------
    loop : CslLoop
        Counts the steps.
    overlapped : bool
        Whether the messages of a step are under way while the step before computes.
    messages : tuple[Multicast, ...]
        What comes first in each step: at most one along a row and one along a column.
    items : tuple
        What is computed then.
    """

    loop: CslLoop
    overlapped: bool
    messages: tuple[Multicast, ...]
    items: tuple[Assignment | Repeat, ...]


Item = Assignment | Repeat | CslSteps


@dataclass(frozen=True)
class PeKernel:
    """The program of one PE, the same for all.

    Attributes
    ----------
    name : str
        Of the kernel.
    rows, columns : int
        PEs that it runs on.
    items : tuple[Item, ...]
        What a PE does, in order.
    tiles : dict
        By tensor, its array in the PE: parameters first, in order.
    """

    name: str
    rows: int
    columns: int
    items: tuple[Item, ...]
    tiles: Mapping[Tensor, LocalTile]

    @property
    def double_buffered(self) -> frozenset[Tensor]:
        """Tensors with two arrays: one is read while the other one is filled by messages."""
        return frozenset(
            message.array
            for item in self.items
            if isinstance(item, CslSteps) and self.alternates(item)
            for message in item.messages
        )

    def holder(self, tensor: Tensor) -> tuple[int | None, int | None]:
        """The row and the column of the PEs that the host gives a tensor to; None for all.

        A tensor that is sent lies only in the sender, unless each PE of the line has its own piece.
        """
        held: dict[str, int | None] = {ROW: None, COLUMN: None}
        arrays: set[Tensor] = set()
        cut = {loop for origin in self.tiles[tensor].origins for loop in origin.factors}
        for message in (
            m for item in self.items if isinstance(item, CslSteps) for m in item.messages
        ):
            if message.copy is not None and message.copy.loads[0].tensor == tensor:
                arrays.add(message.array)
            axis, number = PLACES[message.along]
            if message.array in arrays and number not in cut and self.pes_along(message.along) > 1:
                held[axis] = message.first_sender
        return held[ROW], held[COLUMN]

    def alternates(self, steps: CslSteps) -> bool:
        """Whether even and odd steps have arrays of their own for what they are sent."""
        return steps.overlapped and steps.loop.extent > 1 and self.waits(steps)

    def waits(self, steps: CslSteps) -> bool:
        """Whether messages of ``steps`` go from one PE to another: a line may be a single PE."""
        return any(self.pes_along(message.along) > 1 for message in steps.messages)

    def pes_along(self, line: str) -> int:
        """PEs of one row, or of one column."""
        return {ROW: self.columns, COLUMN: self.rows}[line]


def assignments_of(items: tuple[Item, ...]) -> Iterator[Assignment]:
    """All assignments, those that prepare messages included."""
    for item in items:
        if isinstance(item, Assignment):
            yield item
            continue
        if isinstance(item, CslSteps):
            yield from (one.copy for one in item.messages if one.copy is not None)
        yield from assignments_of(item.items)


# Indices as sums of multiples of loop variables: parts of them, and their range.


def sum_of(index: Any, known: Mapping[int, Affine | None], of: str = "of a block") -> Affine:
    """An index as a sum; ``known`` has what each variable is, by the variable's hash.

    Raises NotApplicable when it is none (it divides, or depends on data); ``of`` says whose it is.
    """
    found = affine_of(index, known)
    if found is None or found.others:
        raise NotApplicable(f"an index {of} is no sum of multiples of the loops")
    return found


def part(index: Affine, loops: Collection[int]) -> Affine:
    """The terms of ``loops``, without the constant."""
    return Affine(0, {loop: factor for loop, factor in index.factors.items() if loop in loops})


def without(index: Affine, loops: Collection[int]) -> Affine:
    """All but the terms of ``loops``."""
    return index.plus(part(index, loops), -1)


def range_of(index: Affine, extents: Mapping[int, int]) -> tuple[int, int]:
    """The least and the greatest value while each loop goes from 0 below its extent."""
    ends = [factor * (extents[loop] - 1) for loop, factor in index.factors.items()]
    least = index.constant + sum(end for end in ends if end < 0)
    return least, index.constant + sum(end for end in ends if end > 0)

"""A kernel as the program of one PE: arrays of its memory, assignments in loops, messages.

Loops are known by numbers of their own, as in the sums of ``Affine``; a PE's row and column are two
more, ``ROW_NUMBER`` and ``COLUMN_NUMBER``.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW
from tvm_ext.tuning.mesh_analysis.affine import Affine
from tvm_ext.wafer.csl.values import Load, Tensor, Value, loads_of

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
class Tile:
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
class Loop:
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
    loops : tuple[Loop, ...]
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
    loops: tuple[Loop, ...]
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

    loop: Loop
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
class Steps:
    """Messages, then work, once or several times.

    Attributes
    ----------
    loop : Loop
        Counts the steps.
    overlapped : bool
        Whether the messages of a step are under way while the step before computes.
    messages : tuple[Multicast, ...]
        What comes first in each step: at most one along a row and one along a column.
    items : tuple
        What is computed then.
    """

    loop: Loop
    overlapped: bool
    messages: tuple[Multicast, ...]
    items: tuple[Assignment | Repeat, ...]


Item = Assignment | Repeat | Steps


@dataclass(frozen=True)
class MeshKernel:
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
    tiles: Mapping[Tensor, Tile]

    @property
    def double_buffered(self) -> frozenset[Tensor]:
        """Tensors with two arrays: one is read while the other one is filled by messages."""
        return frozenset(
            message.array
            for item in self.items
            if isinstance(item, Steps) and self.alternates(item)
            for message in item.messages
        )

    def holder(self, tensor: Tensor) -> tuple[int | None, int | None]:
        """The row and the column of the PEs that the host gives a tensor to; None for all.

        A tensor that is sent lies only in the sender, unless each PE of the line has its own piece.
        """
        held: dict[str, int | None] = {ROW: None, COLUMN: None}
        arrays: set[Tensor] = set()
        cut = {loop for origin in self.tiles[tensor].origins for loop in origin.factors}
        for message in (m for item in self.items if isinstance(item, Steps) for m in item.messages):
            if message.copy is not None and message.copy.loads[0].tensor == tensor:
                arrays.add(message.array)
            axis, number = PLACES[message.along]
            if message.array in arrays and number not in cut and self.pes_along(message.along) > 1:
                held[axis] = message.first_sender
        return held[ROW], held[COLUMN]

    def alternates(self, steps: Steps) -> bool:
        """Whether even and odd steps have arrays of their own for what they are sent."""
        return steps.overlapped and steps.loop.extent > 1 and self.waits(steps)

    def waits(self, steps: Steps) -> bool:
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
        if isinstance(item, Steps):
            yield from (one.copy for one in item.messages if one.copy is not None)
        yield from assignments_of(item.items)

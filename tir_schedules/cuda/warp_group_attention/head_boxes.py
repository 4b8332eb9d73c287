"""Query, keys and values as tensors of which bulk copies bring boxes to shared memory."""

import math
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention.attention_problem import NamedTensor
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_map import (
    SWIZZLED_ROW_BYTES,
    Dimension,
    OperandTensor,
)

BOX_ELEMENTS = SWIZZLED_ROW_BYTES // 2
"""Elements of 16 bits of a position that a box has."""


@dataclass(frozen=True)
class HeadBoxes:
    """The boxes of a tensor: ``BOX_ELEMENTS`` elements of some positions of one head.

    Attributes
    ----------
    operand : OperandTensor
        Elements are its steps, positions its rows, heads and sequences its batch.
    letters : str
        Which of "b" and "h" the batch's dimensions are, slowest first.
    """

    operand: OperandTensor
    letters: str

    @staticmethod
    def of(tensor: NamedTensor) -> "HeadBoxes":
        """The boxes of a tensor whose elements of a head are neighbours."""

        def dimension(letter: str) -> Dimension:
            behind = tensor.shape[tensor.axes.index(letter) + 1 :]
            return Dimension(tensor.size(letter), math.prod(behind))

        letters = "".join(letter for letter in "bh" if tensor.size(letter) > 1)
        batch = tuple(dimension(letter) for letter in letters)
        operand = OperandTensor(tensor.buffer, dimension("s"), dimension("d"), batch)
        return HeadBoxes(operand, letters)

    @property
    def count(self) -> int:
        """Boxes side by side that hold all elements of a position."""
        return -(-self.operand.steps.extent // BOX_ELEMENTS)

    def encoded(self, tensor_map: tirx.Var, positions: int) -> tirx.Stmt:
        """What the host does before the launch."""
        return self.operand.encoded(tensor_map, (BOX_ELEMENTS, positions))

    def at(self, box: int, position: Any, **place: Any) -> list[Any]:
        """The first element of a box, fastest dimension first; ``place``: b and h."""
        first = [tirx.const(box * BOX_ELEMENTS, "int32"), position]
        return [*first, *(place[letter] for letter in reversed(self.letters))]

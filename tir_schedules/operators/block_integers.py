"""Products of rows that are rounded in blocks and stored integers of 4 bits, as one function."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from tvm import te, tirx

ATTRIBUTE = "tvm_ext.block_integers"
"""Of a function that computes such a product: what ``to_attribute`` wrote."""

LARGEST = 127
"""What the largest element of a block of a row is rounded to."""

SMALLEST = 1e-30
"""Blocks of smaller elements are zeros."""

IN_WORD, _BITS = 8, 4


@dataclass(frozen=True)
class BlockIntegers:
    """``sum over blocks: step(x) * scale * sum(round(x / step(x)) * (integer - zero))``.

    ``step`` is the largest magnitude of a row's block, divided by 127, so that the inner sum is one
    of products of 8-bit integers. It is what ONNX Runtime computes of MatMulNBits with
    ``accuracy_level`` 4.

    Attributes
    ----------
    depth, columns : int
        Of the weights.
    block : int
        Rows of a column that share a scale; a multiple of 8.
    panel : int
        Columns that lie next to each other in the packed weights.
    zero : int or None
        The zero point of all blocks; None where each has its own among the words.
    """

    depth: int
    columns: int
    block: int
    panel: int
    zero: int | None = None

    @property
    def blocks(self) -> int:
        """Of a column."""
        return self.depth // self.block

    @property
    def words(self) -> int:
        """Of a block of a column: its scale, its zero point where it has one, its integers."""
        return self.first_word + self.block // IN_WORD

    @property
    def first_word(self) -> int:
        """Of a block's integers."""
        return 1 + (self.zero is None)

    @property
    def panels(self) -> int:
        """Of all columns, the last one filled up."""
        return -(-self.columns // self.panel)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of the packed weights, uint32."""
        return (self.panels, self.blocks, self.words, self.panel)

    def to_attribute(self) -> str:
        """The description as text, to be kept at the function."""
        return json.dumps(asdict(self))

    @classmethod
    def from_attribute(cls, text: str) -> "BlockIntegers":
        """What ``to_attribute`` wrote."""
        return cls(**json.loads(text))

    def packed(self, integers: np.ndarray, zeros: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """The words.

        ``integers``, of ``[depth, columns]``, and ``zeros``, of ``[blocks, columns]``, are below
        16; ``scale`` is as ``zeros``.
        """
        grouped = integers.astype(np.uint32).reshape(self.blocks, -1, IN_WORD, self.columns)
        shifts = np.arange(0, IN_WORD * _BITS, _BITS, dtype=np.uint32)[:, None]
        words = np.bitwise_or.reduce(grouped << shifts, axis=2)
        scale = np.ascontiguousarray(scale, np.float32).view(np.uint32)[:, None]
        own = [zeros.astype(np.uint32)[:, None]] if self.zero is None else []
        whole = np.concatenate([scale, *own, words], axis=1)
        beyond = self.panels * self.panel - self.columns
        whole = np.pad(whole, ((0, 0), (0, 0), (0, beyond)))
        panels = whole.reshape(self.blocks, self.words, self.panels, self.panel)
        return np.ascontiguousarray(panels.transpose(2, 0, 1, 3))

    def function(self, shape: Sequence[Any]) -> tirx.PrimFunc:
        """The function of rows of this shape and the words; the result is its last parameter."""
        rows = te.placeholder(shape, "float32", "rows")
        words = te.placeholder(self.shape, "uint32", "words")
        func = te.create_prim_func([rows, words, self._compute(rows, words)])
        attributes = {ATTRIBUTE: self.to_attribute(), "op_pattern": _OPAQUE}
        return func.without_attr("global_symbol").with_attrs(attributes)

    def _compute(self, rows: te.Tensor, words: te.Tensor) -> te.Tensor:
        *lead, _ = rows.shape
        each = te.reduce_axis((0, self.block), "each")
        largest = te.compute(
            (*lead, self.blocks),
            lambda *at: te.max(tirx.abs(rows(*at[:-1], at[-1] * self.block + each)), each),
            "largest",
        )

        def rounded(*at: Any) -> tirx.Expr:
            most = tirx.max(
                largest(*at[:-1], at[-1] // self.block), tirx.const(SMALLEST, "float32")
            )
            return tirx.nearbyint(rows(*at) * (tirx.const(LARGEST, "float32") / most))

        numbers = te.compute(rows.shape, rounded, "numbers")
        block = te.reduce_axis((0, self.blocks), "block")
        word = te.reduce_axis((0, self.block // IN_WORD), "word")
        place = te.reduce_axis((0, IN_WORD), "place")

        def product(*at: Any) -> tirx.Expr:
            *row, column = at
            panel, lane = column // self.panel, column % self.panel
            stored = words(panel, block, self.first_word + word, lane)
            shift = tirx.Cast("uint32", place * _BITS)
            integer = tirx.shift_right(stored, shift) & tirx.const(15, "uint32")
            zero = tirx.const(self.zero or 0, "int32")
            if self.zero is None:
                zero = tirx.Cast("int32", words(panel, block, 1, lane))
            number = tirx.Cast("float32", tirx.Cast("int32", integer) - zero)
            step = largest(*row, block) * tirx.const(1 / LARGEST, "float32")
            scale = step * tirx.reinterpret("float32", words(panel, block, 0, lane))
            depth = block * self.block + word * IN_WORD + place
            return te.sum(numbers(*row, depth) * number * scale, axis=[block, word, place])

        return te.compute((*lead, self.columns), product, "block_integers")


# TVM's number for a kernel that nothing joins: its attribute ``op_pattern``.
_OPAQUE = 8

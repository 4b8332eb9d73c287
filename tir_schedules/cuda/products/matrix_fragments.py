"""Which thread of a warp holds which element of the tiles of a matrix instruction, ``mma.sync``.

A warp holds a 16x16 tile of results and the operands of it, each thread a few registers of 32 bits.
Which thread holds which element is fixed by the instruction: PTX ISA, "Matrix fragments for
mma.m16n8k16" (and m16n8k8, m16n8k32, which are the same counted in registers).
"""

from dataclasses import dataclass
from typing import Any, Literal

WARP = 32
TILE = 16
RESULTS_PER_THREAD = TILE * TILE // WARP
"""Elements of a 16x16 tile of results that one thread holds."""

Operand = Literal["a", "b"]
OPERANDS: tuple[Operand, Operand] = ("a", "b")

PTX_NAMES = {
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "tf32",
    "int8": "int8",
    "uint8": "uint8",
}


@dataclass(frozen=True)
class MatrixInstruction:
    """One matrix instruction: ``mma.sync`` of 16 rows, 8 columns and 32 bytes of depth.

    Attributes
    ----------
    dtype : str
        Of the operands: "float16", "bfloat16", "int8", "uint8", or "float32", of which tensor cores
        take tf32: the upper 19 bits.
    accumulator : str
        Of the results: "float32" or "int32".
    on_tensor_cores : bool
        False for products of float32 that need all of their bits.
    """

    dtype: str
    accumulator: str
    on_tensor_cores: bool = True

    @property
    def packed(self) -> int:
        """Elements in a register of 32 bits."""
        return {"float32": 1, "int8": 4, "uint8": 4}.get(self.dtype, 2)

    @property
    def rate(self) -> str:
        """The type whose rate in a machine's description is that of the products."""
        return "tf32" if self.dtype == "float32" and self.on_tensor_cores else self.dtype

    @property
    def depth(self) -> int:
        """Steps of the reduction in one instruction."""
        return 8 * self.packed

    @property
    def per_thread(self) -> int:
        """Elements of a 16 x ``depth`` tile of an operand that one thread holds."""
        return TILE * self.depth // WARP

    def fragment(self, operand: Operand, row: Any, step: Any) -> tuple[Any, Any]:
        """Lane and position in it of an operand's element: ``row`` of A or column of B."""
        packed, half = self.packed, 4 * self.packed
        lane = row % 8 * 4 + step % half // packed
        high_row, high_step = row // 8, step // half
        pair = high_row + 2 * high_step if operand == "a" else high_step + 2 * high_row
        return lane, pair * packed + step % packed

    def element(self, operand: Operand, lane: Any, position: Any) -> tuple[Any, Any]:
        """The inverse of ``fragment``."""
        packed, half = self.packed, 4 * self.packed
        first, second = position // packed % 2, position // (2 * packed)
        high_row, high_step = (first, second) if operand == "a" else (second, first)
        return lane // 4 + 8 * high_row, lane % 4 * packed + half * high_step + position % packed


def result_fragment(row: Any, column: Any) -> tuple[Any, Any]:
    """Lane and position in it of an element of a 16x16 tile of results."""
    return row % 8 * 4 + column % 8 // 2, column // 8 * 4 + row // 8 * 2 + column % 2


def result_element(lane: Any, position: Any) -> tuple[Any, Any]:
    """The inverse of ``result_fragment``."""
    row = lane // 4 + position // 2 % 2 * 8
    return row, position // 4 * 8 + lane % 4 * 2 + position % 2


def row_of_lane(
    instruction: MatrixInstruction, operand: Operand, depth_last: bool, lane: Any, stride: Any
) -> Any:
    """Where the row of 16 bytes begins that a lane names to ``ldmatrix``, in elements.

    Four matrices of 8 such rows become the four registers in order. With the depth along the rows
    the second is for A the lower half of the tile, and for B the second half of the depth; a
    matrix that is transposed while it is loaded has these the other way round.
    """
    low = lane % WARP // 8
    first, second = low % 2, low // 2
    along = 4 * instruction.packed
    if (operand == "a") == depth_last:
        return stride * (lane % 8 + 8 * first) + along * second
    return stride * (lane % 8 + 8 * second) + along * first

"""The instructions that add several products to each lane of a vector, as code calls them.

Those for a row of the data have its steps in all lanes, and add to as many columns as there are
lanes. Arm's for two rows add to two columns of each: ``[row 0 column 0, row 0 column 1, row 1
column 0, row 1 column 1]``. Their sums are put into rows when all is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.matrix_instructions import MatrixInstruction
from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis

# Of a sum.
_LANE_BITS = 32

_NEON_BITS, _AVX2_BITS = 128, 256

# Adds two neighbours of 16 bits to a lane, as instructions of as many products do.
_SUMS_OF_PAIRS, _PAIR = "llvm.x86.avx2.pmadd.wd", 2

# Where the sums of a row are in two vectors of pairs of rows and columns.
_PLACES_OF_ROWS = ((0, 1, 4, 5), (2, 3, 6, 7))

# TVM knows no type of LLVM's for these; a function in LLVM's own language takes them as integers.
_WITHOUT_LLVM_TYPE = {"bfloat16": "bfloat"}

_LLVM_TYPES = {"float32": "float"}


@dataclass(frozen=True)
class DotProductCode:
    """Calls of an instruction that adds several steps of the sum to each lane of a vector.

    Attributes
    ----------
    instruction : MatrixInstruction
        Its ``k`` steps are neighbours in both operands.
    bits : int
        Of a vector.
    """

    instruction: MatrixInstruction
    bits: int

    @staticmethod
    def on(instruction: MatrixInstruction, machine: CpuDescription) -> "DotProductCode":
        """In vectors of the machine, where the instruction is there for several lengths."""
        return DotProductCode(instruction, vector_bits(instruction, machine))

    @property
    def lanes(self) -> int:
        """Sums in a vector."""
        return self.bits // _LANE_BITS

    @property
    def rows(self) -> int:
        """Of the data, whose sums are in one vector."""
        return self.instruction.m

    @property
    def columns(self) -> int:
        """Of the weights, whose sums are in one vector."""
        return self.lanes // self.rows

    @property
    def operand(self) -> str:
        """The type in which code holds a vector of either operand."""
        if self._is_foreign:
            return f"int{_LANE_BITS}x{self.lanes}"
        return f"{self._element}x{self._elements}"

    def of_columns(self, source: Any, places: list[Any]) -> tvm.ir.Expr:
        """The vector of packed weights that starts at ``places`` of ``source``."""
        *outer, first = places
        loaded = tirx.BufferLoad(source, [*outer, _neighbours(first, self._elements)])
        if self._is_foreign:
            return tirx.reinterpret(self.operand, loaded)
        return tirx.Cast(self.operand, loaded) if self._is_widened else loaded

    def of_rows(self, source: Any, rows: Sequence[list[Any]]) -> tvm.ir.Expr:
        """The vector of neighbouring steps that start at these places of ``source``, of ``rows``
        rows; of one row the same in all of the vector.
        """
        first, *others = [self._word(source, places) for places in rows]
        if others:
            vector = tirx.Shuffle([first, *others], list(range(self.rows)))
        else:
            vector = tirx.Broadcast(first, self.columns)
        return tirx.reinterpret(self.operand, vector)

    def _word(self, source: Any, places: list[Any]) -> tvm.ir.Expr:
        """The neighbouring steps that start at ``places`` of ``source``, as one integer."""
        *outer, first = places
        steps = tirx.BufferLoad(source, [*outer, _neighbours(first, self.instruction.k)])
        return tirx.reinterpret(f"int{self.bits // self.columns}", steps)

    def added(self, total: tvm.ir.Expr, data: tvm.ir.Expr, weights: tvm.ir.Expr) -> tvm.ir.Expr:
        """``total`` with the products of two vectors of operands added to its lanes."""
        kind = f"{self.instruction.accumulator}x{self.lanes}"
        if self._is_foreign:
            return tirx.call_pure_extern(kind, self._function, total, data, weights)
        if self.instruction.adds:
            return tirx.call_llvm_pure_intrin(kind, self._intrinsic, total, data, weights)
        if self.instruction.k == _PAIR:
            return total + tirx.call_llvm_pure_intrin(kind, self._intrinsic, data, weights)
        pairs = f"int16x{_PAIR * self.lanes}"
        sums = tirx.call_llvm_pure_intrin(pairs, self._intrinsic, data, weights)
        ones = tirx.Broadcast(tirx.const(1, "int16"), _PAIR * self.lanes)
        return total + tirx.call_llvm_pure_intrin(kind, _SUMS_OF_PAIRS, sums, ones)

    def put_into_rows(self, sums: Any, rows: Sequence[Any]) -> list[tirx.Stmt]:
        """Copies the sums of two rows, or of the first alone, to an array for each of ``rows``."""
        statements: list[tirx.Stmt] = []
        for column in range(0, int(rows[0].shape[0]), self.lanes):
            starts = (column * self.rows, column * self.rows + self.lanes)
            vectors = [tirx.BufferLoad(sums, [self._lanes_from(start)]) for start in starts]
            for row, places in zip(rows, _PLACES_OF_ROWS, strict=False):
                value = tirx.Shuffle(vectors, list(places))
                statements.append(tirx.BufferStore(row, value, [self._lanes_from(column)]))
        return statements

    def _lanes_from(self, start: int) -> tvm.ir.Expr:
        return _neighbours(tirx.const(start, "int64"), self.lanes)

    def with_definitions(self, code: tirx.Stmt) -> tirx.Stmt:
        """``code`` with what its calls of the instruction need around it."""
        if not self._is_foreign:
            return code
        zero = tirx.const(0, "int32")
        return tirx.AttrStmt(zero, "pragma_import_llvm", tvm.ir.StringImm(self._definition), code)

    @property
    def _elements(self) -> int:
        """Of a vector of weights."""
        return self.columns * self.instruction.k

    @property
    def _is_widened(self) -> bool:
        """Whether weights are stored in fewer bits than those of the data."""
        return tvm.DataType(self.instruction.b).bits < tvm.DataType(self.instruction.a).bits

    @property
    def _element(self) -> str:
        """The type of the elements of either operand, where code holds them."""
        return self.instruction.a if self._is_widened else self.instruction.b

    @property
    def _is_foreign(self) -> bool:
        return self.instruction.b in _WITHOUT_LLVM_TYPE

    @property
    def _intrinsic(self) -> str:
        return self.instruction.intrinsic.format(bits=self.bits)

    @property
    def _function(self) -> str:
        return f"tvm_ext_{self.instruction.name}_{self.bits}"

    @property
    def _definition(self) -> str:
        """A function in LLVM's language, which TVM has put in place of its calls."""
        total = f"<{self.lanes} x {_LLVM_TYPES[self.instruction.accumulator]}>"
        word = f"<{self.lanes} x i{_LANE_BITS}>"
        element = _WITHOUT_LLVM_TYPE[self.instruction.b]
        operand = f"<{self._elements} x {element}>"
        return f"""
            declare {total} @{self._intrinsic}({total}, {operand}, {operand})
            define {total} @{self._function}({total} %total, {word} %data, {word} %weights) {{
              %a = bitcast {word} %data to {operand}
              %b = bitcast {word} %weights to {operand}
              %sum = call {total} @{self._intrinsic}({total} %total, {operand} %a, {operand} %b)
              ret {total} %sum
            }}
        """


@dataclass(frozen=True)
class DotProduct(DotProductCode):
    """The sums of a tile by such an instruction.

    A tile has an array of sums for every ``rows`` of its rows, of vectors in the order of columns.

    Attributes
    ----------
    data : TensorLoad
        The operand that has rows, as the product reads it.
    weights : TensorLoad
        The first element of the packed row that serves a tile's columns in ``k`` steps.
    depth : LoopAxis
        The loop that ends in the instruction, of a multiple of ``k`` iterations.
    """

    data: tvm.ir.TensorLoad
    weights: tvm.ir.TensorLoad
    depth: LoopAxis

    def vector(self, places: list[Any]) -> tvm.ir.Expr:
        """The vector of weights that starts at ``places`` of the packed operand."""
        return self.of_columns(self.weights.source, places)


def vector_bits(instruction: MatrixInstruction, machine: CpuDescription) -> int:
    """Of a vector of the instruction: those of the machine where it is there for several."""
    if "{bits}" in instruction.intrinsic:
        return machine.vector_bits
    return _AVX2_BITS if ".avx2." in instruction.intrinsic else _NEON_BITS


def _neighbours(first: Any, count: int) -> tvm.ir.Expr:
    return tirx.Ramp(first, tirx.const(1, str(first.ty)), count)

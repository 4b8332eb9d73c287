"""The instructions that add several products to each lane of a vector, as code calls them."""

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.hardware.matrix_instructions import MatrixInstruction
from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis

# Of a lane: what its products are taken from fills it.
_LANE_BITS = 32

# TVM knows no type of LLVM's for these; a function in LLVM's own language takes them as integers.
_WITHOUT_LLVM_TYPE = {"bfloat16": "bfloat"}

_LLVM_TYPES = {"float32": "float"}


@dataclass(frozen=True)
class DotProduct:
    """An instruction that adds several steps of the sum to each lane of a vector.

    Attributes
    ----------
    instruction : MatrixInstruction
        Its ``k`` steps are neighbours in both operands.
    data : TensorLoad
        What goes to all lanes, as the product reads it.
    weights : TensorLoad
        The first element of the packed row that serves a tile's columns in ``k`` steps.
    depth : LoopAxis
        The loop that ends in the instruction, of a multiple of ``k`` iterations.
    bits : int
        Of a vector.
    """

    instruction: MatrixInstruction
    data: tvm.ir.TensorLoad
    weights: tvm.ir.TensorLoad
    depth: LoopAxis
    bits: int

    @property
    def lanes(self) -> int:
        """Sums in a vector."""
        return self.bits // _LANE_BITS

    @property
    def operand(self) -> str:
        """The type in which code holds a vector of either operand."""
        if self._is_foreign:
            return f"int{_LANE_BITS}x{self.lanes}"
        return f"{self.instruction.b}x{self.lanes * self.instruction.k}"

    def vector(self, places: list[Any]) -> tvm.ir.Expr:
        """The vector of weights that starts at ``places`` of the packed operand."""
        *outer, first = places
        row = tirx.Ramp(first, tirx.const(1, str(first.ty)), self.lanes * self.instruction.k)
        loaded = tirx.BufferLoad(self.weights.source, [*outer, row])
        return tirx.reinterpret(self.operand, loaded) if self._is_foreign else loaded

    def in_all_lanes(self, source: Any, places: list[Any]) -> tvm.ir.Expr:
        """The neighbouring steps that start at ``places`` of ``source``, the same in all lanes."""
        *outer, first = places
        steps = tirx.Ramp(first, tirx.const(1, str(first.ty)), self.instruction.k)
        loaded = tirx.BufferLoad(source, [*outer, steps])
        word = tirx.reinterpret(f"int{_LANE_BITS}", loaded)
        return tirx.reinterpret(self.operand, tirx.Broadcast(word, self.lanes))

    def added(self, total: tvm.ir.Expr, data: tvm.ir.Expr, weights: tvm.ir.Expr) -> tvm.ir.Expr:
        """``total`` with the products of two vectors of operands added to its lanes."""
        kind = f"{self.instruction.accumulator}x{self.lanes}"
        if self._is_foreign:
            return tirx.call_pure_extern(kind, self._function, total, data, weights)
        return tirx.call_llvm_pure_intrin(kind, self._intrinsic, total, data, weights)

    def with_definitions(self, code: tirx.Stmt) -> tirx.Stmt:
        """``code`` with what its calls of the instruction need around it."""
        if not self._is_foreign:
            return code
        zero = tirx.const(0, "int32")
        return tirx.AttrStmt(zero, "pragma_import_llvm", tvm.ir.StringImm(self._definition), code)

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
        operand = f"<{self.lanes * self.instruction.k} x {element}>"
        return f"""
            declare {total} @{self._intrinsic}({total}, {operand}, {operand})
            define {total} @{self._function}({total} %total, {word} %data, {word} %weights) {{
              %a = bitcast {word} %data to {operand}
              %b = bitcast {word} %weights to {operand}
              %sum = call {total} @{self._intrinsic}({total} %total, {operand} %a, {operand} %b)
              ret {total} %sum
            }}
        """

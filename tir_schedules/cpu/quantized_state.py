"""A recurrent layer's state in 8-bit steps, and its products with integer weights.

In every step of com.microsoft's DynamicQuantizeLSTM the state is rounded to steps that cover its
smallest and largest element, and zero, as DynamicQuantizeLinear's do. Where the machine has an
instruction that adds several products of such numbers and of bytes, and the weights are bytes, the
numbers of the steps are multiplied, and the sums are corrected by the number of the step that is
zero.
"""

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import constant_parameter, flat_address
from tvm_ext.tir_schedules.cpu.dot_product import DotProductCode, vector_bits
from tvm_ext.tir_schedules.operators.recurrence import (
    SUM_UNROLL,
    RecurrenceOperands,
    loop,
    number,
    vectors,
)
from tvm_ext.tir_schedules.packing import PaddedOperand
from tvm_ext.tir_schedules.statements import FlatViews, sequence, stack_array

_LAST_STEP = 255

_WEIGHTS, _SUMS = "int8", "int32"

# What holds the numbers of steps, in the order in which instructions are asked for: of four bytes
# that are multiplied as they are, or of two that are widened.
_STATES = ("uint8", "int16")


class QuantizedState:
    """One sequence's ``h``, ``size`` elements from ``start`` on, rounded into ``rounded_h``.

    That has the floats that the steps stand for or, where there are also arrays of the ``step`` and
    of the ``zero`` of each sequence, the steps' numbers. Elements are taken ``width`` at a time, a
    divisor of ``size``.
    """

    def __init__(self, states: dict[str, Any], row: Any, start: Any, size: int, width: int) -> None:
        self.states = states
        self.row = row
        self.start = start
        self.parts = size // width
        self.width = width
        self.dtype = str(states["h"].dtype)

    def statement(self) -> tirx.Stmt:
        """All of it."""
        low, declared_low = stack_array(number(self.width), self.dtype, "lowest")
        high, declared_high = stack_array(number(self.width), self.dtype, "highest")
        declared = [declared_low, declared_high]
        started = [*self._stored(low, self._zero), *self._stored(high, self._zero)]
        bounds = loop(self.parts, lambda part: self._bounded(part, low, high))
        joined = [self._joined(low, tirx.Min), self._joined(high, tirx.Max)]
        named, step, zero = self._steps(_at(low, number(0)), _at(high, number(0)))
        stored = loop(self.parts, lambda part: self._rounded(part, step, zero))
        return sequence([*declared, *started, bounds, *joined, *named, stored])

    def _zero(self, _: Any) -> Any:
        return self._const(0)

    def _const(self, value: float) -> Any:
        return tirx.const(value, self.dtype)

    def _stored(self, array: tirx.Buffer, value: Any) -> list[tirx.Stmt]:
        return vectors(self.width, lambda lane: tirx.BufferStore(array, value(lane), [lane]))

    def _place(self, part: Any, lane: Any) -> Any:
        return self.start + part * number(self.width) + lane

    def _bounded(self, part: Any, low: Any, high: Any) -> tirx.Stmt:
        def element(lane: Any) -> Any:
            return _at(self.states["h"], self._place(part, lane))

        lower = self._stored(low, lambda lane: tirx.Min(_at(low, lane), element(lane)))
        higher = self._stored(high, lambda lane: tirx.Max(_at(high, lane), element(lane)))
        return sequence([*lower, *higher])

    def _joined(self, array: tirx.Buffer, bound: Any) -> tirx.Stmt:
        """The bound of all lanes in the first one."""
        first = number(0)
        return loop(
            self.width,
            lambda n: tirx.BufferStore(array, bound(_at(array, first), _at(array, n)), [first]),
        )

    def _steps(self, low: Any, high: Any) -> tuple[list[tirx.Stmt], Any, Any]:
        """The size of a step and the number of the one that is zero, with what names them."""
        span, step, zero = (tirx.Var(name, self.dtype) for name in ("span", "size", "middle"))
        flat = tirx.EQ(span, self._const(0))
        size = tirx.Select(flat, self._const(1), span / self._const(_LAST_STEP))
        middle = tirx.nearbyint(self._in_range(-low / step))
        binds = [tirx.Bind(span, high - low), tirx.Bind(step, size), tirx.Bind(zero, middle)]
        if "step" in self.states:
            whole = zero.astype(_SUMS)
            binds.append(tirx.BufferStore(self.states["step"], step, [self.row]))
            binds.append(tirx.BufferStore(self.states["zero"], whole, [self.row]))
        return binds, step, zero

    def _in_range(self, value: Any) -> Any:
        return tirx.Max(tirx.Min(value, self._const(_LAST_STEP)), self._const(0))

    def _rounded(self, part: Any, step: Any, zero: Any) -> tirx.Stmt:
        def store(lane: Any) -> tirx.Stmt:
            place = self._place(part, lane)
            count = self._in_range(tirx.nearbyint(_at(self.states["h"], place) / step) + zero)
            rounded = self.states["rounded_h"]
            is_number = "step" in self.states
            value = count.astype(str(rounded.dtype)) if is_number else (count - zero) * step
            return tirx.BufferStore(rounded, value, [place])

        return sequence(vectors(self.width, store))


def _at(array: tirx.Buffer, place: Any) -> Any:
    return tirx.BufferLoad(array, [place])


@dataclass(frozen=True)
class StateDotProduct:
    """The instruction that multiplies a rounded state, and the weights as it reads them.

    Attributes
    ----------
    code : DotProductCode
        Its calls.
    operand : PaddedOperand
        The recurrent weights with the steps of a sum innermost that one instruction adds.
    packed : Buffer
        These: ``[directions, blocks, gates, summed / k, 1, units, k]``, with the instruction's k.
    views : FlatViews
        Of ``packed``.
    """

    code: DotProductCode
    operand: PaddedOperand
    packed: tirx.Buffer
    views: FlatViews

    @staticmethod
    def of(
        operands: RecurrenceOperands, func: tirx.PrimFunc, machine: CpuDescription
    ) -> "StateDotProduct | None":
        """None where a machine has no such instruction, or a layer no constant weights of bytes."""
        weights = operands.arrays["r"]
        parameter = constant_parameter(func, weights)
        found = [
            row
            for data in _STATES
            for row in machine.instructions(data)
            if (row.a, row.b, row.accumulator, row.m) == (data, _WEIGHTS, _SUMS, 1)
            and SUM_UNROLL % row.k == 0
            # Short vectors of pairs multiply no more than long ones of floats.
            and row.k * vector_bits(row, machine) > machine.vector_bits
        ]
        if not operands.recurrence.quantized_state or str(weights.dtype) != _WEIGHTS:
            return None
        if parameter is None or not found:
            return None
        code = DotProductCode.on(found[0], machine)
        directions, blocks, gates, summed, units = (int(size) for size in weights.shape)
        if units % code.lanes:
            return None
        k = code.instruction.k
        cut = (directions, blocks, gates, summed // k, k, units)
        operand = PaddedOperand(parameter, (0, 1, 2, 3, 4), cut, cut, (1, 1, 1, 1, k, 1))
        packed = tirx.decl_buffer(operand.packed_shape, _WEIGHTS, weights.name)
        return StateDotProduct(code, operand, packed, FlatViews())

    @property
    def lanes(self) -> int:
        """Sums in a vector."""
        return self.code.lanes

    @property
    def steps(self) -> int:
        """Steps of a sum that one instruction adds."""
        return self.code.instruction.k

    @property
    def sum_type(self) -> str:
        """Type of the sums."""
        return _SUMS

    def states(self, rows: int, padded: int) -> dict[str, Any]:
        """Arrays of the steps' numbers, and of each row's size of a step and number of the zero."""
        return {
            "rounded_h": tirx.decl_buffer(
                [number(rows * padded)], self.code.instruction.a, "rounded_h"
            ),
            "step": tirx.decl_buffer([number(rows)], "float32", "step"),
            "zero": tirx.decl_buffer([number(rows)], _SUMS, "zero"),
        }

    def state(self, rounded: tirx.Buffer, first: tvm.ir.Expr) -> tvm.ir.Expr:
        """The elements from ``first`` on that one instruction takes, in all of a vector."""
        return self.code.of_rows(rounded, [[first]])

    def added(
        self, total: tvm.ir.Expr, state: tvm.ir.Expr, where: tuple[tvm.ir.Expr, ...]
    ) -> tvm.ir.Expr:
        """``total`` with ``state`` times the weights at a direction, block, gate, step and column;
        a step is of as many elements as an instruction takes.
        """
        direction, block, gate, step, column = where
        zero = number(0)
        first = flat_address(self.packed, [direction, block, gate, step, zero, column, zero])
        return self.code.added(
            total, state, self.code.of_columns(self.views.of(self.packed), [first])
        )

    def in_steps_of_the_state(
        self, states: dict[str, Any], row: Any, total: tvm.ir.Expr, column_sum: tvm.ir.Expr
    ) -> tvm.ir.Expr:
        """A sum of products of steps' numbers as one of the floats that the steps stand for."""
        place = [row]
        centred = total - tirx.BufferLoad(states["zero"], place) * column_sum
        return tirx.BufferLoad(states["step"], place) * centred.astype("float32")

    def kernel(self, func: tirx.PrimFunc, code: tirx.Stmt) -> tirx.PrimFunc:
        """``func`` with ``code``, and a note of how the weights are packed."""
        params = list(func.params)
        params[self.operand.parameter] = self.packed
        noted = self.operand.noted_on(func)
        changed = tirx.PrimFunc(params, func.body, func.ret_type, noted.attrs)
        return self.views.kernel(changed, [self.code.with_definitions(code)])

"""Instructions that an expression takes on a machine's vectors, its loads apart."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.flat_views import nodes
from tvm_ext.tir_schedules.llvm.loop_nest import CYCLES_PER_CALL

# Cycles of a division or a square root of a whole vector. A. Fog, "Instruction tables".
_CYCLES_PER_DIVISION = 8.0

_SIMPLE = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max, tirx.Select, tirx.Cast, tirx.Shuffle),
    *(tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.And, tirx.Or, tirx.Not),
)
_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
_DIVIDING_CALLS = {"tirx.sqrt", "tirx.rsqrt"}
_CHEAP_CALLS = {
    *("prim.if_then_else", "tirx.floor", "tirx.ceil", "tirx.round", "tirx.nearbyint", "tirx.fabs"),
    *("tirx.trunc", "tirx.fma", "tirx.bitwise_and", "tirx.bitwise_or", "tirx.bitwise_xor"),
    *("tirx.shift_left", "tirx.shift_right", "tirx.reinterpret", "tirx.bitwise_not"),
    *("tirx.call_llvm_pure_intrin", "tirx.call_llvm_intrin"),
}
_FREE_CALLS = {"tirx.masked_load", "tirx.masked_store", "tirx.likely", "tirx.buffer_data"}


@dataclass
class Instructions:
    """What one execution of a statement takes.

    Attributes
    ----------
    arithmetic : float
        Instructions that one of the vector units does in a cycle.
    slow_cycles : float
        Cycles of divisions, roots and calls (exp, erf ...), which keep a unit busy.
    calls : float
        How many of these are calls.
    operations : float
        Arithmetic operations on single elements; a multiply-add is two.
    """

    arithmetic: float = 0.0
    slow_cycles: float = 0.0
    calls: float = 0.0
    operations: float = 0.0


def pieces(lanes: int, bits: int, machine: CpuDescription) -> int:
    """Registers that a vector takes: LLVM takes 11 elements as 8, 2 and 1."""
    whole, rest = divmod(lanes * bits, max(machine.vector_bits, bits))
    return whole + (rest // bits).bit_count()


def is_odd(lanes: int, bits: int, machine: CpuDescription) -> bool:
    """Whether a vector is longer than a register and no power of two long."""
    return lanes * bits > machine.vector_bits and bool(lanes & (lanes - 1))


@cache
def parse(dtype: str) -> tuple[int, int]:
    """Lanes and bits of a type's name."""
    parsed = tvm.DataType(dtype)
    return int(parsed.lanes), max(8, int(parsed.bits))


def instructions_of(value: Any, machine: CpuDescription) -> tuple[Instructions, list[Any]]:
    """The instructions of ``value``, what is shared taken once, and its loads (TensorLoad, Call).

    Addresses are not counted: they advance with their loops.
    """
    counter = _Counter(machine)
    counter.visit(value)
    return counter.total, counter.loads


class _Counter:
    def __init__(self, machine: CpuDescription) -> None:
        self.total = Instructions()
        self.loads: list[Any] = []
        self._machine = machine
        self._seen: set[int] = set()

    def visit(self, expr: Any) -> None:
        key = hash(expr)
        if key in self._seen:
            return
        self._seen.add(key)
        kind = type(expr)
        if kind is tvm.ir.TensorLoad:
            self.loads.append(expr)
            for index in expr.indices:
                self.loads += nodes(index, tvm.ir.TensorLoad)
            return
        if kind is tvm.ir.Call:
            self._call(expr)
        elif kind in _SIMPLE:
            self._simple(expr)
        elif kind in _DIVISIONS:
            self._division(expr)
        for child in _children(expr):
            self.visit(child)

    def _simple(self, expr: Any) -> None:
        lanes, bits = parse(expr.ty.dtype)
        if type(expr) in (tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max):
            self.total.operations += lanes
        if not _is_contracted(expr):
            self.total.arithmetic += pieces(lanes, bits, self._machine)

    def _division(self, expr: Any) -> None:
        if static_extent(expr.b) is None:
            self._slow(expr, _CYCLES_PER_DIVISION)
        else:
            # By a number: a product and shifts.
            lanes, bits = parse(expr.ty.dtype)
            self.total.arithmetic += 3 * pieces(lanes, bits, self._machine)

    def _slow(self, expr: Any, cycles: float) -> None:
        lanes, bits = parse(expr.ty.dtype)
        self.total.operations += lanes
        self.total.slow_cycles += cycles * pieces(lanes, bits, self._machine)

    def _call(self, call: tvm.ir.Call) -> None:
        name = getattr(call.op, "name", "")
        if name == "tirx.masked_load":
            self.loads.append(call)
        if name in _FREE_CALLS or not hasattr(call.ty, "dtype"):
            return
        lanes, bits = parse(call.ty.dtype)
        count = pieces(lanes, bits, self._machine)
        if name in _CHEAP_CALLS:
            self.total.arithmetic += count
            return
        is_call = name not in _DIVIDING_CALLS
        self._slow(call, CYCLES_PER_CALL if is_call else _CYCLES_PER_DIVISION)
        self.total.calls += count if is_call else 0


def _is_contracted(expr: Any) -> bool:
    """Whether an addition takes a product along: a multiply-add is one instruction.

    It is counted with the multiplication.
    """
    if type(expr) not in (tirx.Add, tirx.Sub):
        return False
    return any(type(side) is tirx.Mul for side in (expr.a, expr.b))


def _children(expr: Any) -> Iterator[Any]:
    kind = type(expr)
    if kind is tvm.ir.Call:
        # The address and the mask of a masked load are no arithmetic.
        masked = getattr(expr.op, "name", "") == "tirx.masked_load"
        yield from () if masked else expr.args
    elif kind in (tirx.Cast, tirx.Broadcast):
        yield expr.value
    elif kind is tirx.Not:
        yield expr.a
    elif kind is tirx.Select:
        yield from (expr.condition, expr.true_value, expr.false_value)
    elif kind is tirx.Shuffle:
        yield from expr.vectors
    elif kind is tirx.Let:
        yield from (expr.value, expr.body)
    elif hasattr(expr, "a") and hasattr(expr, "b"):
        yield from (expr.a, expr.b)

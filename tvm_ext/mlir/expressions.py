"""Expressions of TensorIR written as operations of MLIR."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import tvm
from torch_mlir import ir
from torch_mlir.dialects import arith, llvm, scf, vector
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.tvm_compat import llvm_codegen
from tvm_ext.mlir import operations as ops
from tvm_ext.mlir.element_types import (
    bits_of,
    dtype_of,
    is_float,
    is_signed,
    lanes_of,
    value_type,
)
from tvm_ext.tir_schedules.analysis.buffer_access import is_conditional, nodes, static_extent

Load = Callable[[Any], ir.Value]

# Operators that are the same on ``index``, which is a signed integer.
_ON_INDICES = (tirx.Add, tirx.Sub, tirx.Mul, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max)

# Where TVM takes it for granted; narrower and unsigned numbers begin again at the other end.
_NEVER_OVERFLOWS = ("int32", "int64")


class ExpressionWriter:
    """Writes expressions at the current insertion point.

    Attributes
    ----------
    values : dict of int to ir.Value
        What variables stand for, by their hash: numbers of their own type, or of type ``index``.
    load : callable
        Writes the load of an element, and returns its value.
    """

    def __init__(self, values: dict[int, ir.Value], load: Load) -> None:
        self.values = values
        self.load = load

    def value(self, expr: Any) -> ir.Value:
        """The value of an expression, in its own type. Raises NotApplicable."""
        dtype = dtype_of(expr)
        if isinstance(expr, tirx.IntImm | tirx.FloatImm):
            return ops.constant(expr.value, dtype)
        if isinstance(expr, tvm.ir.Var):
            return self._variable(expr, dtype)
        if isinstance(expr, tvm.ir.TensorLoad):
            return self.load(expr)
        if ops.is_binary(type(expr)):
            operands = (self.value(expr.a), self.value(expr.b))
            return ops.binary(type(expr), *operands, dtype_of(expr.a))
        if isinstance(expr, tvm.ir.Call):
            return self._call(expr, dtype)
        return self._other(expr, dtype)

    def index(self, expr: Any) -> ir.Value:
        """The value of an integer expression as an ``index``. Raises NotApplicable."""
        known = static_extent(expr)
        if known is not None:
            return ops.index_constant(known)
        if isinstance(expr, tvm.ir.Var):
            value = self._bound(expr)
            return value if _is_index(value) else _to_index(value, dtype_of(expr))
        if type(expr) in _ON_INDICES and dtype_of(expr) in _NEVER_OVERFLOWS:
            return self._on_indices(type(expr), self.index(expr.a), self.index(expr.b))
        if isinstance(expr, tirx.Cast) and _keeps_number(expr):
            return self.index(expr.value)
        return _to_index(self.value(expr), dtype_of(expr))

    def bind(self, var: Any, expr: Any) -> None:
        """Makes a variable stand for an expression."""
        with suppress(NotApplicable):
            is_size = "int" in dtype_of(var) and lanes_of(dtype_of(var)) == 1
            if is_size and not nodes(expr, tvm.ir.TensorLoad):
                self.values[hash(var)] = self.index(expr)
                return
        self.values[hash(var)] = self.value(expr)

    def _on_indices(self, kind: type, left: ir.Value, right: ir.Value) -> ir.Value:
        if kind is tirx.FloorMod:
            quotient = arith.floordivsi(left, right)
            return arith.subi(left, arith.muli(quotient, right))
        return ops.binary(kind, left, right, "int64")

    def _bound(self, var: Any) -> ir.Value:
        value = self.values.get(hash(var))
        if value is None:
            raise NotApplicable(f"no argument of the kernel gives variable {var.name}")
        return value

    def _variable(self, var: Any, dtype: str) -> ir.Value:
        value = self._bound(var)
        return arith.index_cast(value_type(dtype), value) if _is_index(value) else value

    def _other(self, expr: Any, dtype: str) -> ir.Value:
        if isinstance(expr, tirx.Cast):
            return ops.cast(self.value(expr.value), dtype_of(expr.value), dtype)
        if isinstance(expr, tirx.Select):
            parts = (expr.condition, expr.true_value, expr.false_value)
            return arith.select(*(self.value(part) for part in parts))
        if isinstance(expr, tirx.Not):
            return ops.negated(self.value(expr.a), dtype)
        if isinstance(expr, tirx.BitwiseNot):
            return ops.call("bitwise_not", [self.value(expr.a)], dtype)
        if isinstance(expr, tirx.Broadcast):
            return vector.broadcast(value_type(dtype), self.value(expr.value))
        if isinstance(expr, tirx.Ramp):
            return self._ramp(expr, dtype)
        if isinstance(expr, tirx.Shuffle):
            return self._shuffle(expr, dtype)
        if isinstance(expr, tirx.Let):
            self.bind(expr.var, expr.value)
            return self.value(expr.body)
        raise NotApplicable(f"{type(expr).__name__} has no operation in MLIR here")

    def _ramp(self, ramp: Any, dtype: str) -> ir.Value:
        kind = value_type(dtype)
        steps = [ir.IntegerAttr.get(kind.element_type, n) for n in range(lanes_of(dtype))]
        places = arith.constant(kind, ir.DenseElementsAttr.get(steps, kind))
        stride = vector.broadcast(kind, self.value(ramp.stride))
        begin = vector.broadcast(kind, self.value(ramp.base))
        return arith.addi(begin, arith.muli(places, stride))

    def _shuffle(self, shuffle: Any, dtype: str) -> ir.Value:
        places = [static_extent(one) for one in shuffle.indices]
        given = [self.value(one) for one in shuffle.vectors]
        if any(place is None for place in places) or len(given) > 2:
            raise NotApplicable("a shuffle of more than two vectors has no operation in MLIR here")
        first, last = given[0], given[-1]
        if not isinstance(first.type, ir.VectorType) or lanes_of(dtype) == 1:
            raise NotApplicable("a vector of single values has no operation in MLIR here")
        return vector.shuffle(first, last, places)

    def _call(self, call: Any, dtype: str) -> ir.Value:
        if is_conditional(call):
            return self._if_then_else(call, dtype)
        name = _name(call)
        if name in _LOADS:
            return self.load(call)
        if name == "likely":
            return self.value(call.args[0])
        if name == "reinterpret":
            return ops.reinterpreted(self.value(call.args[0]), dtype)
        if name in _INTRINSICS:
            return self._intrinsic(call, dtype)
        if not call.args or any(isinstance(one, tvm.ir.StringImm) for one in call.args):
            raise NotApplicable(f"the call of {name} has no operation in MLIR here")
        arguments = [self.value(one) for one in call.args]
        return ops.call(name, arguments, dtype_of(call.args[0]))

    def _intrinsic(self, call: Any, dtype: str) -> ir.Value:
        """One of LLVM's own functions, which TVM names by text or by LLVM's number for it."""
        given, *rest = call.args
        if isinstance(given, tvm.ir.StringImm):
            name = str(given.value)
        else:
            name = str(llvm_codegen.llvm_get_intrinsic_name(int(given.value)))
        arguments = [self.value(one) for one in rest]
        called = llvm.CallIntrinsicOp(value_type(dtype), name, arguments, [], [])
        return called.operation.results[0]

    def _if_then_else(self, call: Any, dtype: str) -> ir.Value:
        """Only the branch that holds is computed: the other may load what is not there."""
        condition = self.value(call.args[0])
        kind = value_type(dtype)
        chosen = scf.IfOp(condition, [kind], has_else=True)
        for block, expr in zip((chosen.then_block, chosen.else_block), call.args[1:], strict=True):
            with ir.InsertionPoint(block):
                scf.yield_([self.value(expr)])
        return chosen.results[0]


_INTRINSICS = ("call_llvm_pure_intrin", "call_llvm_intrin")

# Calls that load from memory.
_LOADS = ("masked_load",)


def _name(call: Any) -> str:
    return str(getattr(call.op, "name", "a function")).rpartition(".")[2]


def _keeps_number(cast: Any) -> bool:
    """Whether a cast of an integer is the same number."""
    source, target = dtype_of(cast.value), dtype_of(cast)
    if is_float(source):
        return False
    if not is_signed(source):
        return bits_of(target) > bits_of(source)
    # A size fits into each of the types that hold it.
    is_size = target in _NEVER_OVERFLOWS and not nodes(cast.value, tvm.ir.TensorLoad)
    return is_size or (is_signed(target) and bits_of(target) >= bits_of(source))


def _is_index(value: ir.Value) -> bool:
    return isinstance(value.type, ir.IndexType)


def _to_index(value: ir.Value, dtype: str) -> ir.Value:
    unsigned = dtype == "bool" or dtype.startswith("uint")
    return (arith.index_castui if unsigned else arith.index_cast)(ir.IndexType.get(), value)

"""Which kernel calls of a lowered model make the tensors that others read."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from tvm_ext.relay_passes.spans import origins_of, relax_bindings
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")
_RESHAPE = tvm.ir.Op.get("relax.reshape")

INPUT = -1
"""The producer of what no kernel makes: inputs of the model, and what the virtual machine makes."""


@dataclass(frozen=True)
class DataflowTensor:
    """A tensor as one kernel sees it.

    Attributes
    ----------
    key : int
        The same for all views (reshapes) of one tensor, and for all uses of one constant.
    shape : tuple[int, ...]
        Of this view; an unknown size counts as 1.
    element_bytes : int
        Of one element.
    is_constant : bool
        Whether it is a weight.
    producer : int
        Position of the call that makes it, or ``INPUT``.
    """

    key: int
    shape: tuple[int, ...]
    element_bytes: int
    is_constant: bool
    producer: int

    @property
    def bytes(self) -> int:
        """Of the whole tensor."""
        return math.prod(self.shape) * self.element_bytes


@dataclass(frozen=True)
class TensorCall:
    """One call of a kernel.

    Attributes
    ----------
    position : int
        In the order of a run.
    kernel : str
        Its name.
    origins : tuple[str, ...]
        The model's nodes that it computes.
    operands, results : tuple[DataflowTensor, ...]
        The kernel's parameters, in this order.
    """

    position: int
    kernel: str
    origins: tuple[str, ...]
    operands: tuple[DataflowTensor, ...]
    results: tuple[DataflowTensor, ...]


@dataclass(frozen=True)
class Dataflow:
    """The calls of a model, and which tensors come from its inputs or are its outputs."""

    calls: tuple[TensorCall, ...]
    inputs: tuple[DataflowTensor, ...]
    outputs: tuple[DataflowTensor, ...]


_Value: TypeAlias = "DataflowTensor | tuple[_Value, ...] | None"


def dataflow(mod: tvm.IRModule) -> Dataflow:
    """The kernel calls of the Relax functions of ``mod``, in the order of a run."""
    return _Tracer(mod).traced()


class _Tracer:
    """Follows each variable to the tensor that it stands for."""

    def __init__(self, mod: tvm.IRModule) -> None:
        self._mod = mod
        self._values: dict[relax.Var, _Value] = {}
        self._constants: dict[GenericConst, int] = {}
        self._keys = 0

    def traced(self) -> Dataflow:
        functions = [f for f in self._mod.functions.values() if isinstance(f, relax.Function)]
        inputs = []
        for func in functions:
            for param in func.params:
                self._values[param] = self._made(param.ty, INPUT)
                inputs += _flat(self._values[param])
        calls: list[TensorCall] = []
        for binding in relax_bindings(self._mod):
            value = binding.value
            if self._is_kernel_call(value):
                call = self._call(value, binding.var, len(calls))
                calls.append(call)
                made = call.results
                self._values[binding.var] = made[0] if len(made) == 1 else made
            else:
                self._values[binding.var] = self._other(value, binding.var)
        outputs = [one for func in functions for one in _flat(self._value(_result(func)))]
        return Dataflow(tuple(calls), tuple(inputs), tuple(outputs))

    def _is_kernel_call(self, value: relax.Expr) -> bool:
        return (
            isinstance(value, relax.Call)
            and _CALL_TIR.same_as(value.op)
            and isinstance(self._mod[value.args[0]], tirx.PrimFunc)
        )

    def _call(self, value: relax.Call, var: relax.Var, position: int) -> TensorCall:
        operands = [one for field in value.args[1].fields for one in _flat(self._value(field))]
        results = _flat(self._made(var.ty, position))
        name = str(value.args[0].name_hint)
        return TensorCall(position, name, origins_of(var), tuple(operands), tuple(results))

    def _other(self, value: relax.Expr, var: relax.Var) -> _Value:
        """What needs no kernel: views and tuples; anything else is as an input."""
        if isinstance(value, relax.Call) and _RESHAPE.same_as(value.op):
            source = self._value(value.args[0])
            if isinstance(source, DataflowTensor):
                return replace(source, shape=_shape(var.ty))
        known = self._value(value)
        return known if known is not None else self._made(var.ty, INPUT)

    def _value(self, expr: relax.Expr) -> _Value:
        if isinstance(expr, relax.Var):
            return self._values.get(expr)
        if isinstance(expr, GenericConst) and isinstance(expr.ty, relax.TensorType):
            if expr not in self._constants:
                self._constants[expr] = self._next_key()
            key = self._constants[expr]
            return DataflowTensor(key, _shape(expr.ty), _width(expr.ty), True, INPUT)
        if isinstance(expr, relax.Tuple):
            return tuple(self._value(field) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            whole = self._value(expr.tuple_value)
            return whole[expr.index] if isinstance(whole, tuple) else None
        return None

    def _made(self, ty: relax.Type, producer: int) -> _Value:
        """A new tensor, or several, of a type."""
        if isinstance(ty, relax.TensorType):
            return DataflowTensor(self._next_key(), _shape(ty), _width(ty), False, producer)
        if isinstance(ty, relax.TupleType):
            return tuple(self._made(field, producer) for field in ty.fields)
        return None

    def _next_key(self) -> int:
        self._keys += 1
        return self._keys


def _result(func: relax.Function) -> relax.Expr:
    body = func.body
    return body.body if isinstance(body, relax.SeqExpr) else body


def _flat(value: _Value) -> list[DataflowTensor]:
    if isinstance(value, DataflowTensor):
        return [value]
    return [one for part in value or () for one in _flat(part)]


def _shape(ty: relax.Type) -> tuple[int, ...]:
    sizes: Sequence[relax.Expr] = getattr(ty.shape, "values", None) or ()
    return tuple(static_extent(size) or 1 for size in sizes)


def _width(ty: relax.Type) -> int:
    return max(1, tvm.DataType(str(ty.dtype)).bits // 8)

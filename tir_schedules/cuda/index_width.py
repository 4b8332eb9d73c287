"""Loops and addresses in 32 bits, where 32 bits are enough.

A GPU divides 64-bit integers, and converts them from and to floating point, many times more slowly
than 32-bit ones (CUDA C++ Programming Guide, throughput of arithmetic instructions).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import tvm
from tvm import tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_mutate

from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis, elements, is_conditional
from tvm_ext.tir_schedules.analysis.loop_nest import Nest

_LEAST, _MOST = -(2**31), 2**31 - 1
_ARITHMETIC = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max),
    *(tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod),
)
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE)
_ROUNDED = tuple(
    function(tirx.Var("x", "float32")).op
    for function in (tirx.floor, tirx.ceil, tirx.round, tirx.trunc, tirx.nearbyint)
)

# Whole numbers up to this size, and sums of two of them, are exact in a floating-point type.
_EXACT = {"float32": 2**23, "float64": 2**31 - 1}


def in_32_bits(nests: Sequence[Nest]) -> list[Nest]:
    """The nests with loops, addresses and comparisons in int32; as they are when one cannot be."""
    changed = [_narrowed(nest) for nest in nests]
    known = [nest for nest in changed if nest is not None]
    return known if len(known) == len(changed) else list(nests)


def _narrowed(nest: Nest) -> Nest | None:
    buffers = [nest.store.buffer, *(load.source for load in nest.loads())]
    sizes = [elements(buffer) for buffer in buffers]
    if nest.is_symbolic or not all(isinstance(size, int) for size in sizes):
        return None
    # Grids are rounded up to whole blocks of threads.
    if max([nest.volume(), *sizes]) > _MOST - 2**20:
        return None
    axes = tuple(LoopAxis(tirx.Var(axis.var.name, "int32"), axis.extent) for axis in nest.axes)
    narrowing = _Narrowing(nest.axes, axes)
    index = narrowing.address(nest.store.indices[0])
    value = narrowing.visited(nest.store.value)
    return replace(nest, axes=axes, store=tirx.BufferStore(nest.store.buffer, value, [index]))


class _Narrowing:
    def __init__(self, old: Sequence[LoopAxis], new: Sequence[LoopAxis]) -> None:
        self.pairs = [(a.var, b.var) for a, b in zip(old, new, strict=True)]
        self.analyzer = Analyzer()
        for axis in (*old, *new):
            self.analyzer.bind(axis.var, tvm.ir.Range(0, axis.extent))

    def visited(self, expr: tvm.ir.Expr) -> tvm.ir.Expr:
        return structural_mutate(expr, [(tvm.ir.Expr, self._visit)])

    def _visit(self, node: tvm.ir.Expr, mutator: Any) -> tvm.ir.Expr:
        if isinstance(node, tvm.ir.TensorLoad):
            indices = [self.address(index) for index in node.indices]
            return tirx.BufferLoad(node.source, indices)
        if isinstance(node, tvm.ir.Var):
            new = self._variable(node)
            return node if new is None else new.astype(str(node.ty))
        if isinstance(node, tirx.Cast) and _is_wide(node.value):
            value = self.number(node.value)
            if value is not None:
                return tirx.Cast(str(node.ty), value)
        if isinstance(node, _COMPARISONS) and _is_wide(node.a):
            sides = [self.number(side) for side in (node.a, node.b)]
            if _all_known(sides):
                return type(node)(*sides)
        if _is_wide(node) and not isinstance(node, tirx.IntImm):
            value = self.number(node)
            if value is not None:
                return tirx.Cast("int64", value)
        return mutator.default_mutate(node)

    def address(self, index: tvm.ir.Expr) -> tvm.ir.Expr:
        """An address in int32: it is inside of a buffer, whatever its parts look like.

        Of sums and products, the lower 32 bits are those of the operands' lower 32 bits.
        """
        value = self.number(index)
        if value is not None:
            return value
        if isinstance(index, tirx.Add | tirx.Sub | tirx.Mul):
            return type(index)(self.address(index.a), self.address(index.b))
        return tirx.Cast("int32", self.visited(index))

    def _variable(self, var: tirx.Var) -> tvm.ir.Expr:
        return next((new for old, new in self.pairs if old.same_as(var)), None)

    def number(self, node: tvm.ir.Expr) -> Any:
        """An integer in int32; None when it may not fit."""
        if not _is_wide(node):
            kind = str(node.ty)
            small = kind in ("int32", "int16", "uint16", "int8", "uint8", "bool")
            return self.visited(node).astype("int32") if small else None
        if isinstance(node, tirx.IntImm):
            inside = _LEAST <= int(node.value) <= _MOST
            return tirx.const(int(node.value), "int32") if inside else None
        if isinstance(node, tvm.ir.Var):
            return self._variable(node)
        if isinstance(node, tirx.Cast) and "int" in str(node.value.ty):
            return self.number(node.value)
        if not self._fits(node):
            return None
        known = self._by_operands(node)
        return self._limited(node) if known is None else known

    def _by_operands(self, node: tvm.ir.Expr) -> Any:
        """The same operation in int32; None when an operand may not fit."""
        build: Callable[..., Any]
        if type(node) in _ARITHMETIC:
            operands, build = (node.a, node.b), type(node)
        elif is_conditional(node):
            operands, build = node.args[1:], partial(tirx.if_then_else, self.visited(node.args[0]))
        elif isinstance(node, tirx.Select):
            operands = (node.true_value, node.false_value)
            build = partial(tirx.Select, self.visited(node.condition))
        else:
            return None
        found = [self.number(operand) for operand in operands]
        return build(*found) if _all_known(found) else None

    def _limited(self, node: tvm.ir.Expr) -> tvm.ir.Expr:
        """What something wider is limited to: by its bounds it fits in 32 bits."""
        bound = self.analyzer.const_int_bound(node)
        rounded = self._as_float(node)
        if rounded is not None:
            largest = max(abs(int(bound.min_value)), abs(int(bound.max_value)))
            if largest <= _EXACT.get(str(rounded.ty), 0):
                return tirx.Cast("int32", rounded)
        # The operands, not the node: visiting that would come back here.
        same = structural_mutate(node, [(tvm.ir.Expr, self._below(node))])
        return tirx.Cast("int32", same)

    def _below(self, root: tvm.ir.Expr) -> Any:
        return lambda node, mutator: (
            mutator.default_mutate(node) if node.same_as(root) else self._visit(node, mutator)
        )

    def _as_float(self, node: tvm.ir.Expr) -> Any:
        """A rounded number, shifted and limited, in the floating-point type it was rounded in.

        Limits between which all whole numbers are exact come out the same before and after the
        conversion to integers.
        """
        if isinstance(node, tirx.Cast):
            call = node.value
            ops = isinstance(call, tvm.ir.Call) and any(call.op.same_as(op) for op in _ROUNDED)
            return self.visited(call) if ops and str(call.ty) in _EXACT else None
        if not isinstance(node, tirx.Add | tirx.Sub | tirx.Min | tirx.Max):
            return None
        if isinstance(node.b, tirx.IntImm):
            left = self._as_float(node.a)
            if left is not None and abs(int(node.b.value)) <= _EXACT[str(left.ty)]:
                return type(node)(left, tirx.const(float(int(node.b.value)), str(left.ty)))
        return None

    def _fits(self, node: tvm.ir.Expr) -> bool:
        bound = self.analyzer.const_int_bound(node)
        return int(bound.min_value) >= _LEAST and int(bound.max_value) <= _MOST


def _is_wide(node: tvm.ir.Expr) -> bool:
    return str(node.ty) == "int64"


def _all_known(values: Sequence[tirx.Expr | None]) -> bool:
    return all(value is not None for value in values)

"""Computes once a row what does not change along it."""

from dataclasses import replace
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_mutate

from tvm_ext.tir_schedules.inlining import walk
from tvm_ext.tir_schedules.rows.row_kernel import RowBlock, RowKernel, Store, buffer_key

_IF_THEN_ELSE = tvm.ir.Op.get("prim.if_then_else")
_RECIPROCAL_TYPES = ("float32", "float64")


def hoisted(kernel: RowKernel) -> RowKernel:
    """The kernel with calls and divisions that only depend on the row in blocks of their own.

    ``x / s`` with the same ``s`` for the whole row becomes ``x * (1 / s)``: one more rounding, and
    a division, ten times as slow as a product, less for every element. It differs by more only
    where ``1 / s`` is no normal number (``s`` below 3e-39 or above 8e37).
    """
    blocks: list[RowBlock] = []
    inner = dict(kernel.inner)
    for block in kernel.blocks:
        if not block.columns:
            blocks.append(block)
            continue
        visitor = _Hoist(block, kernel.index_dtype)
        stores = tuple(replace(s, value=visitor.visited(s.value)) for s in block.stores)
        for found in visitor.found:
            inner[buffer_key(found.buffer)] = (0,)
            blocks.append(RowBlock((), (found,), ()))
        blocks.append(replace(block, stores=stores))
    return replace(kernel, blocks=tuple(blocks), inner=inner)


class _Hoist:
    def __init__(self, block: RowBlock, index_dtype: str) -> None:
        # What a reduction has accumulated changes along the row as well.
        changing = [axis.var for axis in block.columns]
        changing += [store.buffer for store in block.stores] if block.starts else []
        self.changing = {buffer_key(var) for var in changing}
        self.zero = tirx.const(0, index_dtype)
        self.found: list[Store] = []

    def visited(self, value: Any) -> Any:
        return structural_mutate(value, [(tvm.ir.Expr, self._visit)])

    def _visit(self, node: Any, mutator: Any) -> Any:
        if isinstance(node, tvm.ir.TensorLoad | tvm.ir.Var):
            return node
        if isinstance(node, tvm.ir.Call) and node.op.same_as(_IF_THEN_ELSE):
            # What is under a condition may only be computed where it holds.
            return node
        if self._is_fixed(node):
            return self._once(node) if _is_costly(node) else node
        if isinstance(node, tirx.Div) and self._is_fixed(node.b) and _has_reciprocal(node.b):
            one = tirx.const(1.0, str(node.b.ty))
            return mutator.mutate(node.a) * self._once(tirx.Div(one, node.b))
        return mutator.default_mutate(node)

    def _is_fixed(self, node: Any) -> bool:
        used = {buffer_key(var) for var in tirx.analysis.undefined_vars(node)}
        return not used & self.changing

    def _once(self, value: Any) -> tvm.ir.Expr:
        buffer = tirx.decl_buffer([1], str(value.ty), "once")
        self.found.append(Store(buffer, (self.zero,), value))
        return tirx.BufferLoad(buffer, [self.zero])


def _is_costly(node: Any) -> bool:
    return any(isinstance(part, tvm.ir.Call | tirx.Div) for part in walk(node))


def _has_reciprocal(node: Any) -> bool:
    """Whether a denominator is worth its reciprocal: a constant would be rounded for nothing."""
    return str(node.ty) in _RECIPROCAL_TYPES and not isinstance(node, tirx.FloatImm)

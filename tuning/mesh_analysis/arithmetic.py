"""What one iteration of a block computes: vector instructions, scalar operations, operands."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.flat_views import nodes

_ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Max, tirx.Min)

# Comparisons and selections are vector instructions too: a mask, and a move under it.
_SELECTIONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE, tirx.Select, tirx.Cast)

# Steps of one value that no vector instruction computes: a reciprocal by Newton's method, a
# polynomial with its range reduction.
_DIVISION_STEPS = 8
_FUNCTION_STEPS = 16
_CHEAP_CALLS = ("prim.if_then_else", "prim.abs", "prim.likely", "prim.fabs")


@dataclass(frozen=True)
class Arithmetic:
    """One iteration of a block.

    Attributes
    ----------
    vector_instructions : int
        Instructions that do this iteration together with others; at least one, the move.
    scalar_steps : int
        Operations that are done for each element by itself.
    flops : int
        Arithmetic operations; a multiply-add is two.
    loads : tuple
        The loads of tensors.
    """

    vector_instructions: int
    scalar_steps: int
    flops: int
    loads: tuple[Any, ...]


def arithmetic_of(store: tirx.BufferStore, is_array: Callable[[Any], bool]) -> Arithmetic:
    """Counts what an assignment does.

    ``is_array`` says of a load whether it goes through an array with the vector instruction. A
    product that is added to is one instruction if one of its factors stays the same: CSL's @fmacs
    and @fmach multiply an array by a scalar.
    """
    vector, scalar, flops = 0, 0, 0
    for node in _value_nodes(store.value):
        kind = type(node)
        if kind in _ARITHMETIC:
            flops += 1
            vector += not _is_fused(node, is_array)
        elif kind in _SELECTIONS:
            vector += 1
        elif kind is tirx.Div:
            flops += 1
            scalar += 0 if isinstance(node.b, tirx.FloatImm) else _DIVISION_STEPS
            vector += isinstance(node.b, tirx.FloatImm)
        elif kind is tvm.ir.Call:
            cheap = str(node.op.name) in _CHEAP_CALLS
            vector += cheap
            scalar += 0 if cheap else _FUNCTION_STEPS
            flops += 0 if cheap else 1
    loads = tuple(nodes(store.value, tvm.ir.TensorLoad))
    return Arithmetic(max(1, vector) if not scalar else vector, scalar, flops, loads)


def _value_nodes(expr: Any) -> list[Any]:
    """Nodes that compute values; those of indices count for nothing: descriptors walk by them."""
    found, waiting = [], [expr]
    while waiting:
        node = waiting.pop()
        kind = type(node)
        if kind is tvm.ir.TensorLoad:
            continue
        found.append(node)
        if kind is tvm.ir.Call:
            arguments = list(node.args)
            if str(node.op.name) == "prim.if_then_else":
                # The condition is about indices: which part of the tile it is.
                arguments = arguments[1:]
            waiting += arguments
        elif kind in _ARITHMETIC or kind in _SELECTIONS[:6] or kind is tirx.Div:
            waiting += [node.a, node.b]
        elif kind is tirx.Cast:
            waiting.append(node.value)
        elif kind is tirx.Select:
            waiting += [node.condition, node.true_value, node.false_value]
    return found


def _is_fused(node: Any, is_array: Callable[[Any], bool]) -> bool:
    """Whether an addition takes a product in, which then is a multiply-add."""
    if not isinstance(node, tirx.Add):
        return False
    products = [side for side in (node.a, node.b) if isinstance(side, tirx.Mul)]
    return any(
        not all(any(map(is_array, nodes(factor, tvm.ir.TensorLoad))) for factor in (one.a, one.b))
        for one in products
    )

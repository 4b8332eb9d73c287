"""Divisions of what is never negative, by a size that a run decides: cut off, not rounded down.

TVM cannot see that sizes are not negative. Of a division that rounds down it makes a choice by the
signs of both operands; a place in a loop that several symbolic sizes were joined to has divisions
inside of each other, and TVM's simplifier goes through both sides of each choice: of four sizes for
a minute.
"""

from collections.abc import Callable
from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map, structural_walk

# Of these, a result is not negative if both operands are not.
_OF_BOTH = (tirx.Add, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min)


@tirx.transform.prim_func_pass(opt_level=0, name="TruncateDivisions")
class TruncateDivisions:
    """Divisions and remainders by symbolic sizes that cut off where both rules give the same.

    Before: ``row // (h * w)`` and ``row % w`` with ``floordiv`` and ``floormod``
    After:  ``truncdiv(row, max(h * w, 1))`` and ``truncmod(row, max(w, 1))``

    Leaves alone: constant divisors, of which TVM knows the sign; operands that may be negative;
    vectors.

    Run after: MakePackedAPI, which says where sizes come from. Run before: LowerIntrin.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Kernels of known sizes stay as they are."""
        known = _never_negative_variables(func)

        def changed(cut_off: Callable[..., tvm.ir.Expr]) -> Callable[[Any], tvm.ir.Expr]:
            def change(node: tirx.FloorDiv | tirx.FloorMod) -> tvm.ir.Expr:
                if isinstance(node.b, tirx.IntImm) or not _is_never_negative(node, known):
                    return node
                # Never zero where it is reached, which TVM cannot see.
                return cut_off(node.a, tirx.max(node.b, tirx.const(1, str(node.b.ty))))

            return change

        callbacks = [
            (tirx.FloorDiv, changed(tirx.truncdiv)),
            (tirx.FloorMod, changed(tirx.truncmod)),
        ]
        return func.with_body(structural_map(func.body, callbacks))


def _never_negative_variables(func: tirx.PrimFunc) -> set[tirx.Var]:
    """Loops' variables and sizes of arguments, and what is computed from them."""
    known: set[tirx.Var] = set()

    def visit(node: tirx.For | tirx.Bind) -> None:
        first = node.min if isinstance(node, tirx.For) else node.value
        if _is_never_negative(first, known) or _is_size(first):
            known.add(node.loop_var if isinstance(node, tirx.For) else node.var)

    structural_walk(func.body, ((tirx.For, tirx.Bind), visit), order="pre")
    return known


def _is_size(value: tvm.ir.Expr) -> bool:
    """Whether it is read from the shape of an argument."""
    if not isinstance(value, tvm.ir.Call) or value.op.name != "tirx.tvm_struct_get":
        return False
    array = value.args[0]
    return isinstance(array, tvm.ir.Var) and str(array.name).endswith("_shape")


def _is_never_negative(expr: tvm.ir.Expr, known: set[tirx.Var]) -> bool:
    if isinstance(expr, tirx.IntImm):
        return int(expr.value) >= 0
    if isinstance(expr, tvm.ir.Var):
        return expr in known
    if isinstance(expr, tirx.Cast):
        return _keeps_signs(expr) and _is_never_negative(expr.value, known)
    if isinstance(expr, tirx.Max):
        return _is_never_negative(expr.a, known) or _is_never_negative(expr.b, known)
    return isinstance(expr, _OF_BOTH) and all(
        _is_never_negative(side, known) for side in (expr.a, expr.b)
    )


def _keeps_signs(cast: tirx.Cast) -> bool:
    """Whether it is from an integer to one that has room for all of its values."""
    source, target = (tvm.DataType(str(ty)) for ty in (cast.value.ty, cast.ty))
    room = target.bits - (str(source).startswith("uint") and str(target).startswith("int"))
    return "int" in str(source) and "int" in str(target) and source.bits <= room

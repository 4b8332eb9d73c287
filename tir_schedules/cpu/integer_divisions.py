"""Integer divisions by sizes that a run decides: how they round, and where they are done."""

from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm_ffi import structural_map, structural_walk

from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.statements import changed_loop, sequence

# Divisions of what is never negative, by a size that a run decides: cut off, not rounded down.
#
# TVM cannot see that sizes are not negative. Of a division that rounds down it makes a choice by
# the signs of both operands; a place in a loop that several symbolic sizes were joined to has
# divisions inside of each other, and TVM's simplifier goes through both sides of each choice: of
# four sizes for a minute.

_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)

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
        if not _divides_by_sizes(func):
            return func
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


def _divides_by_sizes(func: tirx.PrimFunc) -> bool:
    """Whether any integer is divided by more than a constant."""
    return any(
        not isinstance(node.b, tirx.IntImm) and "int" in str(node.ty)
        for node in nodes(func.body, *_DIVISIONS)
    )


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


# Divisions by sizes that a run decides, ahead of the loops in which they stay the same.
#
# LLVM does that itself only for divisions that every turn of a loop comes by: division by zero may
# not happen where the program has none. Of a division in a branch, say in the address of what a
# padded image reads, the loop vectoriser of LLVM 22 makes one for all lanes of a vector, and lets
# the first lane alone decide whether to do it: where the first lane is padding the others read from
# an address without a value.


@tirx.transform.prim_func_pass(opt_level=0, name="HoistDivisions")
class HoistDivisions:
    """Integer divisions by symbolic sizes leave the loops that nothing in them depends on.

    Before: ``for j: y[row * d + j] = if_then_else(j < w, x[row // h * w + j], 0)``
    After:  ``quotient = row // h; for j: ... x[quotient * w + j] ...``

    Leaves alone: constant divisors, which LLVM takes out of branches by itself; operands that are
    read from a buffer or called for; vectors.

    Run after: TruncateDivisions. Run before: LowerIntrin.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Inner loops come first: an outer one takes over what the inner ones let go."""
        if not _divides_by_sizes(func):
            return func
        return func.with_body(structural_map(func.body, (tirx.For, _without_invariant_divisions)))


def _without_invariant_divisions(loop: tirx.For) -> tirx.Stmt:
    inner = {one.loop_var for one in nodes(loop, tirx.For)}
    inner |= {one.var for one in nodes(loop.body, tirx.Bind)}
    names: dict[tvm_ffi.StructuralKey, tirx.Bind] = {}

    def named(node: Any) -> tvm.ir.Expr:
        if not (_is_symbolic(node) and _is_outside(node, inner)):
            return node
        # It may be zero where the loop has no turns.
        divisor = node.b
        if not _is_positive(divisor):
            is_zero = divisor.equal(tirx.const(0, str(divisor.ty)))
            divisor = divisor + tirx.Cast(str(divisor.ty), is_zero)
        key = tvm_ffi.StructuralKey(node)
        if key not in names:
            variable = tirx.Var("quotient", str(node.ty))
            names[key] = tirx.Bind(variable, type(node)(node.a, divisor))
        return names[key].var

    body = structural_map(loop.body, [(kind, named) for kind in _DIVISIONS])
    if not names:
        return loop
    return sequence([*names.values(), changed_loop(loop, body=body)])


def _is_symbolic(node: Any) -> bool:
    """Whether it is a division of whole numbers by a size that a run decides."""
    dtype = tvm.DataType(str(node.ty))
    return "int" in str(dtype) and dtype.lanes == 1 and not isinstance(node.b, tirx.IntImm)


def _is_positive(divisor: tvm.ir.Expr) -> bool:
    return isinstance(divisor, tirx.Max) and any(
        isinstance(side, tirx.IntImm) and int(side.value) > 0 for side in (divisor.a, divisor.b)
    )


def _is_outside(node: tvm.ir.Expr, inner: set[tirx.Var]) -> bool:
    """Whether it is arithmetic of variables, none of them among ``inner``."""
    if nodes(node, tvm.ir.TensorLoad, tvm.ir.Call):
        return False
    return not any(one in inner for one in nodes(node, tvm.ir.Var))

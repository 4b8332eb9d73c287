"""Divisions by sizes that a run decides, ahead of the loops in which they stay the same.

LLVM does that itself only for divisions that every turn of a loop comes by: division by zero may
not happen where the program has none. Of a division in a branch, say in the address of what a
padded image reads, the loop vectoriser of LLVM 22 makes one for all lanes of a vector, and lets
the first lane alone decide whether to do it: where the first lane is padding the others read from
an address without a value.
"""

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.statements import changed_loop, sequence

_DIVISIONS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)


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

"""Floats that have a name are in memory while LLVM's code is generated.

TVM's code generator tells its analyzer of each value that is bound to a name, and the analyzer puts
the value into every later one that uses the name, and simplifies what comes of it. Of integers,
addresses may be known by it; of floats nothing is asked, and the values of a polynomial grow with
each step: 11 of the 12 seconds that the code of an attention kernel took went there. LLVM takes
what is stored and loaded again for the value itself.
"""

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.cpu.llvm_preparation import STAYS_ON_STACK


@tirx.transform.prim_func_pass(opt_level=0, name="StoreBoundFloats")
class StoreBoundFloats:
    """Floats and vectors of floats that are bound to names become elements of arrays.

    Before: ``y = x * x; z[0:8] = y + y * y``
    After:  ``y: float32x8[1]; y[0] = x * x; z[0:8] = y[0] + y[0] * y[0]``

    Leaves alone: names within an expression (``Let``), which may be computed for one side of a
    branch only; other types.

    Run after: all passes that look at values.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Functions without such names stay as they are."""
        arrays = {
            bound.var: tirx.decl_buffer((1,), str(bound.var.ty), str(bound.var.name))
            for bound in nodes(func.body, tirx.Bind)
            if _is_float(bound.var)
        }
        return func.with_body(_in_arrays(func.body, arrays)) if arrays else func


def _is_float(var: Any) -> bool:
    return isinstance(var.ty, tvm.ir.PrimType) and "float" in str(var.ty)


def _in_arrays(body: tirx.Stmt, arrays: dict[Any, Any]) -> tirx.Stmt:
    first = [tirx.const(0, "int32")]
    stays = {STAYS_ON_STACK: tirx.const(1, "int32")}

    def stored(bound: tirx.Bind) -> tirx.Stmt:
        array = arrays.get(bound.var)
        if array is None:
            return bound
        store = tirx.BufferStore(array, bound.value, first)
        return tirx.SeqStmt([tirx.AllocBuffer(array, annotations=stays), store])

    def loaded(var: tirx.Var) -> tvm.ir.Expr:
        return tirx.BufferLoad(arrays[var], first) if var in arrays else var

    # Not in the same walk, which would load where a name is bound.
    return structural_map(structural_map(body, (tirx.Bind, stored)), (tirx.Var, loaded))

"""Loops that all start at zero, as TVM's lowering needs them where loops nest.

CanonicalizeLoop moves each loop's start to zero and puts the old value of the variable into the
loop's body, but not into the extents of the loops in it: a triangle comes out with wrong bounds.
"""

from typing import Any

import tvm
from tvm import tirx
from tvm_ffi import structural_map

from tvm_ext.tir_schedules.analysis.buffer_access import nodes, static_extent
from tvm_ext.tir_schedules.statements import changed_loop


@tirx.transform.prim_func_pass(opt_level=0, name="StartLoopsAtZero")
class StartLoopsAtZero:
    """Every loop starts at zero, and what reads its variable adds where it started.

    Before: ``for j in range(i + 1, n): for k in range(j): A[k] = ...``
    After:  ``for j in range(n - i - 1): for k in range(j + i + 1): A[k] = ...``

    Leaves alone: loops with steps, and those bound to threads.

    Run before: CanonicalizeLoop.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Kernels whose loops all start at zero stay as they are."""
        if not any(_starts_later(loop) for loop in nodes(func.body, tirx.For)):
            return func
        return func.with_body(structural_map(func.body, (tirx.For, _from_zero)))


def _starts_later(loop: tirx.For) -> bool:
    if loop.step is not None and static_extent(loop.step) != 1:
        return False
    return loop.kind != tirx.ForKind.THREAD_BINDING and static_extent(loop.min) != 0


def _from_zero(loop: tirx.For) -> tirx.For:
    if not _starts_later(loop):
        return loop
    var = tirx.Var(str(loop.loop_var.name), str(loop.loop_var.ty))
    value = var + loop.min

    def shifted(used: Any) -> Any:
        return value if used.same_as(loop.loop_var) else used

    body = structural_map(loop.body, (tvm.ir.Var, shifted))
    return changed_loop(loop, loop_var=var, min=tirx.const(0, str(var.ty)), body=body)

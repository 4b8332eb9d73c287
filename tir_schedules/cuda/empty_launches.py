"""Launches that turn out to be empty in a run: a driver refuses them, so the host leaves them out.

Sizes that are known in the run only may be zero. The condition goes around the launch after TVM has
lowered the kernel and cut it from its host code: before that, TVM takes every condition around a
kernel for one within it, and allows no barrier there.
"""

from functools import cache

import tvm
from tvm import tirx
from tvm_ffi import structural_map

_GRID = ("blockIdx.x", "blockIdx.y", "blockIdx.z")


@tirx.transform.prim_func_pass(opt_level=0, name="LeaveOutEmptyLaunches")
class LeaveOutEmptyLaunches:
    """Host code that launches a kernel only if its grid has blocks.

    Before: ``call_ffi_kernel("kernel", x, (n + 31) // 32, 128)``
    After:  ``if (n + 31) // 32 > 0: call_ffi_kernel("kernel", x, (n + 31) // 32, 128)``

    Run after: SplitHostDevice, MakePackedAPI.
    """

    def transform_function(
        self, func: tirx.PrimFunc, _mod: tvm.IRModule, _ctx: tvm.transform.PassContext
    ) -> tirx.PrimFunc:
        """Launches of known size stay as they are."""
        return func.with_body(structural_map(func.body, (tirx.Evaluate, _guarded)))


def _guarded(stmt: tirx.Evaluate) -> tirx.Stmt:
    call = stmt.value
    if not isinstance(call, tvm.ir.Call) or not call.op.same_as(_launch()):
        return stmt
    tags = [str(tag) for tag in call.attrs["launch_params"]]
    sizes = dict(zip(tags, call.args[-len(tags) :], strict=True))
    for tag in _GRID:
        size = sizes.get(tag)
        if size is not None and not isinstance(size, tirx.IntImm):
            stmt = tirx.IfThenElse(size > tirx.const(0, str(size.ty)), stmt, None)
    return stmt


@cache
def _launch() -> tvm.ir.Op:
    return tvm.ir.Op.get("tirx.call_ffi_kernel")

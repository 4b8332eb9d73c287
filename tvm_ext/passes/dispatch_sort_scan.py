"""DispatchSortScan: TVM's pass, but sorts of known shapes on GPUs go to the template of ours."""

from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, topi
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.hardware.cuda.description import current_gpu
from tvm_ext.relay_passes.spans import relax_functions
from tvm_ext.tir_schedules.cuda.sort_decision import can_sort


@tvm.transform.module_pass(opt_level=0, name="DispatchSortScan")
class DispatchSortScan:
    """Turns sorts, TopK and scans into kernels for the target.

    Before::  y = topk(x, k=5)
    After::   y = call_tir(topk, (x,))

    On a GPU, sorts whose sizes are known become kernels without a schedule, for the template "sort"
    to take. All others are TVM's: those for a GPU are threads already.

    Run before: LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """The module with all of these operators as kernels."""
        if current_gpu() is not None:
            dispatcher = _SortDispatcher(mod)
            for variable, func in relax_functions(mod).items():
                dispatcher.builder_.update_func(variable, dispatcher.visit_expr(func))
            mod = dispatcher.builder_.finalize()
        return relax.backend.DispatchSortScan()(mod)


@mutator
class _SortDispatcher(PyExprMutator):
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        made = _sort(call) if isinstance(call.op, tvm.ir.Op) else None
        if made is None:
            return super().visit_call_(call)
        name = call.op.name.removeprefix("relax.")
        return self.builder_.call_te(made, self.visit_expr(call.args[0]), primfunc_name_hint=name)


def _sort(call: relax.Call) -> Callable[[te.Tensor], Any] | None:
    """What computes a sort of known sizes as one call for all of it; None for other operators."""
    name, attrs = call.op.name, call.attrs
    if name not in ("relax.topk", "relax.argsort", "relax.sort"):
        return None
    shape, dtype = call.args[0].ty.shape, str(call.args[0].ty.dtype)
    axis = int(attrs.axis)
    if not isinstance(shape, relax.ShapeExpr) or not can_sort(shape.values, axis, dtype):
        return None
    if name == "relax.topk":
        if str(attrs.ret_type) != "both":
            return None
        k, smallest, places = int(attrs.k), not attrs.largest, str(attrs.dtype)
        return lambda x: topi.topk(x, k, axis, "both", smallest, places)
    if name == "relax.argsort":
        places = str(attrs.dtype)
        return lambda x: topi.argsort(x, axis=axis, is_ascend=not attrs.descending, dtype=places)
    return lambda x: topi.sort(x, axis, not attrs.descending)

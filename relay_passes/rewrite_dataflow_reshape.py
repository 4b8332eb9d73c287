"""TVM's RewriteDataflowReshape, also for outputs, and where it fails on symbolic sizes."""

import math

import tvm
from tvm import relax, tirx

from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import operator_name, static_extents


def rewrite_dataflow_reshape() -> tvm.transform.Pass:
    """Makes views of the kernels that only give a tensor another shape.

    Before: ``y = call_tir(reshape, (x,))``
    After:  ``y = reshape(x, (4, 6))``, another shape for the memory of ``x``

    TVM 0.27 raises an error for a kernel of symbolic sizes whose loops it can not take apart by one
    of them. Such a kernel is no reshape, and the others become views all the same. It leaves out
    what a function returns: a model that ends in a convolution of one tap, which is a product of
    pixels in a row, would copy its result.
    """
    return tvm.transform.module_pass(_with_views, opt_level=0, name="RewriteDataflowReshape")


def _with_views(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
    return _OutputViews().run(_with_views_inside(mod))


class _OutputViews(BindingRewriter):
    pass_name = "RewriteDataflowReshape"
    roots = frozenset({"relax.call_tir"})

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if isinstance(var, relax.DataflowVar) or operator_name(value) != "relax.call_tir":
            return None
        kernel, operands = value.args[0], value.args[1].fields
        if len(operands) != 1 or not isinstance(var.ty, relax.TensorType):
            return None
        (operand,) = operands
        before, after = static_extents(operand.ty), static_extents(var.ty)
        if before is None or after is None or math.prod(before) != math.prod(after):
            return None
        if operand.ty.dtype != var.ty.dtype:
            return None
        if not relax.analysis.has_reshape_pattern(self.mod[kernel]):
            return None
        return Replacement(relax.op.reshape(operand, var.ty.shape), (), "an output is a view")


def _with_views_inside(mod: tvm.IRModule) -> tvm.IRModule:
    """Without what functions return."""
    by_tvm = relax.transform.RewriteDataflowReshape()
    try:
        return by_tvm(mod)
    except tvm.error.InternalError:
        beyond = {
            name: func
            for name, func in mod.functions.items()
            if isinstance(func, tirx.PrimFunc) and _is_beyond_tvm(func)
        }
        if not beyond:
            raise
    # A kernel that does nothing is no reshape.
    nothing = tirx.Evaluate(tirx.const(0, "int32"))
    hidden = {name: func.with_body(nothing) for name, func in beyond.items()}
    after = by_tvm(tvm.IRModule({**mod.functions, **hidden}, attrs=mod.attrs))
    return tvm.IRModule({**after.functions, **beyond}, attrs=after.attrs)


def _is_beyond_tvm(kernel: tirx.PrimFunc) -> bool:
    """Whether TVM fails to tell if the kernel is a reshape."""
    try:
        relax.analysis.has_reshape_pattern(kernel)
    except tvm.error.InternalError:
        return True
    return False

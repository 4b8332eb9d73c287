"""TVM's RewriteDataflowReshape, also where it fails on a kernel of symbolic sizes."""

import tvm
from tvm import relax, tirx


def rewrite_dataflow_reshape() -> tvm.transform.Pass:
    """Makes views of the kernels that only give a tensor another shape.

    Before: ``y = call_tir(reshape, (x,))``
    After:  ``y = reshape(x, (4, 6))``, another shape for the memory of ``x``

    TVM 0.27 raises an error for a kernel of symbolic sizes whose loops it can not take apart by one
    of them. Such a kernel is no reshape, and the others become views all the same.
    """
    return tvm.transform.module_pass(_with_views, opt_level=0, name="RewriteDataflowReshape")


def _with_views(mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
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

"""Constants without elements are allocated in the run: TVM writes no library that holds one."""

import math

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator


def without_empty_constants(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with an allocation in place of each constant that has no elements."""
    functions = {
        global_var: _ConstantAllocator().visit_expr(func)
        for global_var, func in mod.functions.items()
        if isinstance(func, relax.Function) and _has_empty(func)
    }
    return tvm.IRModule({**dict(mod.functions.items()), **functions}, attrs=mod.attrs)


def _has_empty(func: relax.Function) -> bool:
    found: list[bool] = []

    def look(expr: relax.Expr) -> None:
        found.append(_is_empty(expr))

    relax.analysis.post_order_visit(func, look)
    return any(found)


def _is_empty(expr: relax.Expr) -> bool:
    return isinstance(expr, GenericConst) and math.prod(expr.value.shape) == 0


@mutator
class _ConstantAllocator(PyExprMutator):
    def visit_generic_const_(self, op: GenericConst) -> relax.Expr:
        if not _is_empty(op):
            return op
        shape = relax.ShapeExpr([int(size) for size in op.value.shape])
        return self.builder_.emit(relax.op.builtin.alloc_tensor(shape, str(op.value.dtype), 0))

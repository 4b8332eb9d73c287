"""Constants without elements are allocated in the run: TVM writes no library that holds one."""

import math

import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import relax_functions, with_functions


@graph_pass
class EmptyConstants:
    """Allocates constants that have no elements in the run.

    Before: ``y = concat(x, R.const([], shape=[0, 4]))``
    After:  ``e = alloc_tensor([0, 4])``, ``y = concat(x, e)``

    Leaves alone: constants with elements.

    Run after: legalisation and fusion, which know constants and no allocations.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when it has no such constant."""
        functions = {
            global_var: _ConstantAllocator().visit_expr(func)
            for global_var, func in relax_functions(mod).items()
            if _has_empty(func)
        }
        return with_functions(mod, functions)


def _has_empty(func: relax.Function) -> bool:
    found: list[bool] = []

    def look(expr: relax.Expr) -> None:
        found.append(_is_empty(expr))

    relax.analysis.post_order_visit(func, look)
    return any(found)


def _is_empty(expr: relax.Expr) -> bool:
    # Of element types and texts there are constants as well.
    is_tensor = isinstance(expr, GenericConst) and isinstance(expr.ty, relax.TensorType)
    return is_tensor and math.prod(expr.value.shape) == 0


@mutator
class _ConstantAllocator(PyExprMutator):
    def visit_generic_const_(self, op: GenericConst) -> relax.Expr:
        if not _is_empty(op):
            return op
        shape = relax.ShapeExpr([int(size) for size in op.value.shape])
        return self.builder_.emit(relax.op.builtin.alloc_tensor(shape, str(op.value.dtype), 0))

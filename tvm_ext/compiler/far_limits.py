"""Storage whose only limit stands in the model is allocated in the run, where it would be large.

A model that slices an open dimension up to a billion makes one of ``min(1000000000, n)`` elements,
and TVM's planner reserves storage for the billion. Small limits are worth it: their storage is
shared and allocated once.
"""

from collections.abc import Collection

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relay_passes.operator_name import operator_name
from tvm_ext.relay_passes.origin_writer import bindings_of
from tvm_ext.tir_schedules.block_access import static_extent

MOST_RESERVED_BYTES = 2**24


def without_far_limits(mod: tvm.IRModule, ranged: Collection[str]) -> tvm.IRModule:
    """``mod`` with tensors of their own in place of those on large storage of such a limit.

    Dimensions in ``ranged`` have limits that the user gave: theirs is what is asked for.
    """
    functions = {}
    for global_var, func in mod.functions.items():
        if not isinstance(func, relax.Function):
            continue
        if far := _far_storages(func, ranged):
            functions[global_var] = _Allocator(far).visit_expr(func)
    return tvm.IRModule({**dict(mod.functions.items()), **functions}, attrs=mod.attrs)


def _far_storages(func: relax.Function, ranged: Collection[str]) -> set[relax.Var]:
    bindings = list(bindings_of(func))
    large = {
        binding.var
        for binding in bindings
        if operator_name(binding.value) == "relax.memory.alloc_storage"
        and (static_extent(binding.value.args[0].values[0]) or 0) > MOST_RESERVED_BYTES
    }
    return large & {
        binding.value.args[0]
        for binding in bindings
        if operator_name(binding.value) == "relax.memory.alloc_tensor"
        and _is_open(binding.value.args[2], ranged)
    }


def _is_open(shape: relax.ShapeExpr, ranged: Collection[str]) -> bool:
    names = {var.name for size in shape.values for var in tirx.analysis.undefined_vars(size)}
    return not names <= set(ranged)


@mutator
class _Allocator(PyExprMutator):
    def __init__(self, far: set[relax.Var]) -> None:
        super().__init__()
        self._far = far

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var in self._far:
            return
        super().visit_var_binding_(binding)

    def visit_call_(self, op: relax.Call) -> relax.Expr:
        if operator_name(op) != "relax.memory.alloc_tensor" or op.args[0] not in self._far:
            return super().visit_call_(op)
        return relax.op.builtin.alloc_tensor(op.args[2], op.args[3].value, 0)

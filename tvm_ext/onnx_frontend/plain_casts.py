"""Casts to sizes that the run computes, in the form that TVM's passes expect.

ConvertLayout cannot look into a cast whose value is a call: it is bound to a variable first.

TVM's DecomposeOpsForInference turns ``tensor_to_shape`` into a call and a ``match_cast`` to sizes
of its own. With the ``match_cast`` of the model behind it, each size has two names, and its
CanonicalizeBindings replaces one by the other in some places and not in others, so that an operator
gets operands whose sizes differ, and a result of unknown shape.
"""

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relay_passes.origin_writer import all_bindings_of

_READ = "relax.tensor_to_shape"


def with_plain_casts(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with variables as the values of casts, and shapes that they name read directly."""
    changed = {
        global_var: _with_direct_reads(_with_bound_values(func))
        for global_var, func in mod.functions.items()
        if isinstance(func, relax.Function)
    }
    return tvm.IRModule({**dict(mod.functions.items()), **changed}, attrs=mod.attrs)


def _with_bound_values(func: relax.Function) -> relax.Function:
    if all(
        isinstance(cast.value, relax.Var)
        for cast in all_bindings_of(func)
        if isinstance(cast, relax.MatchCast)
    ):
        return func
    return _ValueBinder().visit_expr(func)


@mutator
class _ValueBinder(PyExprMutator):
    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        if isinstance(binding.value, relax.Var):
            super().visit_match_cast_(binding)
            return
        value = self.builder_.emit(self.visit_expr(binding.value))
        self.builder_.emit_normalized(relax.MatchCast(binding.var, value, binding.ty))


def _with_direct_reads(func: relax.Function) -> relax.Function:
    values = relax.analysis.get_var2val(func)
    reads = {
        hash(values[cast.value])
        for cast in all_bindings_of(func)
        if isinstance(cast, relax.MatchCast) and _is_read(values.get(cast.value))
    }
    if not reads:
        return func

    def direct(call: relax.Call) -> relax.Call:
        if hash(call) not in reads:
            return call
        callee = relax.ExternFunc("vm.builtin.tensor_to_shape")
        return relax.op.call_pure_packed(callee, call.args[0], ty_args=[call.ty])

    return tvm_ffi.structural_map(func, (relax.Call, direct), order="pre")


def _is_read(value: relax.Expr | None) -> bool:
    return isinstance(value, relax.Call) and value.op == tvm.ir.Op.get(_READ)

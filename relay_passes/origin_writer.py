"""Writes origins into the variables of a module."""

from collections.abc import Mapping, Sequence

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relay_passes.origin import retyped_var


def write_origins(mod: tvm.IRModule, origins: Mapping[relax.Var, Sequence[str]]) -> tvm.IRModule:
    """A module in which the bound variables in ``origins`` carry these names; ``mod`` when none."""
    if not origins:
        return mod
    writer = _OriginWriter(mod, origins)
    for global_var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            writer.builder_.update_func(global_var, writer.visit_expr(func))
    return writer.builder_.get()


def bindings_of(func: relax.Function) -> list[relax.VarBinding]:
    """All variable bindings below a function in program order, branches ahead of their If."""
    return [found for found in all_bindings_of(func) if isinstance(found, relax.VarBinding)]


def all_bindings_of(func: relax.Function) -> list[relax.Binding]:
    """As ``bindings_of``, with the casts to a shape among them."""
    found: list[relax.Binding] = []
    _collect_bindings(func.body, found)
    return found


def _collect_bindings(body: relax.Expr, found: list[relax.Binding]) -> None:
    if not isinstance(body, relax.SeqExpr):
        return
    for binding in (binding for block in body.blocks for binding in block.bindings):
        value = binding.value
        if isinstance(value, relax.If):
            _collect_bindings(value.true_branch, found)
            _collect_bindings(value.false_branch, found)
        elif isinstance(value, relax.Function):
            _collect_bindings(value.body, found)
        found.append(binding)


@mutator
class _OriginWriter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, origins: Mapping[relax.Var, Sequence[str]]) -> None:
        super().__init__(mod)
        self.origins = origins

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        names = self.origins.get(binding.var)
        if names is None:
            super().visit_var_binding_(binding)
            return
        value = self.visit_expr(binding.value)
        var = retyped_var(binding.var, binding.var.ty, names)
        self.builder_.emit_normalized(relax.VarBinding(var, value))
        self.set_var_remap(binding.var, var)

"""Gives bindings that no original node is known for the origin of the binding that uses them."""

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.origin import origins_of, retyped_var


@graph_pass
class InheritOrigins:
    """Fills in the origin of bindings that passes and converters added on the way.

    Before: ``lv = permute_dims(x)`` (no origin); ``conv = conv2d(lv, w)`` (origin "Conv_3")
    After:  both carry "Conv_3"

    A binding takes the origin of the first binding that uses it, else of what it reads.

    Leaves alone: bindings that have an origin; bindings that nothing with an origin touches.

    Run after: all graph passes. Run before: FuseOps, which merges the origins of a kernel.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when every binding has an origin already."""
        filler = _Filler(mod)
        for global_var, func in mod.functions.items():
            if not isinstance(func, relax.Function):
                continue
            filler.inherited = _missing_origins(func)
            if filler.inherited:
                filler.builder_.update_func(global_var, filler.visit_expr(func))
                filler.changed = True
        return filler.builder_.get() if filler.changed else mod


def _bindings(expr: relax.Expr) -> list[relax.Binding]:
    """All bindings below a function, branches included, in program order."""
    found: list[relax.Binding] = []

    def visit(node: relax.Expr) -> None:
        if isinstance(node, relax.SeqExpr):
            found.extend(binding for block in node.blocks for binding in block.bindings)

    relax.analysis.post_order_visit(expr, visit)
    return found


def _operands(value: relax.Expr) -> list[relax.Var]:
    return [var for var in relax.analysis.free_vars(value) if isinstance(var, relax.Var)]


def _missing_origins(func: relax.Function) -> dict[relax.Var, tuple[str, ...]]:
    bindings = [b for b in _bindings(func) if isinstance(b, relax.VarBinding)]
    known = {b.var: origins_of(b.var) for b in bindings if origins_of(b.var)}
    if len(known) == len(bindings):
        return {}
    missing: dict[relax.Var, tuple[str, ...]] = {}
    wanted: dict[relax.Var, tuple[str, ...]] = {}
    operands = {b.var: _operands(b.value) for b in bindings}
    for binding in reversed(bindings):
        names = known.get(binding.var) or wanted.get(binding.var)
        if not names:
            continue
        if binding.var not in known:
            missing[binding.var] = names
        # Walking backwards, the last writer wins: the first binding that uses the operand.
        wanted.update((operand, names) for operand in operands[binding.var])
    for binding in bindings:
        if binding.var in known or binding.var in missing:
            continue
        sources = [known.get(v) or missing.get(v) for v in operands[binding.var]]
        names = next((found for found in sources if found), None)
        if names:
            missing[binding.var] = names
    return missing


@mutator
class _Filler(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.inherited: dict[relax.Var, tuple[str, ...]] = {}
        self.changed = False

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        names = self.inherited.get(binding.var)
        if names is None:
            super().visit_var_binding_(binding)
            return
        value = self.visit_expr(binding.value)
        var = retyped_var(binding.var, binding.var.ty, names)
        self.builder_.emit_normalized(relax.VarBinding(var, value))
        self.set_var_remap(binding.var, var)

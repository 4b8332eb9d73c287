"""Computes at compile time what depends on constants only."""

from collections.abc import Mapping

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relay_passes.affine import constant_value
from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_graph import blocks_of
from tvm_ext.relay_passes.origin import describe_origin
from tvm_ext.relay_passes.pass_log import record_applied

NAME = "FoldConstantCalls"


@graph_pass
class FoldConstantCalls:
    """Replaces calls whose operands are all constants by their results.

    Before: ``w = permute_dims(W)``; ``y = matmul(x, w)``
    After:  ``y = matmul(x, W')`` with the constant ``W' = W.T``

    Views and casts are computed here, the rest by TVM's FoldConstant. On its own that lowers every
    operator of a module to see whether the result can be computed, and compiles each one that can;
    here it is given the calls on constants only, in a module of their own.

    Leaves alone: calls outside of dataflow blocks; functions that are fused already; what
    FoldConstant leaves alone (operators without lowering, large results of operators that create
    tensors from nothing).

    Run after: import, and passes that leave operators on constants. Run before: passes that want
    constants as weights.
    """

    def transform_module(self, mod: tvm.IRModule, _ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when there is nothing to compute."""
        # A part of a tuple that was computed is known in the next round only.
        while (folded := _fold_once(mod)) is not None:
            mod = folded
        return mod


def _fold_once(mod: tvm.IRModule) -> tvm.IRModule | None:
    folded = {
        global_var: values
        for global_var, func in mod.functions.items()
        if isinstance(func, relax.Function) and (values := _folded_values(mod, func))
    }
    if not folded:
        return None
    writer = _LiteralWriter(mod)
    for global_var, values in folded.items():
        writer.values = values
        writer.builder_.update_func(global_var, writer.visit_expr(mod[global_var]))
    return writer.builder_.get()


def _folded_values(mod: tvm.IRModule, func: relax.Function) -> dict[relax.Var, relax.Expr]:
    """By variable of ``func``: the literal that it turns out to be."""
    candidates = _constant_bindings(func)
    wanted = [var for var in candidates if not isinstance(var.ty, relax.TupleType)]
    values = _evaluated(GraphView(func), wanted) if wanted else {}
    rest = [var for var in wanted if var not in values]
    if rest:
        results = _computed(mod, {**candidates, **values}, rest)
        values.update((v, r) for v, r in zip(rest, results, strict=True) if _is_literal(r))
    for var in values:
        if isinstance(candidates[var], relax.Call):
            record_applied(NAME, describe_origin(var), "computed at compile time")
    return values


def _is_literal(value: relax.Expr) -> bool:
    """Whether ``value`` may take the place of its variable wherever that is used."""
    return isinstance(value, tvm.ir.GenericConst | relax.ShapeExpr)


def _evaluated(view: GraphView, variables: list[relax.Var]) -> dict[relax.Var, relax.Expr]:
    """What needs no compiler: views and casts of constants, nearly all there is in a model."""
    arrays = {var: constant_value(view, var) for var in variables}
    return {
        var: relax.const(np.asarray(array, order="C"), str(var.ty.dtype))
        for var, array in arrays.items()
        if array is not None
    }


def _constant_bindings(func: relax.Function) -> dict[relax.Var, relax.Expr]:
    """The bindings in dataflow blocks that depend on constants only, in program order."""
    found: dict[relax.Var, relax.Expr] = {}
    if func.attrs is not None and "Primitive" in func.attrs:
        return found
    for block in blocks_of(func.body):
        if not isinstance(block, relax.DataflowBlock):
            continue
        for binding in block.bindings:
            if isinstance(binding, relax.VarBinding) and _is_constant(binding.value, found):
                found[binding.var] = binding.value
    return found


def _is_constant(value: relax.Expr, known: Mapping[relax.Var, relax.Expr]) -> bool:
    if isinstance(value, relax.Var):
        return value in known
    if isinstance(value, relax.Call):
        return isinstance(value.op, tvm.ir.Op) and all(_is_constant(a, known) for a in value.args)
    if isinstance(value, relax.Tuple):
        return all(_is_constant(field, known) for field in value.fields)
    if isinstance(value, relax.TupleGetItem):
        return _is_constant(value.tuple_value, known)
    if isinstance(value, relax.ShapeExpr):
        return all(isinstance(extent, tirx.IntImm) for extent in value.values)
    return not isinstance(value, relax.If | relax.Function | relax.ExternFunc | relax.SeqExpr)


def _computed(
    mod: tvm.IRModule, bindings: Mapping[relax.Var, relax.Expr], wanted: list[relax.Var]
) -> list[relax.Expr]:
    """What FoldConstant makes of the variables ``wanted`` in a function of ``bindings`` alone."""
    all_wanted = relax.Tuple(wanted)
    result = relax.Var("result", all_wanted.ty)
    pairs = [*bindings.items(), (result, all_wanted)]
    block = relax.DataflowBlock([relax.VarBinding(var, value) for var, value in pairs])
    func = relax.Function([], relax.SeqExpr([block], result), result.ty)
    kernels = {g: f for g, f in mod.functions.items() if isinstance(f, tirx.PrimFunc)}
    alone = tvm.IRModule({**kernels, tvm.ir.GlobalVar("constants"): func})
    for step in (relax.transform.FoldConstant(), relax.transform.CanonicalizeBindings()):
        alone = step(alone)
    view = GraphView(alone["constants"])
    return [view.value(field) for field in view.value(alone["constants"].body.body).fields]


@mutator
class _LiteralWriter(PyExprMutator):
    """Puts ``values`` where their variables are used, and drops the bindings."""

    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.values: dict[relax.Var, relax.Expr] = {}

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        if binding.var not in self.values:
            super().visit_var_binding_(binding)

    def visit_var_(self, var: relax.Var) -> relax.Expr:
        return self.values[var] if var in self.values else super().visit_var_(var)

    def visit_dataflow_var_(self, var: relax.DataflowVar) -> relax.Expr:
        return self.values[var] if var in self.values else super().visit_dataflow_var_(var)

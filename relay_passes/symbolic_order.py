"""Keeps the order of bindings and of the match_casts between them right around FuseOps.

TVM 0.27's FuseOps sorts the bindings of a block by the variables that they read, and knows nothing
of the sizes: an operator that is fused with an earlier one moves in front of the ``match_cast`` of
its own sizes, and the module is not well-formed any more. Nor does it see that a ``match_cast``
reads a tensor: it fuses the tensor's kernel with one that waits for the cast.
"""

from collections.abc import Iterable

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.graph_pass import OPAQUE
from tvm_ext.relay_passes.operator_name import operator_name
from tvm_ext.relay_passes.origin_writer import all_bindings_of


def cast_results_ungrouped(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with kernels, whose results are cast and read otherwise as well, marked opaque."""
    cast: set[relax.Var] = set()
    for func in mod.functions.values():
        if isinstance(func, relax.Function):
            view = GraphView(func)
            values = (b.value for b in all_bindings_of(func) if isinstance(b, relax.MatchCast))
            cast.update(v for v in values if isinstance(v, relax.Var) and view.uses(v) > 1)
    if not cast:
        return mod
    marker = _OpaqueKernels(mod, cast)
    for global_var, func in mod.functions.items():
        if isinstance(func, relax.Function):
            marker.builder_.update_func(global_var, marker.visit_expr(func))
    return marker.builder_.get()


@mutator
class _OpaqueKernels(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, results: set[relax.Var]) -> None:
        super().__init__(mod)
        self.mod = mod
        self.results = results

    def visit_var_binding_(self, binding: relax.VarBinding) -> None:
        call = binding.value
        if binding.var not in self.results or operator_name(call) != "relax.call_tir":
            super().visit_var_binding_(binding)
            return
        kernel = self.mod[call.args[0]].with_attr("op_pattern", OPAQUE)
        name = self.builder_.add_func(kernel, str(call.args[0].name_hint))
        rest = [self.visit_expr(arg) for arg in call.args[1:]]
        marked = relax.Call(call.op, [name, *rest], call.attrs, call.ty_args, call.span)
        self.builder_.emit_normalized(
            relax.VarBinding(binding.var, self.builder_.normalize(marked))
        )


def sizes_defined_first(mod: tvm.IRModule) -> tvm.IRModule:
    """The same bindings, each after all that it reads, sizes included; order is kept otherwise."""
    changed = {
        global_var: _ordered(func)
        for global_var, func in mod.functions.items()
        if isinstance(func, relax.Function) and _casts(func)
    }
    if not changed:
        return mod
    return tvm.IRModule({**dict(mod.functions.items()), **changed}, attrs=mod.attrs)


def _casts(func: relax.Function) -> bool:
    return isinstance(func.body, relax.SeqExpr) and any(
        isinstance(binding, relax.MatchCast)
        for block in func.body.blocks
        for binding in block.bindings
    )


def _ordered(func: relax.Function) -> relax.Function:
    # A later cast to a parameter's size defines nothing: who waited for it would wait for itself.
    known = {var for param in func.params for var in relax.analysis.tir_vars_in_type(param.ty)}
    blocks = [_ordered_block(block, known) for block in func.body.blocks]
    if all(new is old for new, old in zip(blocks, func.body.blocks, strict=True)):
        return func
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)


def _ordered_block(block: relax.BindingBlock, known: set[tirx.Var]) -> relax.BindingBlock:
    bindings = list(block.bindings)
    makers = {binding.var: place for place, binding in enumerate(bindings)}
    sizes: dict[tirx.Var, int] = {}
    casts = [(i, binding) for i, binding in enumerate(bindings) if _is_cast(binding)]
    for place, cast in casts:
        for size in set(relax.analysis.tir_vars_in_type(cast.ty)) - known:
            sizes.setdefault(size, place)
    order: list[int] = []
    placed: set[int] = set()

    def place_with_needs(place: int) -> None:
        if place in placed:
            return
        placed.add(place)
        binding = bindings[place]
        needs = [makers.get(var) for var in relax.analysis.free_vars(binding.value)]
        needs += [sizes.get(size) for size in _sizes_read(binding)]
        for need in needs:
            if need is not None and need != place:
                place_with_needs(need)
        order.append(place)

    for place in range(len(bindings)):
        place_with_needs(place)
    if order == sorted(order):
        return block
    kind = relax.DataflowBlock if isinstance(block, relax.DataflowBlock) else relax.BindingBlock
    return kind([bindings[place] for place in order])


def _is_cast(binding: relax.Binding) -> bool:
    return isinstance(binding, relax.MatchCast)


def _sizes_read(binding: relax.Binding) -> Iterable[tirx.Var]:
    """The symbolic sizes in a binding's type and in the arguments of its call."""
    if not isinstance(binding, relax.MatchCast):
        yield from relax.analysis.tir_vars_in_type(binding.var.ty)
    if isinstance(binding.value, relax.Call):
        for argument in binding.value.args:
            yield from _sizes_in(argument)


def _sizes_in(argument: relax.Expr) -> Iterable[tirx.Var]:
    if isinstance(argument, relax.Tuple):
        for field in argument.fields:
            yield from _sizes_in(field)
    elif isinstance(argument, relax.ShapeExpr):
        yield from relax.analysis.tir_vars_in_type(argument.ty)
    elif tvm.ir.is_prim_expr(argument):
        yield from tirx.analysis.undefined_vars(argument)

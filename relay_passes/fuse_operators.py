"""TVM's FuseOps, with the origins of all operators of a group on the call of the group."""

import heapq
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator
from tvm_ffi import structural_map

from tvm_ext.relay_passes.binding_rewriter import GraphView
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import OPAQUE, graph_pass
from tvm_ext.relay_passes.kernel_sizes import sizes_as_called, sizes_in_order
from tvm_ext.relay_passes.spans import (
    all_bindings_of,
    origins_of,
    relax_functions,
    with_functions,
    write_origins,
)

# Puts sizes that a fused function takes one by one to those that it takes as a shape.
#
# FuseOps passes the sizes that kernels read as parameters of their own, and those that stand in
# shapes only together in one shape. TVM 0.27's FuseTIR fails on functions with both.


@dataclass(frozen=True)
class _Moved:
    """Positions of a function's parameters: single sizes, and the shape."""

    sizes: tuple[int, ...]
    shape: int

    def replaced(self, values: list[Any], shape: Any) -> list[Any]:
        """Parameters or arguments with ``shape`` in place of all of them."""
        pairs = enumerate(values)
        return [shape if i == self.shape else v for i, v in pairs if i not in self.sizes]


def sizes_in_one_shape(mod: tvm.IRModule) -> tvm.IRModule:
    """``mod`` with such functions and all calls of them changed; itself where there are none."""
    moved = {
        global_var: found
        for global_var, func in relax_functions(mod).items()
        if (found := _moved(func)) is not None
    }
    if not moved:
        return mod
    builder, renewed = relax.BlockBuilder(), {}
    for global_var, found in moved.items():
        # The variable has the type of its function: a new one for another type.
        name = str(global_var.name_hint)
        func = _changed(mod[global_var], found)
        renewed[name] = (found, builder.add_func(func, name), func)

    def call(old: relax.Call) -> relax.Call:
        name = str(old.op.name_hint) if isinstance(old.op, tvm.ir.GlobalVar) else ""
        if name not in renewed:
            return old
        found, global_var, _ = renewed[name]
        sizes = [*old.args[found.shape].values, *(old.args[i] for i in found.sizes)]
        arguments = found.replaced(list(old.args), relax.ShapeExpr(sizes))
        return relax.Call(global_var, arguments, old.attrs, old.ty_args, old.span)

    functions = {global_var: func for _, global_var, func in renewed.values()}
    for global_var, func in mod.functions.items():
        if str(global_var.name_hint) not in renewed:
            is_relax = isinstance(func, relax.Function)
            functions[global_var] = structural_map(func, (relax.Call, call)) if is_relax else func
    # Gives the new calls their types.
    return relax.transform.Normalize()(tvm.IRModule(functions, attrs=mod.attrs))


def _moved(func: relax.Function) -> _Moved | None:
    if "Primitive" not in (func.attrs or {}):
        return None
    kinds = [type(param.ty) for param in func.params]
    sizes = tuple(i for i, kind in enumerate(kinds) if kind is tvm.ir.PrimType)
    shapes = [i for i, kind in enumerate(kinds) if kind is relax.ShapeType]
    return _Moved(sizes, shapes[0]) if sizes and shapes else None


def _changed(func: relax.Function, moved: _Moved) -> relax.Function:
    shape = func.params[moved.shape]
    sizes = [*shape.ty.values, *(func.params[i] for i in moved.sizes)]
    together = relax.Var(shape.name, relax.ShapeType(sizes))
    params = moved.replaced(list(func.params), together)
    return relax.Function(params, func.body, func.ret_ty, func.is_pure, func.attrs, func.span)


# Keeps the order of bindings and of the match_casts between them right around FuseOps.
#
# TVM 0.27's FuseOps sorts the bindings of a block by the variables that they read, and knows
# nothing of the sizes: an operator that is fused with an earlier one moves in front of the
# ``match_cast`` of its own sizes, and the module is not well-formed any more. Nor does it see
# that a ``match_cast`` reads a tensor: it fuses the tensor's kernel with one that waits for the
# cast.


def cast_results_ungrouped(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with kernels, whose results are cast and read otherwise as well, marked opaque.

    A field of a tuple is taken out of it once more for the cast instead.
    """
    cast: dict[relax.Var, relax.Expr] = {}
    for func in relax_functions(mod).values():
        view = GraphView(func)
        values = (b.value for b in all_bindings_of(func) if isinstance(b, relax.MatchCast))
        shared = (v for v in values if isinstance(v, relax.Var) and view.uses(v) > 1)
        cast.update((value, view.value(value)) for value in shared)
    if not cast:
        return mod
    marker = _UngroupedCasts(mod, cast)
    for global_var, func in relax_functions(mod).items():
        marker.builder_.update_func(global_var, marker.visit_expr(func))
    return marker.builder_.get()


# Keeps the results of a kernel of several out of the groups that read them.
#
# TVM 0.27's FuseOps passes each such result to a group by a place among its parameters that it
# noted before results of another kernel moved it: with two such kernels a group reads something
# else, or is not well-formed, as the order of pointers in memory has it.


def results_ungrouped(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with the results of opaque kernels of several as results of their block, too."""
    changed = {}
    for global_var, func in relax_functions(mod).items():
        view = GraphView(func)
        outside = {
            hash(binding.var): relax.Var(binding.var.name, binding.var.ty, binding.var.span)
            for binding in all_bindings_of(func)
            if isinstance(binding.var, relax.DataflowVar) and _is_field(mod, view, binding.value)
        }
        if outside:
            kinds = relax.DataflowVar, lambda var, own=outside: own.get(hash(var), var)
            changed[global_var] = structural_map(func, kinds)
    return with_functions(mod, changed)


def _is_field(mod: tvm.IRModule, view: GraphView, value: relax.Expr) -> bool:
    call = view.value(value.tuple_value) if isinstance(value, relax.TupleGetItem) else None
    if not isinstance(call, relax.Call) or operator_name(call) != "relax.call_tir":
        return False
    return int((mod[call.args[0]].attrs or {}).get("op_pattern", OPAQUE)) == OPAQUE


@mutator
class _UngroupedCasts(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, results: dict[relax.Var, relax.Expr]) -> None:
        super().__init__(mod)
        self.mod = mod
        self.results = results

    def visit_match_cast_(self, binding: relax.MatchCast) -> None:
        field = self.results.get(binding.value)
        if isinstance(field, relax.TupleGetItem):
            value = self.builder_.emit(self.visit_expr(field))
            binding = relax.MatchCast(binding.var, value, binding.ty)
        super().visit_match_cast_(binding)

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
        for global_var, func in relax_functions(mod).items()
        if _casts(func)
    }
    return with_functions(mod, changed)


def _casts(func: relax.Function) -> bool:
    return isinstance(func.body, relax.SeqExpr) and any(
        isinstance(binding, relax.MatchCast)
        for block in func.body.blocks
        for binding in block.bindings
    )


def _ordered(func: relax.Function) -> relax.Function:
    # A later cast to a parameter's size defines nothing: who waited for it would wait for itself.
    known = {var for param in func.params for var in relax.analysis.tir_vars_in_type(param.ty)}
    blocks = [ordered_block(block, known) for block in func.body.blocks]
    if all(new is old for new, old in zip(blocks, func.body.blocks, strict=True)):
        return func
    body = relax.SeqExpr(blocks, func.body.body)
    return relax.Function(func.params, body, func.ret_ty, func.is_pure, func.attrs, func.span)


def ordered_block(block: relax.BindingBlock, known: set[tirx.Var]) -> relax.BindingBlock:
    """Always the first binding whose operands and sizes are there; its sizes become ``known``.

    Several casts may name a size. Whichever comes first defines it, the others compare.
    """
    bindings = list(block.bindings)
    made = [{binding.var, *sizes_defined_by(binding)} - known for binding in bindings]
    makeable = set().union(*made)
    needs = [needs_of(binding) & makeable for binding in bindings]
    readers: dict[Any, list[int]] = {}
    for place, needed in enumerate(needs):
        for one in needed:
            readers.setdefault(one, []).append(place)
    ready = [place for place, needed in enumerate(needs) if not needed]
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for one in made[order[-1]]:
            for reader in readers.pop(one, ()):
                needs[reader].discard(one)
                if not needs[reader]:
                    heapq.heappush(ready, reader)
    known.update(size for binding in bindings for size in sizes_defined_by(binding))
    if order == sorted(order) or len(order) < len(bindings):
        return block
    kind = relax.DataflowBlock if isinstance(block, relax.DataflowBlock) else relax.BindingBlock
    return kind([bindings[place] for place in order])


def sizes_defined_by(binding: relax.Binding) -> set[tirx.Var]:
    """Those that stand alone in the type of a cast; in ``n - 1`` it reads ``n``."""
    if not isinstance(binding, relax.MatchCast):
        return set()
    return set(relax.analysis.definable_tir_vars_in_type(binding.ty))


def needs_of(binding: relax.Binding) -> set[Any]:
    """Variables and symbolic sizes that a binding reads, in its type and its operands."""
    cast = isinstance(binding, relax.MatchCast)
    sizes = set(relax.analysis.tir_vars_in_type(binding.ty if cast else binding.var.ty))
    sizes -= sizes_defined_by(binding)
    operands = binding.value.args if isinstance(binding.value, relax.Call) else [binding.value]
    sizes.update(size for operand in operands for size in _sizes_in(operand))
    return sizes | set(relax.analysis.free_vars(binding.value))


def _sizes_in(argument: relax.Expr) -> Iterable[tirx.Var]:
    if isinstance(argument, relax.Tuple):
        for field in argument.fields:
            yield from _sizes_in(field)
    elif isinstance(argument, relax.ShapeExpr):
        yield from relax.analysis.tir_vars_in_type(argument.ty)
    elif tvm.ir.is_prim_expr(argument):
        yield from tirx.analysis.undefined_vars(argument)


@graph_pass
class FuseOperators:
    """Groups operators into one function each, as FuseOps does, and merges their origins.

    Before: ``a = conv2d(x, w)`` ("Conv_1"); ``b = relu(a)`` ("Relu_2")
    After:  ``b = fused_conv2d_relu(x, w)`` ("Conv_1", "Relu_2")

    FuseOps shares one function between all places that compute the same thing, so the function
    cannot say where it came from. Here each call is replayed against the module as it was before:
    the same operator on the same operands is the binding whose origin is wanted.

    Leaves alone: what FuseOps leaves alone; origins of bindings that it does not group.

    Run after: AnnotateTIROpPattern, PropagateSpans. Run before: FuseTIR.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns the fused module; ``mod`` is left as it is."""
        mod = results_ungrouped(cast_results_ungrouped(sizes_in_order(mod)))
        mod = sizes_as_called(mod)
        fused = sizes_defined_first(relax.transform.FuseOps()(mod))
        merged: dict[relax.Var, tuple[str, ...]] = {}
        for global_var, func in relax_functions(mod).items():
            merged.update(_Replay(func, fused).origins(fused[str(global_var.name_hint)]))
        return sizes_in_one_shape(write_origins(fused, merged))


class _Replay:
    """Finds, for each call of a group, the old bindings that the group is made of."""

    def __init__(self, before: relax.Function, fused: tvm.IRModule) -> None:
        self.before = before
        self.fused = fused
        # Bindings that compute the same (in two branches, say) share a key: all are known as the
        # first of them, and give away their names in their order.
        self.old: dict[Hashable, list[relax.Var]] = {}
        known: dict[int, Hashable] = {}
        # Numbers for what was not there before: its key spelled out in the keys of all that uses it
        # would double with every second use.
        self.strangers: dict[Hashable, Hashable] = {}
        for binding in all_bindings_of(before):
            if isinstance(binding, relax.MatchCast):
                known[hash(binding.var)] = _key(binding.value, known)
                continue
            same = self.old.setdefault(_key(binding.value, known), [])
            same.append(binding.var)
            known[hash(binding.var)] = hash(same[0])
        self.taken: dict[Hashable, int] = {}

    def origins(self, after: relax.Function) -> dict[relax.Var, tuple[str, ...]]:
        """The merged origins by variable of the fused function."""
        known: dict[int, Hashable] = {
            hash(new): hash(old) for new, old in zip(after.params, self.before.params, strict=True)
        }
        merged: dict[relax.Var, tuple[str, ...]] = {}
        for binding in all_bindings_of(after):
            if isinstance(binding, relax.MatchCast):
                known[hash(binding.var)] = _key(binding.value, known)
                continue
            group = self._group(binding.value)
            if group is None:
                self._take(_key(binding.value, known))
                known[hash(binding.var)] = self._known_as(binding.value, known)
                continue
            members, result = self._replay_group(group, binding.value, known)
            known[hash(binding.var)] = result
            merged[binding.var] = origins_of(*members)
        return {var: names for var, names in merged.items() if names}

    def _group(self, value: relax.Expr) -> relax.Function | None:
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.GlobalVar):
            return None
        callee = self.fused[value.op]
        # Bodies of branches and loops are functions too, and were there before.
        is_group = isinstance(callee, relax.Function) and "Primitive" in (callee.attrs or {})
        return callee if is_group else None

    def _replay_group(
        self, group: relax.Function, call: relax.Call, outer: dict[int, Hashable]
    ) -> tuple[list[relax.Var], Hashable]:
        known = {
            hash(param): _key(arg, outer)
            for param, arg in zip(group.params, call.args, strict=True)
        }
        members: list[relax.Var] = []
        for binding in all_bindings_of(group):
            key = _key(binding.value, known)
            known[hash(binding.var)] = self._known_as(binding.value, known)
            members += self._take(key)
        return members, _key(group.body.body, known)

    def _take(self, key: Hashable) -> list[relax.Var]:
        """The next of the old bindings with this key, if there is any."""
        same = self.old.get(key, [])
        position = self.taken.get(key, 0)
        self.taken[key] = position + 1
        return same[min(position, len(same) - 1) :][:1]

    def _known_as(self, value: relax.Expr, known: dict[int, Hashable]) -> Hashable:
        """The old variable that is bound to ``value``, a tuple in old terms, or a new number."""
        key = _key(value, known)
        if isinstance(value, relax.TupleGetItem):
            source = _key(value.tuple_value, known)
            if isinstance(source, tuple) and source[0] == "tuple":
                return source[1][value.index]
        same = self.old.get(key)
        if same:
            return hash(same[0])
        if isinstance(value, relax.Tuple):
            return key
        return self.strangers.setdefault(key, ("stranger", len(self.strangers)))


def _key(value: relax.Expr, known: dict[int, Hashable]) -> Hashable:
    """What ``value`` computes, with variables replaced by what is known of them."""
    if isinstance(value, relax.Call):
        callee = value.op.name_hint if isinstance(value.op, tvm.ir.GlobalVar) else hash(value.op)
        return ("call", callee, tuple(_key(arg, known) for arg in value.args))
    if isinstance(value, relax.Tuple):
        return ("tuple", tuple(_key(field, known) for field in value.fields))
    if isinstance(value, relax.TupleGetItem):
        return ("item", value.index, _key(value.tuple_value, known))
    if isinstance(value, tvm.ir.GlobalVar):
        return ("global", str(value.name_hint))
    if isinstance(value, relax.ShapeExpr):
        return ("shape", str(value))
    if tvm.ir.is_prim_expr(value):
        return ("size", str(value))
    return known.get(hash(value), hash(value))

"""TVM's FuseOps, with the origins of all operators of a group on the call of the group."""

from collections.abc import Hashable

import tvm
from tvm import relax

from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.origin import origins_of
from tvm_ext.relay_passes.origin_writer import all_bindings_of, write_origins
from tvm_ext.relay_passes.size_parameters import sizes_in_one_shape
from tvm_ext.relay_passes.symbolic_order import cast_results_ungrouped, sizes_defined_first


@graph_pass
class FuseOperators:
    """Groups operators into one function each, as FuseOps does, and merges their origins.

    Before: ``a = conv2d(x, w)`` ("Conv_1"); ``b = relu(a)`` ("Relu_2")
    After:  ``b = fused_conv2d_relu(x, w)`` ("Conv_1", "Relu_2")

    FuseOps shares one function between all places that compute the same thing, so the function
    cannot say where it came from. Here each call is replayed against the module as it was before:
    the same operator on the same operands is the binding whose origin is wanted.

    Leaves alone: what FuseOps leaves alone; origins of bindings that it does not group.

    Run after: AnnotateTIROpPattern, InheritOrigins. Run before: FuseTIR.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns the fused module; ``mod`` is left as it is."""
        mod = cast_results_ungrouped(mod)
        fused = sizes_defined_first(relax.transform.FuseOps()(mod))
        merged: dict[relax.Var, tuple[str, ...]] = {}
        for global_var, func in mod.functions.items():
            if isinstance(func, relax.Function):
                name = str(global_var.name_hint)
                merged.update(_Replay(func, fused).origins(fused[name]))
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

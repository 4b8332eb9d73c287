"""Gives bindings that no original node is known for the origin of the binding that uses them."""

import tvm
from tvm import relax

from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.spans import bindings_of, origins_of, relax_functions, write_origins


@graph_pass
class PropagateSpans:
    """Fills in the origin of bindings that passes and converters added on the way.

    Before: ``lv = permute_dims(x)`` (no origin); ``conv = conv2d(lv, w)`` (origin "Conv_3")
    After:  both carry "Conv_3"

    A binding takes the origin of the first binding that uses it, else of what it reads, else of the
    next one that has an origin: checks of sizes, which nothing reads, stand ahead of what needs it.

    Leaves alone: bindings that have an origin; the last ones, if nothing with an origin follows.

    Run after: all graph passes. Run before: FuseOperators, which merges the origins of a kernel.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when every binding has an origin already."""
        missing: dict[relax.Var, tuple[str, ...]] = {}
        for func in relax_functions(mod).values():
            missing.update(_missing_origins(func))
        return write_origins(mod, missing)


def _missing_origins(func: relax.Function) -> dict[relax.Var, tuple[str, ...]]:
    bindings = bindings_of(func)
    origins = ((b.var, origins_of(b.var)) for b in bindings)
    known = {var: names for var, names in origins if names}
    if len(known) == len(bindings):
        return {}
    # Of an If these are also the variables bound in its branches: they belong to it.
    operands = {b.var: relax.analysis.all_vars(b.value)[:] for b in bindings}
    missing: dict[relax.Var, tuple[str, ...]] = {}
    wanted: dict[relax.Var, tuple[str, ...]] = {}
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
    following: tuple[str, ...] = ()
    for binding in reversed(bindings):
        following = known.get(binding.var) or missing.get(binding.var) or following
        if following and binding.var not in known:
            missing.setdefault(binding.var, following)
    return missing

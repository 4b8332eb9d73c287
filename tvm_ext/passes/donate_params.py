"""Results that a program writes into the memory of parameters that its caller gives away."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import tvm
from tvm import relax

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.passes.in_place_results import in_place_results
from tvm_ext.passes.results_to_out_params import allocations_of_results
from tvm_ext.relay_passes.dataflow.buffer_lifetimes import buffer_lifetimes
from tvm_ext.relay_passes.expressions import replaced
from tvm_ext.relay_passes.graph_pass import graph_pass, record_applied, record_refusal
from tvm_ext.relay_passes.spans import with_functions

# On ``main``: the places of results by the names of the parameters whose memory they may have.
DONATED = "tvm_ext.donated_params"


@graph_pass
class DonateParams:
    """Writes a result into the memory of a parameter that is given away, as an update of weights.

    Before: ``main(w, g): y = alloc_tensor(shape, ...); update(w, g, y); return y``
    After:  ``main(w, g): update(w, g, w); return w``

    Which result may have which parameter's memory an attribute of ``main`` says. The kernel has to
    be the last to read the parameter, and to read of it only the element that it writes.

    Leaves alone: programs for GPUs, kernels that read more, and parameters that are results too.

    Run after: CallTIRRewrite. Run before: ShareStorage.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself where nothing is given away."""
        found = donated(mod)
        for param in found.left:
            reason = "it is a result itself, or read later or elsewhere than it is written"
            record_refusal("DonateParams", str(param.name), reason)
        if found.within:
            names = ", ".join(str(param.name) for param in found.within.values())
            record_applied("DonateParams", names, f"{len(found.within)} results written in place")
        return found.mod


@dataclass(frozen=True)
class Donated:
    """A module whose results lie in parameters, where they may; and those that do not.

    Attributes
    ----------
    mod : tvm.IRModule
        The module.
    within : mapping of relax.Var to relax.Var
        Parameters, by the allocations of the results that they took.
    left : list of relax.Var
        Parameters that no result could be written to.
    """

    mod: tvm.IRModule
    within: Mapping[relax.Var, relax.Var] = field(default_factory=dict)
    left: list[relax.Var] = field(default_factory=list)


def donated(mod: tvm.IRModule) -> Donated:
    """What the pass makes of a module behind ``CallTIRRewrite``; nothing is recorded."""
    if current_cpu() is None or "main" not in mod:
        return Donated(mod)
    variable, main = mod.get_global_var("main"), mod["main"]
    pairs = _pairs(main)
    if not pairs:
        return Donated(mod)
    lives = buffer_lifetimes(mod, {variable: list(pairs.values())})
    # What is needed when the function has ended, as a result, keeps its values.
    params = [one for one in pairs.values() if one not in lives[variable].escaped]
    planned = {one: [*pairs, *params] if one == variable else [] for one in lives}
    mod, within = in_place_results(mod, lives, planned, pairs)
    left = [param for result, param in pairs.items() if result not in within]
    if within:
        mod = with_functions(mod, {variable: _without_allocations(mod["main"], within)})
    return Donated(mod, within, left)


def donated_places(func: relax.Function) -> dict[relax.Var, int]:
    """The places of results by the parameters whose memory they may have."""
    places = dict((func.attrs or {}).get(DONATED, {}).items())
    return {param: int(places[param.name]) for param in func.params if param.name in places}


def _pairs(main: relax.Function) -> dict[relax.Var, relax.Var]:
    """Parameters by the allocations of results that may have their memory."""
    places, allocations = donated_places(main), allocations_of_results(main)
    return {allocations[place]: param for param, place in places.items() if place in allocations}


def _without_allocations(
    main: relax.Function, within: Mapping[relax.Var, relax.Var]
) -> relax.Function:
    """The function with parameters in place of allocations."""
    blocks = [
        relax.BindingBlock([one for one in block.bindings if one.var not in within])
        for block in main.body.blocks
    ]
    body = replaced(relax.SeqExpr(blocks, main.body.body), within)
    return relax.Function(main.params, body, main.ret_ty, main.is_pure).with_attrs(
        dict(main.attrs.items())
    )

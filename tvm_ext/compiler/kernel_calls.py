"""Which kernel is called for which original nodes.

FuseOps shares one kernel between all places that compute the same thing, so the kernel itself
cannot say where it came from: the place that calls it does. The bindings are therefore noted
before fusion; a group keeps the variable of its last operator, from which the group is walked
back to what it reads.
"""

from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from tvm_ext.compiler.graph_facts import bindings_of
from tvm_ext.relay_passes.origin import origins_of


@dataclass(frozen=True)
class KernelCall:
    """One call of a kernel: the kernel's name and the names of the original nodes."""

    kernel: str
    origins: tuple[str, ...]

    @property
    def where(self) -> str:
        """The origins in one line."""
        return " + ".join(self.origins)


@tvm.instrument.pass_instrument
class FusionObserver:
    """Notes the bindings as they are right before FuseOps."""

    def __init__(self) -> None:
        self.origins: dict[str, tuple[str, ...]] = {}
        self.operands: dict[str, tuple[str, ...]] = {}
        self.kernel_calls = 0

    def run_before_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Called by TVM before each pass."""
        if info.name != "FuseOps":
            return
        self.kernel_calls = len(kernel_call_bindings(mod))
        for _, binding in bindings_of(mod):
            name = str(binding.var.name)
            self.origins[name] = origins_of(binding.var)
            read = relax.analysis.free_vars(binding.value)
            self.operands[name] = tuple(str(var.name) for var in read)


def kernel_call_bindings(mod: tvm.IRModule) -> list[relax.VarBinding]:
    """The bindings that call a kernel of the module, in the order of a run."""
    found = []
    for _, binding in bindings_of(mod):
        value = binding.value
        is_call_tir = isinstance(value, relax.Call) and value.op == _CALL_TIR
        if is_call_tir and isinstance(mod[value.args[0]], tirx.PrimFunc):
            found.append(binding)
    return found


_CALL_TIR = tvm.ir.Op.get("relax.call_tir")


def kernel_calls(mod: tvm.IRModule, fusion: FusionObserver) -> list[KernelCall]:
    """Every kernel call of ``mod``, in the order of a run, with the nodes that it computes."""
    bindings = kernel_call_bindings(mod)
    outside = {str(binding.var.name) for binding in bindings}
    aliases = _tuple_items(mod)
    calls = []
    for binding in bindings:
        roots = [str(binding.var.name), *aliases.get(str(binding.var.name), ())]
        names = dict.fromkeys(origins_of(binding.var))
        for root in roots:
            names.update(dict.fromkeys(_group_origins(root, outside, fusion)))
        kernel = str(binding.value.args[0].name_hint)
        calls.append(KernelCall(kernel, tuple(names)))
    return calls


def _tuple_items(mod: tvm.IRModule) -> dict[str, tuple[str, ...]]:
    items: dict[str, tuple[str, ...]] = {}
    for _, binding in bindings_of(mod):
        value = binding.value
        if isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Var):
            source = str(value.tuple_value.name)
            items[source] = (*items.get(source, ()), str(binding.var.name))
    return items


def _group_origins(root: str, outside: set[str], fusion: FusionObserver) -> list[str]:
    """Origins of the fused group that ends in ``root``, in program order."""
    if root not in fusion.origins:
        return []
    members: dict[str, None] = {}
    waiting = [root]
    while waiting:
        name = waiting.pop()
        if name in members or name not in fusion.origins:
            continue
        members[name] = None
        waiting.extend(n for n in fusion.operands[name] if n not in outside)
    order = [name for name in fusion.origins if name in members]
    return [origin for name in order for origin in fusion.origins[name]]

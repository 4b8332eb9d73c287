"""Which kernel is called for which original nodes."""

from dataclasses import dataclass

import tvm
from tvm import relax, tirx

from tvm_ext.compiler.graph_facts import relax_bindings
from tvm_ext.relay_passes.origin import origins_of

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")


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
    """Counts kernel calls right before fusion."""

    def __init__(self) -> None:
        self.kernel_calls = 0

    def run_before_pass(self, mod: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        """Called by TVM before each pass."""
        if info.name == "FuseOps":
            self.kernel_calls = len(kernel_calls(mod))


def kernel_calls(mod: tvm.IRModule) -> list[KernelCall]:
    """Every kernel call of ``mod``, in the order of a run, with the nodes that it computes."""
    calls = []
    for binding in relax_bindings(mod):
        value = binding.value
        if not isinstance(value, relax.Call) or not _CALL_TIR.same_as(value.op):
            continue
        kernel = value.args[0]
        if isinstance(mod[kernel], tirx.PrimFunc):
            calls.append(KernelCall(str(kernel.name_hint), origins_of(binding.var)))
    return calls

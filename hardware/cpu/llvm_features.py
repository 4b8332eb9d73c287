"""Instruction-set features as LLVM sees them: those that a CPU's name and attributes stand for."""

import functools

from tvm.target import Target

from tvm_ext.configs.errors import TargetError
from tvm_ext.hardware.cpu.features import FLAGS, architecture_of
from tvm_ext.hardware.tvm_compat import llvm_codegen


@functools.cache
def llvm_features(mtriple: str, mcpu: str, mattr: tuple[str, ...] = ()) -> frozenset[str]:
    """The instruction features LLVM may use for this triple, CPU and list of ``+f`` and ``-f``.

    None for architectures other than x86_64 and aarch64.

    Raises :class:`TargetError` for a triple, CPU or feature that LLVM does not know. LLVM itself
    would only warn, and use a generic CPU, or crash.
    """
    architecture = architecture_of(mtriple)
    if architecture not in {str(name) for name in llvm_codegen.llvm_get_targets()}:
        raise TargetError(
            f"LLVM has no architecture '{architecture}' (triple '{mtriple}'); "
            f"expected one like 'x86_64-linux-gnu' or 'aarch64-linux-gnu'"
        )
    if not llvm_codegen.llvm_is_valid_cpu(mcpu, mtriple):
        raise TargetError(
            f"LLVM has no CPU '{mcpu}' for triple '{mtriple}'; expected a name that "
            f"`llc -mtriple={mtriple} -mcpu=help` lists, such as 'generic'"
        )
    target = Target({"kind": "llvm", "mtriple": mtriple, "mcpu": mcpu, "mattr": list(mattr)})
    present = {str(feature) for feature in llvm_codegen.llvm_get_cpu_features(target)}
    _check_mattr(mattr, present)
    known = {feature for group in FLAGS.get(architecture, {}).values() for feature in group}
    return frozenset(present & known)


def _check_mattr(mattr: tuple[str, ...], present: set[str]) -> None:
    for attribute in mattr:
        if attribute[:1] not in ("+", "-"):
            raise TargetError(f"mattr entry '{attribute}' has no sign; expected '+{attribute}'")
        if attribute.startswith("+") and attribute[1:] not in present:
            raise TargetError(
                f"LLVM has no feature '{attribute[1:]}' for this CPU; "
                f"expected names like '+avx512vnni' or '+dotprod' in mattr"
            )

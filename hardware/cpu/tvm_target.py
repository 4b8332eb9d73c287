"""The CPU that a TVM target of kind llvm stands for."""

import tvm

from tvm_ext.configs.errors import TargetError
from tvm_ext.configs.loader import check_config
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.features import architecture_of, vector_bits
from tvm_ext.hardware.cpu.host import describe_host, host_description
from tvm_ext.hardware.cpu.llvm_features import llvm_features
from tvm_ext.hardware.cpu.system import usable_cores
from tvm_ext.hardware.targets import plain_attributes, presets_of

# Presets whose numbers stand in for a CPU known only by its features, the most demanding first.
_PRESETS = ("avx512-amx", "avx512", "avx2", "x86-64", "aarch64-neon")


def cpu_of_tvm_target(target: tvm.target.Target) -> CpuDescription:
    """Its own numbers, others of this machine or of the nearest preset.

    Raises TargetError for an architecture nothing is known of.
    """
    options = plain_attributes(target)
    mtriple = options.pop("mtriple", host_description().mtriple)
    mcpu = options.pop("mcpu", "generic")
    mattr = tuple(options.pop("mattr", ()))
    base = _closest(mtriple, mcpu, mattr)
    given = {
        "name": mcpu,
        "summary": f"given as a TVM target; numbers of '{base.name}'",
        "mtriple": mtriple,
        "mcpu": mcpu,
        "mattr": mattr,
        "vector_bits": vector_bits(base.architecture, llvm_features(mtriple, mcpu, mattr)),
        "cores": options.pop("num-cores", usable_cores()),
        "target_options": options,
    }
    return check_config(base.model_dump() | given, CpuDescription, "the TVM target")


def _closest(mtriple: str, mcpu: str, mattr: tuple[str, ...]) -> CpuDescription:
    """This machine if it can run such code, else the preset closest below the code's features."""
    architecture = architecture_of(mtriple)
    features = llvm_features(mtriple, mcpu, mattr)
    host = host_description()
    if host.architecture == architecture and features <= set(host.features):
        return describe_host(mtriple, mcpu, mattr)
    presets = {item.name: item for item in presets_of(CpuDescription)}
    for machine in map(presets.__getitem__, _PRESETS):
        if machine.architecture == architecture and features >= set(machine.features):
            return machine
    raise TargetError(
        f"nothing is known about CPU '{mcpu}' of architecture '{architecture}'; "
        f"expected x86_64 or aarch64, or describe the CPU in a .toml file"
    )

"""The description of a TVM target that somebody made: its own numbers, others from a preset."""

import re
from typing import Any

import tvm

from tvm_ext.configs.loader import check_config
from tvm_ext.hardware.description import CpuDescription, Description, GpuDescription
from tvm_ext.hardware.errors import TargetError
from tvm_ext.hardware.features import architecture_of, llvm_features, vector_bits
from tvm_ext.hardware.host import describe_host, host_description
from tvm_ext.hardware.host_probe import usable_cores
from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.presets import gpu_presets, preset, preset_names

# What MeshDescription.device looks like.
_MESH_DEVICE = re.compile(r".*-[0-9a-f]{8}")

# Presets whose numbers stand in for a CPU known only by its features, the most demanding first.
_CPU_PRESETS = ("avx512-amx", "avx512", "avx2", "x86-64", "aarch64-neon")


def describe_tvm_target(target: tvm.target.Target) -> Description:
    """Raises TargetError for a kind that is not supported, or a machine nothing is known of."""
    kind = target.kind.name
    if kind == "llvm":
        device = str(target.attrs.get("device", ""))
        return _mesh(device) if _MESH_DEVICE.fullmatch(device) else _cpu_from_tvm(target)
    if kind == "cuda":
        return _gpu_from_tvm(target)
    raise TargetError(
        f"TVM target kind '{kind}' is not supported; expected 'llvm' or 'cuda', or a target's name"
    )


def _mesh(device: str) -> MeshDescription:
    """The preset that ``MeshDescription.tvm_target`` made a target with this device of."""
    for machine in map(preset, preset_names()):
        if isinstance(machine, MeshDescription) and machine.device == device:
            return machine
    raise TargetError(
        f"device '{device}' of the TVM target is no preset's mesh; expected one of "
        "those: give the mesh's name or .toml file instead"
    )


def _cpu_from_tvm(target: tvm.target.Target) -> CpuDescription:
    options = _plain_attributes(target)
    mtriple = options.pop("mtriple", host_description().mtriple)
    mcpu = options.pop("mcpu", "generic")
    mattr = tuple(options.pop("mattr", ()))
    base = _closest_cpu(mtriple, mcpu, mattr)
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


def _closest_cpu(mtriple: str, mcpu: str, mattr: tuple[str, ...]) -> CpuDescription:
    """This machine if it can run such code, else the preset closest below the code's features."""
    architecture = architecture_of(mtriple)
    features = llvm_features(mtriple, mcpu, mattr)
    host = host_description()
    if host.architecture == architecture and features <= set(host.features):
        return describe_host(mtriple, mcpu, mattr)
    presets = [item for item in map(preset, _CPU_PRESETS) if isinstance(item, CpuDescription)]
    for machine in presets:
        if machine.architecture == architecture and features >= set(machine.features):
            return machine
    raise TargetError(
        f"nothing is known about CPU '{mcpu}' of architecture '{architecture}'; "
        f"expected x86_64 or aarch64, or describe the CPU in a .toml file"
    )


def _gpu_from_tvm(target: tvm.target.Target) -> GpuDescription:
    options = _plain_attributes(target)
    arch = options.pop("arch")
    base = _closest_gpu(arch)
    options.pop("max_num_threads", None)
    fields = {
        "max_threads_per_block": "max_threads_per_block",
        "max_shared_memory_per_block": "shared_memory_bytes",
        "registers_per_block": "registers_per_block",
        "l2_cache_size_bytes": "l2_bytes",
        "thread_warp_size": "warp_size",
    }
    given: dict[str, Any] = {
        field: options.pop(key) for key, field in fields.items() if key in options
    }
    if target.host is not None:
        options["host"] = _plain(target.host.export())
    given |= {
        "name": arch,
        "summary": f"given as a TVM target; numbers of '{base.name}'",
        "arch": arch,
        "target_options": options,
    }
    return check_config(base.model_dump() | given, GpuDescription, "the TVM target")


def _closest_gpu(arch: str) -> GpuDescription:
    """The first preset with the highest compute capability that is not above ``arch``."""
    presets = gpu_presets()
    older = [item for item in presets if _capability(item.arch) <= _capability(arch)]
    return max(older or presets[:1], key=lambda item: _capability(item.arch))


def _capability(arch: str) -> int:
    return int("".join(character for character in arch if character.isdigit()) or 0)


def _plain_attributes(target: tvm.target.Target) -> dict[str, Any]:
    # TVM derives the "feature." attributes from the others at each construction.
    attributes = {str(key): _plain(value) for key, value in target.attrs.items()}
    return {key: value for key, value in attributes.items() if not key.startswith("feature.")}


def _plain(value: Any) -> Any:
    """TVM's strings, arrays and maps as Python's own."""
    if isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "items"):
        return {str(key): _plain(item) for key, item in value.items()}
    if not isinstance(value, str) and hasattr(value, "__iter__"):
        return [_plain(item) for item in value]
    return str(value)

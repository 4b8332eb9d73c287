"""Finds the description of a target by name, by file, or from a TVM target."""

import difflib
import pathlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import tvm

from tvm_ext.configs.errors import TargetError
from tvm_ext.configs.former_names import MACHINE_KINDS as FORMER_KINDS
from tvm_ext.configs.loader import check_config, config_folder, read_toml
from tvm_ext.hardware.backend import all_backends, backend_of
from tvm_ext.hardware.cpu.features import architecture_of, llvm_features, vector_bits
from tvm_ext.hardware.cpu.host import describe_host, host_description, usable_cores
from tvm_ext.hardware.cuda.host import host_gpu
from tvm_ext.hardware.description import CpuDescription, CudaDescription, Description, Processor
from tvm_ext.hardware.wafer.description import WaferDescription

# The machines that are described in files: the presets of ``configs/targets``, and users' own.


Machine = TypeVar("Machine", bound=Description)


def load_description(source: Any) -> Description:
    """Read a description from a TOML file; its key ``kind`` says of what.

    Raises :class:`ConfigError` for a file that cannot be read or is not valid, and
    :class:`TargetError` for a ``kind`` that does not exist.
    """
    data = read_toml(source)
    kind = data.get("kind")
    kind = data["kind"] = FORMER_KINDS.get(str(kind), kind)
    types = {kind: one.machine_type for one in all_backends() for kind in one.kinds}
    if kind not in types:
        raise TargetError(
            f"key 'kind' in {source.name} is {kind!r}; expected one of "
            f"{', '.join(repr(name) for name in types)}"
        )
    return check_config(data, types[kind], source.name)


def preset_names() -> list[str]:
    """Those of all presets, sorted."""
    entries = [pathlib.PurePath(entry.name) for entry in config_folder("targets").iterdir()]
    return sorted(entry.stem for entry in entries if entry.suffix == ".toml")


@cache
def preset(name: str) -> Description:
    """The preset of this name."""
    return load_description(config_folder("targets") / f"{name}.toml")


def presets_of(machine_type: type[Machine]) -> list[Machine]:
    """Those that describe one kind of machine, by name."""
    return [item for item in map(preset, preset_names()) if isinstance(item, machine_type)]


# The description of a TVM target that somebody made: its own numbers, others from a preset.


# What WaferDescription.device looks like.
_WAFER_DEVICE = re.compile(r".*-[0-9a-f]{8}")

# Presets whose numbers stand in for a CPU known only by its features, the most demanding first.
_CPU_PRESETS = ("avx512-amx", "avx512", "avx2", "x86-64", "aarch64-neon")


def describe_tvm_target(target: tvm.target.Target) -> Description:
    """Raises TargetError for a kind that is not supported, or a machine nothing is known of."""
    kind = target.kind.name
    if kind == "llvm":
        device = str(target.attrs.get("device", ""))
        return _mesh(device) if _WAFER_DEVICE.fullmatch(device) else _cpu_from_tvm(target)
    if kind == "cuda":
        return _cuda_from_tvm(target)
    raise TargetError(
        f"TVM target kind '{kind}' is not supported; expected 'llvm' or 'cuda', or a target's name"
    )


def _mesh(device: str) -> WaferDescription:
    """The preset that ``WaferDescription.tvm_target`` made a target with this device of."""
    for machine in presets_of(WaferDescription):
        if machine.device == device:
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
    presets = {item.name: item for item in presets_of(CpuDescription)}
    for machine in map(presets.__getitem__, _CPU_PRESETS):
        if machine.architecture == architecture and features >= set(machine.features):
            return machine
    raise TargetError(
        f"nothing is known about CPU '{mcpu}' of architecture '{architecture}'; "
        f"expected x86_64 or aarch64, or describe the CPU in a .toml file"
    )


def _cuda_from_tvm(target: tvm.target.Target) -> CudaDescription:
    options = _plain_attributes(target)
    arch = options.pop("arch")
    base = _closest_cuda(arch)
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
    return check_config(base.model_dump() | given, CudaDescription, "the TVM target")


def _closest_cuda(arch: str) -> CudaDescription:
    """The first preset with the highest compute capability that is not above ``arch``."""
    presets = presets_of(CudaDescription)
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


# What "cuda" means on a machine without a GPU: every later one has the instructions of this one.
DEFAULT_CUDA = "nvidia-a100"


def default_gpu() -> CudaDescription:
    """This machine's GPU, or that preset."""
    found = {item.name: item for item in presets_of(CudaDescription)}
    return host_gpu(list(found.values())) or found[DEFAULT_CUDA]


@dataclass(frozen=True)
class TargetSummary:
    """One line of the list of targets."""

    name: str
    kind: str
    summary: str


def list_targets() -> list[TargetSummary]:
    """All targets that have a name: "cpu" (this machine), "cuda", then the presets by name."""
    named = [host_description(), *(preset(name) for name in preset_names())]
    summaries = [TargetSummary(item.name, item.kind, item.summary) for item in named]
    gpu = host_gpu(presets_of(CudaDescription))
    summary = f"the same as {DEFAULT_CUDA}" if gpu is None else gpu.summary
    default = TargetSummary("cuda", "cuda", summary)
    others = [
        TargetSummary(one.name, machine.kind, machine.summary)
        for one in all_backends()
        if one.default is not None and one.name not in ("cpu", "cuda")
        for machine in [one.default()]
    ]
    return [summaries[0], default, *others, *summaries[1:]]


def resolve_target(target: "str | pathlib.Path | tvm.target.Target | Description") -> Description:
    """The description of ``target``.

    Parameters
    ----------
    target
        "cpu" for this machine, "cuda" for its GPU (an NVIDIA A100 where it has none), the name of a
        preset, the path of a TOML file (a Path, or a string that ends in ".toml"), a TVM target of
        kind llvm or cuda, or a description, which comes back as it is. The target that
        ``compiling_for`` made is its description, with all numbers; of another one they are
        estimated.

    Raises
    ------
    TargetError
        No such target, or a kind of TVM target that is not supported.
    ConfigError
        A TOML file cannot be read or is not valid.
    """
    if isinstance(target, Description):
        return target
    if isinstance(target, tvm.target.Target):
        current, machine = _compiling_for.get() or (None, None)
        if machine is not None and target.same_as(current):
            return machine
        return describe_tvm_target(target)
    if isinstance(target, pathlib.Path) or str(target).endswith(".toml"):
        return load_description(pathlib.Path(target))
    named = {one.name: one.default for one in all_backends() if one.default is not None}
    if isinstance(target, str) and target in named:
        return named[target]()
    names = preset_names()
    if target in names:
        return preset(target)
    if not isinstance(target, str):
        raise TargetError(
            f"the target is a {type(target).__name__}; expected the name of a target, the path of "
            "a .toml file or a target of TVM: see 'tvm-ext targets list'"
        )
    known = [*named, *names]
    close = difflib.get_close_matches(target, known, n=1)
    hint = f" (nearest known: '{close[0]}')" if close else ""
    raise TargetError(
        f"unknown target '{target}'{hint}; expected one of {', '.join(known)}, "
        f"or the path of a .toml file"
    )


def resolve_processor(
    target: "str | pathlib.Path | tvm.target.Target | Description",
) -> Processor:
    """The same for programs that run kernel by kernel. Raises TargetError for a mesh as well."""
    machine = resolve_target(target)
    refusal = backend_of(machine).no_programs
    if refusal:
        raise TargetError(f"target '{machine.name}' {refusal.format(name=machine.name)}")
    return machine


def with_tf32(machine: Processor) -> CudaDescription:
    """The GPU with products of float32 in tf32. Raises TargetError for a CPU."""
    if not isinstance(machine, CudaDescription):
        raise TargetError(
            f"tf32 was asked for and target '{machine.name}' is no GPU; expected one, whose "
            "tensor cores know tf32: leave it out"
        )
    return machine.with_tf32()


def current_description() -> Description:
    """The description of the target that TVM's ``with`` statement has set, else of this machine."""
    return resolve_target(tvm.target.Target.current(allow_none=True) or "cpu")


def current_cpu() -> CpuDescription | None:
    """The same when it is a CPU, else None: what passes for CPUs ask before they change a graph."""
    return _current(CpuDescription)


def current_processor() -> Processor | None:
    """The same when programs are compiled for it, as for a CPU or a GPU, else None."""
    description = current_description()
    return None if backend_of(description).no_programs else description


def current_gpu() -> CudaDescription | None:
    """The same for GPUs."""
    return _current(CudaDescription)


def _current(machine_type: type[Machine]) -> Machine | None:
    description = current_description()
    return description if isinstance(description, machine_type) else None


@contextmanager
def compiling_for(machine: Description) -> Iterator[tvm.target.Target]:
    """Makes ``machine`` the current TVM target, from which ``resolve_target`` gets it back."""
    target = machine.tvm_target()
    token = _compiling_for.set((target, machine))
    try:
        with target:
            yield target
    finally:
        _compiling_for.reset(token)


_compiling_for: ContextVar[tuple[tvm.target.Target, Description] | None] = ContextVar(
    "compiling_for", default=None
)

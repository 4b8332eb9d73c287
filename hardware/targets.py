"""Finds the description of a target by name, by file, or from a TVM target."""

import difflib
import pathlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import tvm

from tvm_ext.hardware.description import CpuDescription, Description, GpuDescription, Processor
from tvm_ext.hardware.errors import TargetError
from tvm_ext.hardware.host import host_description
from tvm_ext.hardware.host_gpu import host_gpu
from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.presets import gpu_presets, load_description, preset, preset_names
from tvm_ext.hardware.tvm_targets import describe_tvm_target

# What "cuda" means on a machine without a GPU: every later one has the instructions of this one.
DEFAULT_GPU = "nvidia-a100"


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
    gpu = host_gpu(gpu_presets())
    summary = f"the same as {DEFAULT_GPU}" if gpu is None else gpu.summary
    default = TargetSummary("cuda", "cuda", summary)
    return [summaries[0], default, *summaries[1:]]


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
    if target == "cpu":
        return host_description()
    if target == "cuda":
        return host_gpu(gpu_presets()) or preset(DEFAULT_GPU)
    names = preset_names()
    if target in names:
        return preset(target)
    if not isinstance(target, str):
        raise TargetError(
            f"the target is a {type(target).__name__}; expected the name of a target, the path of "
            "a .toml file or a target of TVM: see 'tvm-ext targets list'"
        )
    known = ["cpu", "cuda", *names]
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
    if isinstance(machine, MeshDescription):
        raise TargetError(
            f"target '{machine.name}' is a mesh, whose programs are laid out over its PEs and not "
            "compiled kernel by kernel; expected a CPU or a GPU, such as 'cpu', or "
            f"'tvm-ext wafer explain MODEL --target {machine.name}'"
        )
    return machine


def with_tf32(machine: Processor) -> GpuDescription:
    """The GPU with products of float32 in tf32. Raises TargetError for a CPU."""
    if not isinstance(machine, GpuDescription):
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
    description = current_description()
    return description if isinstance(description, CpuDescription) else None


def current_processor() -> Processor | None:
    """The same when it runs a program kernel by kernel, a CPU or a GPU, else None."""
    description = current_description()
    return description if isinstance(description, CpuDescription | GpuDescription) else None


def current_gpu() -> GpuDescription | None:
    """The same for GPUs."""
    description = current_description()
    return description if isinstance(description, GpuDescription) else None


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

"""Finds the description of a target by name, by file, or from a TVM target."""

import difflib
import pathlib
from collections.abc import Callable, Iterator, Mapping
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
from tvm_ext.hardware.machine import MachineDescription

# The machines that are described in files: the presets of ``configs/targets``, and users' own.


DescriptionType = TypeVar("DescriptionType", bound=MachineDescription)


def load_description(source: Any) -> MachineDescription:
    """Read a description from a TOML file.

    Raises :class:`ConfigError` for a file that cannot be read, and as :func:`description_of`.
    """
    return description_of(read_toml(source), source.name)


def description_of(data: Mapping[str, Any], file_name: str) -> MachineDescription:
    """The description that ``data``, read from ``file_name``, holds; its key ``kind`` says of what.

    Raises :class:`ConfigError` for data that is not valid, and :class:`TargetError` for a ``kind``
    that does not exist.
    """
    kind = data.get("kind")
    kind = FORMER_KINDS.get(str(kind), kind)
    types = {kind: one.machine_type for one in all_backends() for kind in one.kinds}
    if kind not in types:
        raise TargetError(
            f"key 'kind' in {file_name} is {kind!r}; expected one of "
            f"{', '.join(repr(name) for name in types)}"
        )
    return check_config({**data, "kind": kind}, types[kind], file_name)


def preset_names() -> list[str]:
    """Those of all presets, sorted."""
    entries = [pathlib.PurePath(entry.name) for entry in config_folder("targets").iterdir()]
    return sorted(entry.stem for entry in entries if entry.suffix == ".toml")


@cache
def preset(name: str) -> MachineDescription:
    """The preset of this name."""
    return load_description(config_folder("targets") / f"{name}.toml")


def presets_of(machine_type: type[DescriptionType]) -> list[DescriptionType]:
    """Those that describe one kind of machine, by name."""
    return [item for item in map(preset, preset_names()) if isinstance(item, machine_type)]


# The description of a TVM target that somebody made: its own numbers, others from a preset.


def describe_tvm_target(target: tvm.target.Target) -> MachineDescription:
    """What the backends say that it is, those first which were registered last.

    Raises TargetError for a kind that no backend has, or a machine nothing is known of.
    """
    kind = target.kind.name
    for backend in reversed(all_backends()):
        describe = backend.tvm_targets.get(kind)
        machine = describe(target) if describe is not None else None
        if machine is not None:
            return machine
    kinds = dict.fromkeys(repr(kind) for backend in all_backends() for kind in backend.tvm_targets)
    raise TargetError(
        f"TVM target kind '{kind}' is not supported; expected {' or '.join(kinds)}, or a target's "
        "name"
    )


def plain_attributes(target: tvm.target.Target) -> dict[str, Any]:
    """The attributes of a target as Python's own values, without those that TVM derives."""
    # TVM derives the "feature." attributes from the others at each construction.
    attributes = {str(key): plain_value(value) for key, value in target.attrs.items()}
    return {key: value for key, value in attributes.items() if not key.startswith("feature.")}


def plain_value(value: Any) -> Any:
    """TVM's strings, arrays and maps as Python's own."""
    if isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "items"):
        return {str(key): plain_value(item) for key, item in value.items()}
    if not isinstance(value, str) and hasattr(value, "__iter__"):
        return [plain_value(item) for item in value]
    return str(value)


@dataclass(frozen=True)
class TargetSummary:
    """One line of the list of targets."""

    name: str
    kind: str
    summary: str


def list_targets() -> list[TargetSummary]:
    """All targets that have a name: those of backends ("cpu" is this machine), then the presets."""
    presets = {name: preset(name) for name in preset_names()}
    summaries = []
    for name, default in _defaults().items():
        machine = default()
        same = presets.get(machine.name) is machine
        summary = f"the same as {machine.name}" if same else machine.summary
        summaries.append(TargetSummary(name, machine.kind, summary))
    others = [TargetSummary(name, item.kind, item.summary) for name, item in presets.items()]
    return [*summaries, *others]


def _defaults() -> dict[str, Callable[[], MachineDescription]]:
    """The machines that names of backends stand for."""
    return {one.name: one.default for one in all_backends() if one.default is not None}


def resolve_target(
    target: "str | pathlib.Path | tvm.target.Target | MachineDescription",
) -> MachineDescription:
    """The description of ``target``.

    Parameters
    ----------
    target
        "cpu" for this machine, "cuda" for its GPU (an NVIDIA A100 where it has none), the name of a
        preset, the path of a TOML file (a Path, or a string that ends in ".toml"), a TVM target of
        a kind that a backend knows, or a description, which comes back as it is. The target that
        ``compiling_for`` made is its description, with all numbers; of another one they are
        estimated.

    Raises
    ------
    TargetError
        No such target, or a kind of TVM target that is not supported.
    ConfigError
        A TOML file cannot be read or is not valid.
    """
    if isinstance(target, MachineDescription):
        return target
    if isinstance(target, tvm.target.Target):
        current, machine = _compiling_for.get() or (None, None)
        if machine is not None and target.same_as(current):
            return machine
        return describe_tvm_target(target)
    if isinstance(target, pathlib.Path) or str(target).endswith(".toml"):
        return load_description(pathlib.Path(target))
    named = _defaults()
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


def program_target(
    target: "str | pathlib.Path | tvm.target.Target | MachineDescription",
) -> MachineDescription:
    """The same for programs that run kernel by kernel. Raises TargetError for a mesh as well."""
    machine = resolve_target(target)
    refusal = backend_of(machine).no_programs
    if refusal:
        raise TargetError(f"target '{machine.name}' {refusal.format(name=machine.name)}")
    return machine


def current_description() -> MachineDescription:
    """The description of the target that TVM's ``with`` statement has set, else of this machine."""
    return resolve_target(tvm.target.Target.current(allow_none=True) or "cpu")


def current_program_target() -> MachineDescription | None:
    """The same when programs are compiled for it, as for a CPU or a GPU, else None."""
    description = current_description()
    return None if backend_of(description).no_programs else description


def current_machine(machine_type: type[DescriptionType]) -> DescriptionType | None:
    """The same when it is of this type, else None: what is for one kind of machine asks first."""
    description = current_description()
    return description if isinstance(description, machine_type) else None


@contextmanager
def compiling_for(machine: MachineDescription) -> Iterator[tvm.target.Target]:
    """Makes ``machine`` the current TVM target, from which ``resolve_target`` gets it back."""
    target = machine.tvm_target()
    token = _compiling_for.set((target, machine))
    try:
        with target:
            yield target
    finally:
        _compiling_for.reset(token)


_compiling_for: ContextVar[tuple[tvm.target.Target, MachineDescription] | None] = ContextVar(
    "compiling_for", default=None
)

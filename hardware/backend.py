"""What a backend is, and the registry from which every layer asks the backend of a machine.

A backend is composed of one part for each layer (``Scheduling``, ``Tuning``, ``Programs``), which
that layer defines: a layer asks for its own part and knows nothing of the others'. Ours are
composed in ``tvm_ext/backends``.
"""

import functools
import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeVar, get_args

import tvm

from tvm_ext.configs.errors import TargetError, nearest_hint
from tvm_ext.hardware.machine import MachineDescription

Part = TypeVar("Part")

# Composes our backends, registers them and those of plug-ins. It is above this layer, and named
# here so that a layer that is used alone finds them too.
_COMPOSED_IN = "tvm_ext.backends"


@dataclass(eq=False)
class Backend:
    """All about one kind of machine.

    Attributes
    ----------
    name : str
        The word for the machine in every layer: "cpu".
    machine_type : type[MachineDescription]
        Describes a machine of this kind. One that is derived from another backend's description
        goes by what is written for that one, where this backend has nothing else.
    parts : sequence
        For each layer what it asks for; see the module's text.
    default : callable, optional
        The machine that the backend's name stands for as a target.
    tvm_targets : mapping of str to callable
        By kind of TVM's targets ("llvm"): the machine that such a target stands for, None if it
        stands for one of another backend. Those that were registered last are asked first.
    facts : callable
        What ``tvm-ext targets show`` says of this installation besides the description.
    commands : str
        "module:name" of a Typer application with commands of the backend's own, which come under
        its name: ``tvm-ext NAME``.
    no_programs : str
        Where no program is compiled for a machine of this kind: why, and what to do instead, behind
        the target's name; "{name}" stands for it.
    source : str
        "built-in", or who registered it.
    """

    name: str
    machine_type: type[MachineDescription]
    parts: Sequence[object] = field(repr=False)
    default: Callable[[], MachineDescription] | None = None
    tvm_targets: Mapping[str, Callable[[tvm.target.Target], MachineDescription | None]] = field(
        default_factory=dict
    )
    facts: Callable[[], dict[str, str]] = dict
    commands: str = ""
    no_programs: str = ""
    source: str = "user"

    def part(self, kind: type[Part]) -> Part:
        """What this backend is for one layer. Raises TargetError if it has no such part."""
        for part in self.parts:
            if isinstance(part, kind):
                return part
        raise TargetError(
            f"backend '{self.name}' has no part {kind.__name__}, which this needs; expected one "
            "among its parts: use another target"
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """What the key ``kind`` in a file says of a machine of this backend."""
        return get_args(self.machine_type.model_fields["kind"].annotation) or (self.name,)


_backends: dict[str, Backend] = {}
_lock = threading.RLock()


def register_backend(backend: Backend) -> Backend:
    """Adds a backend. From then on, files that describe its machines can be used as targets.

    Parameters
    ----------
    backend : Backend
        What is added.

    Returns
    -------
    Backend
        The backend that was given.

    Raises
    ------
    TargetError
        There is already a backend of this name, or one for this type of description.
    """
    with _lock:
        for other in _backends.values():
            if backend.name == other.name or backend.machine_type is other.machine_type:
                raise TargetError(
                    f"backend '{backend.name}' has the name or the description type of backend "
                    f"'{other.name}' ({other.source}); expected a name and a type of its own: "
                    "rename it, or derive a type"
                )
        _backends[backend.name] = backend
        _of_type.cache_clear()
    return backend


def remove_backend(name: str) -> None:
    """Takes a backend out. Raises TargetError when there is none of that name."""
    with _lock:
        get_backend(name)
        del _backends[name]
        _of_type.cache_clear()


def all_backends() -> list[Backend]:
    """Every backend, ours first."""
    load_backends()
    return list(_backends.values())


def get_backend(name: str) -> Backend:
    """The backend of this name. Raises TargetError, which names the nearest, if there is none."""
    load_backends()
    if name not in _backends:
        raise TargetError(f"there is no backend '{name}'; {nearest_hint(name, _backends)}")
    return _backends[name]


def backend_of(machine: MachineDescription) -> Backend:
    """The backend of a machine's type, or of the nearest type that this is derived from."""
    load_backends()
    return _of_type(type(machine))


@functools.cache
def _of_type(machine_type: type) -> Backend:
    by_type: dict[type, Backend] = {one.machine_type: one for one in _backends.values()}
    for base in machine_type.__mro__:
        if base in by_type:
            return by_type[base]
    raise TargetError(
        f"no backend is for a {machine_type.__name__}; expected one of {', '.join(_backends)}: "
        "register its own with tvm_ext.register_backend"
    )


_loading: Literal["not yet", "now", "done"] = "not yet"


def load_backends() -> None:
    """Registers our backends and those of plug-ins, once in a process.

    A plug-in that asks for a backend while it is loaded gets those that there are by then; other
    threads wait.
    """
    global _loading
    if _loading == "done":
        return
    with _lock:
        if _loading == "not yet":
            _loading = "now"
            try:
                importlib.import_module(_COMPOSED_IN)
            finally:
                _loading = "done"

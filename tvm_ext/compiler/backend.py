"""What a backend is for this layer: how programs for its machines are built, limited and saved."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm_ext.artifact.manifest import TargetRecord
from tvm_ext.hardware.backend import backend_of
from tvm_ext.hardware.machine import MachineDescription


@dataclass(eq=False)
class Programs:
    """How a backend's programs are built and run. One without this part compiles no programs.

    Attributes
    ----------
    build : callable
        The ``Program`` of a planned module; see ``tvm_ext.compiler.build.build_program``.
    built_for : callable
        Fields of a saved model's ``TargetRecord`` that say what code it holds.
    device : str
        TVM's name of the device that runs the program: "cpu" or "cuda".
    threads : callable
        Threads that a run uses.
    memory_limit : callable
        GiB that the buffers of a program may take on this machine; None for the usual limit.
    records_name : callable
        Folder of the records that ship for this very machine; empty where none do.
    keeps_workspaces : bool
        Whether arrays that kernels keep between launches are planned with all other storage.
    """

    build: Callable[..., Any]
    built_for: Callable[[Any], dict[str, Any]]
    device: str = "cpu"
    threads: Callable[[Any], int] = lambda _machine: 1
    memory_limit: Callable[[], float | None] = lambda: None
    records_name: Callable[[Any], str] = lambda _machine: ""
    keeps_workspaces: bool = False


def programs_of(machine: MachineDescription) -> Programs:
    """How programs for a machine are built. Raises TargetError where none are."""
    return backend_of(machine).part(Programs)


def target_record(machine: MachineDescription) -> TargetRecord:
    """What a saved model says of the machine that it was compiled for."""
    programs = programs_of(machine)
    return TargetRecord(name=machine.name, kind=programs.device, **programs.built_for(machine))

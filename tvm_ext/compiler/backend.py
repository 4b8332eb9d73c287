"""What a backend is for this layer: how programs for its machines are built, limited and saved."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm_ext.artifact.manifest import TargetRecord
from tvm_ext.errors import BuildError
from tvm_ext.hardware.backend import backend_of
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.report.records import MemoryRecord

# A few integers of a damaged model can ask for any amount of memory: systems that promise more than
# they have would end the process, and not the model.
MEMORY_LIMIT = "TVM_EXT_MEMORY_LIMIT"
DEFAULT_GIBIBYTES = 3.0


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


def default_limit(machine: MachineDescription) -> float:
    """GiB for a program's buffers: what the machine's backend says, or ``DEFAULT_GIBIBYTES``."""
    return programs_of(machine).memory_limit() or DEFAULT_GIBIBYTES


def require_memory(
    record: MemoryRecord,
    label: str,
    limit_gibibytes: float = DEFAULT_GIBIBYTES,
    largest: Callable[[], str] = str,
) -> None:
    """Checks the planned peak of a program's buffers, weights not counted.

    ``largest`` says of what the largest of them is.

    Raises
    ------
    BuildError
        It is above ``MEMORY_LIMIT`` GiB, or ``limit_gibibytes`` where that is not set; or the
        variable holds no number.
    """
    limit = _limit(limit_gibibytes)
    needed = (record.planned_peak_bytes or 0) / 2**30
    if needed > limit:
        where = largest()
        raise BuildError(
            f"{label} needs {needed:.1f} GiB for the values that it computes"
            f"{f', the largest of them that of {where}' if where else ''}; expected at most "
            f"{limit:g} GiB: give smaller input shapes, or set {MEMORY_LIMIT} to the number of "
            f"GiB that it may use"
        )


def _limit(default: float) -> float:
    text = os.environ.get(MEMORY_LIMIT, "").strip()
    if not text:
        return default
    try:
        return float(text)
    except ValueError as error:
        raise BuildError(no_gibibytes(MEMORY_LIMIT, text)) from error


def no_gibibytes(variable: str, text: str) -> str:
    """The message for an environment variable that should hold a number of GiB."""
    return f"{variable} is '{text}'; expected a number of GiB: set it to one, or leave it out"

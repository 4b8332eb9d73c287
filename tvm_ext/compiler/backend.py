"""What a backend is for this layer: how programs for its machines are built, limited and saved."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm_ext.artifact.manifest import TargetRecord
from tvm_ext.configs.byte_sizes import parse_bytes
from tvm_ext.errors import BuildError, ConfigError, MemoryLimitError
from tvm_ext.hardware.backend import backend_of
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.report.records import MemoryLimitRecord, MemoryRecord
from tvm_ext.report.units import format_bytes

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


def threads_of(machine: MachineDescription) -> int:
    """How many threads run what is compiled for a machine."""
    return int(programs_of(machine).threads(machine))


def default_limit(machine: MachineDescription) -> float:
    """GiB for a program's buffers: what the machine's backend says, or ``DEFAULT_GIBIBYTES``."""
    return programs_of(machine).memory_limit() or DEFAULT_GIBIBYTES


def limit_bytes(machine: MachineDescription, given: int | None = None) -> int:
    """Bytes that the values and the arrays of kernels may take, weights not counted.

    They are those that were ``given`` for the model, else what ``MEMORY_LIMIT`` says, else what is
    usual for the machine. Raises BuildError where the variable says no size.
    """
    if given is not None:
        return given
    text = os.environ.get(MEMORY_LIMIT, "").strip()
    if not text:
        return int(default_limit(machine) * 2**30)
    try:
        return int(float(text) * 2**30)
    except (ValueError, OverflowError):
        pass
    try:
        return parse_bytes(text, MEMORY_LIMIT)
    except ConfigError as error:
        raise BuildError(no_gibibytes(MEMORY_LIMIT, text)) from error


def require_memory(
    record: MemoryRecord,
    label: str,
    limit: int,
    largest: Callable[[], str] = str,
) -> None:
    """Checks the planned peak of a program against ``limit`` bytes, weights not counted.

    ``largest`` says of what the largest of them is.

    Raises
    ------
    BuildError
        It is above the limit; or the limit was given for this model, and a run decides what its
        values take.
    """
    tried = record.limit
    if tried is not None and tried.is_asked and record.dynamic:
        raise BuildError(
            f"{label}: a memory limit of {format_bytes(limit)} was given, and each run decides how "
            "much memory the values take; expected sizes, or ranges of them: give input_shapes "
            "with numbers, or with ranges as 'N:1:8'"
        )
    needed = record.planned_peak_bytes or 0
    if needed <= limit:
        return
    where = largest()
    raise MemoryLimitError(
        f"{label} needs {_exactly(needed)} for the values that it computes{_arrays(record)}"
        f"{_least(tried, needed)}"
        f"{f', the largest of them that of {where}' if where else ''}; expected at most "
        f"{_exactly(limit)}: give smaller input shapes, or a larger memory limit (memory_limit, "
        f"or {MEMORY_LIMIT} in GiB)",
        limit,
        needed,
        needed if tried is None else min(tried.bound_bytes, needed),
    )


def _arrays(record: MemoryRecord) -> str:
    """What of it kernels allocate for themselves."""
    own = record.workspace_bytes
    return f" and for arrays of its kernels, which take {format_bytes(own)} of it" if own else ""


def _exactly(nbytes: int) -> str:
    """Bytes in a unit that is easy to read, and as the number that a limit can be set to."""
    text = format_bytes(nbytes)
    return text if nbytes < 2**10 else f"{text} ({nbytes} bytes)"


def _least(tried: MemoryLimitRecord | None, needed: int) -> str:
    """What is known of programs that need less."""
    if tried is None:
        return ""
    if needed <= tried.bound_bytes:
        return ", the least that is possible with its kernels"
    return (
        f", the least that was found where no program of its kernels needs less than "
        f"{format_bytes(tried.bound_bytes)}"
    )


def no_gibibytes(variable: str, text: str) -> str:
    """The message for an environment variable that should hold a number of GiB."""
    return f"{variable} is '{text}'; expected a number of GiB: set it to one, or leave it out"

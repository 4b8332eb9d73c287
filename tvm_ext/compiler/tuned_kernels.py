"""Tuned records that a compilation uses: the user's, and those that ship with the package."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import tvm

from tvm_ext.compiler.backend import programs_of
from tvm_ext.compiler.kernel_records import calls_at
from tvm_ext.configs.errors import RecordsError
from tvm_ext.configs.loader import config_folder
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.report.records import KernelCall
from tvm_ext.tir_schedules.schedule_kernels import ScheduleChoice
from tvm_ext.tuning.logs.record_lookup import RecordLookup

RecordsSource: TypeAlias = "str | Path | Sequence[str | Path]"

# Of the kernels that lack a record, as many as one line holds.
_NAMED = 3

# Where schedules come from that no record could replace.
_UNTUNABLE = ("user", "as written")


def find_records(
    records: RecordsSource, machine: MachineDescription, calls: Sequence[KernelCall]
) -> RecordLookup:
    """The records for ``machine``: the user's folders first, then what ships for this very CPU.

    Raises
    ------
    RecordsError
        One of the user's folders is missing or holds no records.
    """
    origins: dict[str, list[str]] = {}
    for call in calls:
        origins.setdefault(call.kernel, []).append(call.where)
    return RecordLookup(record_folders(records), machine, origins, shipped_folders(machine))


def record_folders(records: RecordsSource) -> list[Path]:
    """The user's folders as a list."""
    return [Path(records)] if isinstance(records, str | Path) else [Path(one) for one in records]


def shipped_folders(machine: MachineDescription) -> list[Path]:
    """The folder of shipped records whose CPU and number of cores are the machine's."""
    name = programs_of(machine).records_name(machine)
    if not name:
        return []
    folder = config_folder("records") / name
    path = Path(str(folder))
    return [path] if path.is_dir() else []


def shipped_name(machine: CpuDescription) -> str:
    """The shipped folder's name for a CPU, such as "znver5-2"."""
    return f"{machine.mcpu}-{machine.cores}"


def require_hits(
    choices: Mapping[str, ScheduleChoice],
    kernels: tvm.IRModule,
    calls: Sequence[KernelCall],
    sizes: Mapping[str, int],
) -> None:
    """Raises RecordsError, which names kernels and reasons, unless all had a record.

    All that can be tuned: others (sizes that data decide, loops written by hand) have none.
    ``sizes`` are some that the model's dimensions may have.
    """
    arguments = dict(calls_at(kernels, sizes))
    where = {call.kernel: call.where for call in calls}
    missed = {
        name: choice.miss
        for name, choice in choices.items()
        if choice.miss and choice.source not in _UNTUNABLE and arguments.get(name) is not None
    }
    if not missed:
        return
    named = [
        f"{name} ({where.get(name, 'not called')}): {reason}"
        for name, reason in list(missed.items())[:_NAMED]
    ]
    more = f" and {len(missed) - _NAMED} more" if len(missed) > _NAMED else ""
    raise RecordsError(
        f"{len(missed)} of {len(choices)} kernels have no record: {'; '.join(named)}{more}; "
        "expected one for each: run 'tvm-ext tune' on this model, or compile without "
        "--require-records"
    )

"""Finds the recorded schedule of a kernel for a target, and says why there is none."""

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path

from tvm import tirx

from tvm_ext.configs.errors import NotApplicable, RecordsError
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tir_schedules.recorded_schedule import (
    RecordedSchedule,
    kernel_hash,
    recorded_schedule,
    workload,
)
from tvm_ext.tuning.logs.best_records import Group, grouped_records, is_timed, records_of_trials
from tvm_ext.tuning.logs.database_files import (
    RECORDS,
    DatabaseFiles,
    RecordCheck,
    StoredRecord,
    StoredWorkload,
    read_database,
    target_key,
    target_text,
    trace_of,
)
from tvm_ext.tuning.logs.lines import Problem
from tvm_ext.tuning.logs.trial_log import TRIALS, read_trials

Groups = dict[Group, list[StoredRecord]]


class RecordLookup:
    """The records of some folders for one machine.

    Parameters
    ----------
    folders : Sequence[Path]
        The first one that knows a kernel is used.
    machine : MachineDescription
        Only records for its target are used.
    origins : mapping of str to Sequence of str
        By kernel name, the model's nodes that it computes: with them a miss can be explained.
    shipped : Sequence[Path]
        Folders of other people's models, asked last.

    Attributes
    ----------
    problems : list[Problem]
        Lines of the records that cannot be read.

    Raises
    ------
    RecordsError
        A folder does not exist or holds no records.
    """

    def __init__(
        self,
        folders: Sequence[Path],
        machine: MachineDescription,
        origins: Mapping[str, Sequence[str]] | None = None,
        shipped: Sequence[Path] = (),
    ) -> None:
        self._key = target_key(dict(machine.tvm_target().export()))
        self._origins = dict(origins or {})
        self._folders = list(folders)
        self._records: list[Groups] = []
        self.problems: list[Problem] = []
        read = [_read(folder) for folder in folders]
        read += [_read_once(folder, _changed(folder)) for folder in shipped]
        for groups, problems in read:
            self._records.append(groups)
            self.problems += problems

    def find(self, name: str, func: tirx.PrimFunc) -> RecordedSchedule | NotApplicable:
        """See ``RecordSource.find``."""
        mod = workload(func)
        wanted = kernel_hash(mod)
        check = RecordCheck(DatabaseFiles({wanted: StoredWorkload("", mod, wanted)}))
        others: set[str] = set()
        unusable = ""
        for groups in self._records:
            for record in groups.get((wanted, self._key), []):
                reason = check.refusal(record) if is_timed(record) else "it has no time"
                if not reason:
                    return recorded_schedule(mod, trace_of(record, mod), record.seconds)
                unusable = unusable or reason
            others.update(
                target_text(records[0].target)
                for (kernel, _), records in groups.items()
                if kernel == wanted
            )
        if unusable:
            return NotApplicable(f"no record of it can be used: {unusable}")
        if others:
            return NotApplicable(f"its records are for another target: {'; '.join(sorted(others))}")
        return NotApplicable(self._unknown(name, wanted))

    @cached_property
    def _tuned(self) -> dict[str, set[str]]:
        """By node, the kernels that it was tuned in; read to explain the first miss."""
        found: dict[str, set[str]] = {}
        for folder in self._folders:
            for trial in read_trials(folder).trials:
                for origin in trial.origins:
                    found.setdefault(origin, set()).add(trial.kernel)
        return found

    def _unknown(self, name: str, wanted: str) -> str:
        for origin in self._origins.get(name, ()):
            earlier = self._tuned.get(origin, set()) - {wanted}
            if earlier:
                return (
                    f"{origin} was tuned as part of another kernel: the graph, a shape, or what "
                    "was fused has changed since"
                )
        return "it was never tuned"


def _read(folder: Path) -> tuple[Groups, list[Problem]]:
    """MetaSchedule's records, or what the log speaks for where there is nothing else."""
    _check_folder(folder)
    if (folder / RECORDS).is_file():
        files = read_database(folder)
        return grouped_records(files.records), files.problems
    log = read_trials(folder)
    return grouped_records(records_of_trials(log.trials)), log.problems


@lru_cache(maxsize=8)
def _read_once(folder: Path, changed: tuple[int, ...]) -> tuple[Groups, list[Problem]]:
    """The same for a folder that each compilation asks for."""
    return _read(folder)


def _changed(folder: Path) -> tuple[int, ...]:
    """When its files were written, in nanoseconds, and their sizes in bytes."""
    paths = [path for path in (folder / RECORDS, folder / TRIALS) if path.is_file()]
    return tuple(n for path in paths for n in (path.stat().st_mtime_ns, path.stat().st_size))


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise RecordsError(
            f"there is no folder of records at {str(folder)!r}; expected one that 'tvm-ext tune' "
            "wrote: check the path"
        )
    if not (folder / RECORDS).is_file() and not (folder / TRIALS).is_file():
        raise RecordsError(
            f"{str(folder)!r} holds no records; expected {RECORDS} in it: check the path, or tune "
            "first"
        )

"""A folder of records while a session writes to it."""

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import tvm

from tvm_ext.tuning.database_files import (
    DatabaseFiles,
    StoredRecord,
    StoredWorkload,
    append_record,
    append_workload,
    read_database,
    stored_record,
    stored_workload,
    write_database,
)
from tvm_ext.tuning.folder_lock import locked
from tvm_ext.tuning.lines import Problem
from tvm_ext.tuning.logs.repair import repair_folder
from tvm_ext.tuning.record_check import RecordCheck
from tvm_ext.tuning.record_choice import Standing, kept, standings, timed
from tvm_ext.tuning.target_key import target_key
from tvm_ext.tuning.task import KernelTask
from tvm_ext.tuning.trial import Trial
from tvm_ext.tuning.trial_log import append_trial, read_trials

_SCRATCH = ".scratch"


class RecordFolder:
    """The log and MetaSchedule's two files, kept in step.

    The log is written first and is what counts: whatever the database lacks because a session was
    killed in between is added when the folder is opened the next time.

    Parameters
    ----------
    folder : Path
        Made if it does not exist.
    target : tvm.target.Target
        What the session tunes for; trials for other targets stay as they are.
    tasks : Sequence[KernelTask]
        The session's kernels.

    Attributes
    ----------
    problems : list[Problem]
        Lines that could not be read; they are in side files now.
    trials : dict[str, list[Trial]]
        By kernel, the trials for ``target``. What a session takes out of them, because the same
        decisions lead to other loops by now, has no record any more.
    scratch : Path
        A folder for files that are of no use after the session; empty.

    Raises
    ------
    RecordsError
        Another session writes to the folder, or it is no folder.
    OutputPathError
        It cannot be written to.
    """

    def __init__(
        self, folder: Path, target: tvm.target.Target, tasks: Sequence[KernelTask]
    ) -> None:
        self.folder = folder
        self._target = target
        self._tasks = {task.hash: task for task in tasks}
        self._lock: IO[str] | None = locked(folder)
        self.problems: list[Problem] = repair_folder(folder)
        key = target_key(dict(target.export()))
        self.scratch = folder / _SCRATCH
        shutil.rmtree(self.scratch, ignore_errors=True)
        self.scratch.mkdir()
        self.trials: dict[str, list[Trial]] = {}
        self._all: dict[str, list[Trial]] = {}
        self._stored: dict[str, StoredWorkload] = {}
        for trial in read_trials(folder).trials:
            if target_key(trial.target) == key:
                self.trials.setdefault(trial.kernel, []).append(trial)
                self._all.setdefault(trial.kernel, []).append(trial)
        self._lines = {
            stored.hash: line
            for line, stored in enumerate(read_database(folder).workloads.values())
        }
        self.settle()

    def __enter__(self) -> "RecordFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets other sessions in."""
        shutil.rmtree(self.scratch, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def add(self, trial: Trial, trace: Any = None) -> None:
        """Writes a trial that has ended, and its record if its time counts (``timed``).

        Returns when both are on the disk.
        """
        append_trial(self.folder, trial)
        own = self.trials.setdefault(trial.kernel, [])
        modelled = timed(own)[:1] if trial.is_measured else []
        own.append(trial)
        self._all.setdefault(trial.kernel, []).append(trial)
        if modelled and modelled[0].is_modelled:
            # The first that was measured: records of a model go.
            self.settle([trial.kernel])
        elif trial in timed(own) and trial.purpose == "search" and trace is not None:
            workload = self._workload(trial.kernel)
            record = stored_record(workload, trace, [trial.seconds or 0.0], self._target)
            if workload.hash not in self._lines:
                append_workload(self.folder, workload)
                self._lines[workload.hash] = len(self._lines)
            append_record(self.folder, self._lines[workload.hash], record)

    def settle(self, kernels: Iterable[str] | None = None) -> None:
        """Makes the database say what the trials speak for; see ``record_choice``.

        Only kernels of this session that have trials are touched; None for all of them.
        """
        touched = set(self._tasks if kernels is None else kernels) & set(self._all)
        files = read_database(self.folder)
        key = target_key(dict(self._target.export()))
        own = {name: [trial.trace for trial in self._all[name]] for name in touched}
        records = [
            record
            for record in files.records
            if record.workload not in touched
            or target_key(record.target) != key
            # What others put there is theirs.
            or record.trace not in own[record.workload]
        ]
        workloads = list(files.workloads.values())
        for name in sorted(touched):
            workload = files.workloads.get(name) or self._workload(name)
            workloads.append(workload)
            check = RecordCheck(DatabaseFiles({name: workload}))
            made = [
                self._record(workload, one) for one in kept(standings(self.trials.get(name, ())))
            ]
            # One that TVM cannot read would close the whole database to it.
            records += [record for record in made if not check.refusal(record)]
        if _content(files) == _content(DatabaseFiles({w.hash: w for w in workloads}, records)):
            return
        write_database(self.folder, workloads, records)
        self._lines = _numbered({w.hash: w for w in workloads})

    def _workload(self, kernel: str) -> StoredWorkload:
        """A kernel of the session as it is stored: a hundred kilobytes, made once."""
        if kernel not in self._stored:
            self._stored[kernel] = stored_workload(self._tasks[kernel].workload)
        return self._stored[kernel]

    def _record(self, workload: StoredWorkload, standing: Standing) -> StoredRecord:
        args = stored_record(workload, _empty_trace(workload), [1.0], self._target).body[3]
        target = dict(standing.trial.target)
        body = [standing.trial.trace, [standing.seconds], target, args]
        return StoredRecord(workload.hash, standing.trial.trace, standing.seconds, target, body)


def _numbered(workloads: Iterable[str]) -> dict[str, int]:
    """The line of each workload, from 0."""
    return {name: line for line, name in enumerate(workloads)}


def _content(files: DatabaseFiles) -> list[Any]:
    return [list(files.workloads), [[record.workload, record.body] for record in files.records]]


def _empty_trace(workload: StoredWorkload) -> Any:
    return tvm.s_tir.Schedule(workload.mod).trace

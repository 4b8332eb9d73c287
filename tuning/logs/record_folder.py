"""A folder of records: read, repaired, and written to by a session."""

import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import tvm

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.configs.errors import RecordsError
from tvm_ext.tuning.candidate import KernelTask
from tvm_ext.tuning.logs.best_records import CandidateResult, candidate_results, kept, timed
from tvm_ext.tuning.logs.database_files import (
    RECORDS,
    WORKLOADS,
    DatabaseFiles,
    RecordCheck,
    StoredRecord,
    StoredWorkload,
    append_record,
    append_workload,
    drop_refused,
    read_database,
    stored_record,
    stored_workload,
    target_key,
    write_database,
)
from tvm_ext.tuning.logs.lines import Problem, append_line, locked, read_lines
from tvm_ext.tuning.logs.trial_log import (
    TRIALS,
    Trial,
    TrialLog,
    append_trial,
    read_trials,
    trial_lines,
)

# Takes bad lines out of a folder of records, so that plain TVM opens it again.
#
# Nothing is thrown away: a bad line goes to a side file, with its number and what is wrong with
# it. Lines of the log that a newer version wrote are not bad, and stay.


SIDE_ENDING = ".bad"


def repair_folder(folder: Path) -> list[Problem]:
    """Moves bad lines of the three files to side files, and says which.

    Good lines stay as they are; records follow their workloads to the lines that these then have.
    A folder with nothing bad in it is not written to.

    Raises
    ------
    RecordsError
        A file cannot be read.
    OutputPathError
        A file cannot be written.
    """
    return _repair_log(folder) + _repair_database(folder)


def side_file(path: Path) -> Path:
    """Where the bad lines of a file go: an object a line, with "line", "reason" and "text"."""
    return path.with_name(path.name + SIDE_ENDING)


def _repair_log(folder: Path) -> list[Problem]:
    path = folder / TRIALS
    kept, problems = [], []
    for line in trial_lines(folder):
        if line.problem is None or line.is_newer:
            kept.append(line.text)
        else:
            problems.append(line.problem)
    if problems or _is_cut(path):
        _set_aside(path, problems)
        write_text(path, "".join(text + "\n" for text in kept))
    return problems


def _repair_database(folder: Path) -> list[Problem]:
    files = read_database(folder)
    drop_refused(files)
    paths = [folder / WORKLOADS, folder / RECORDS]
    if files.problems or any(map(_is_cut, paths)):
        for path in paths:
            _set_aside(path, [problem for problem in files.problems if problem.file == path])
        write_database(folder, files.workloads.values(), files.records)
    return files.problems


def _set_aside(path: Path, problems: Iterable[Problem]) -> None:
    reasons = {problem.line: problem.reason for problem in problems}
    if not reasons:
        return
    for number, text, _ in read_lines(path):
        if number in reasons:
            found = {"line": number, "reason": reasons[number], "text": text}
            append_line(side_file(path), json.dumps(found))


def _is_cut(path: Path) -> bool:
    """Whether the last line has no end, so that what TVM adds would be joined to it."""
    return [complete for *_, complete in read_lines(path)][-1:] == [False]


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
        """Makes the database say what the trials speak for; see ``best_records``.

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
                self._record(workload, one)
                for one in kept(candidate_results(self.trials.get(name, ())))
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

    def _record(self, workload: StoredWorkload, result: CandidateResult) -> StoredRecord:
        args = stored_record(workload, _empty_trace(workload), [1.0], self._target).body[3]
        target = dict(result.trial.target)
        body = [result.trial.trace, [result.seconds], target, args]
        return StoredRecord(workload.hash, result.trial.trace, result.seconds, target, body)


def _numbered(workloads: Iterable[str]) -> dict[str, int]:
    """The line of each workload, from 0."""
    return {name: line for line, name in enumerate(workloads)}


def _content(files: DatabaseFiles) -> list[Any]:
    return [list(files.workloads), [[record.workload, record.body] for record in files.records]]


def _empty_trace(workload: StoredWorkload) -> Any:
    return tvm.s_tir.Schedule(workload.mod).trace


FILES = (TRIALS, WORKLOADS, RECORDS)


@dataclass(frozen=True)
class Records:
    """What could be read of a folder.

    Attributes
    ----------
    folder : Path
        Where it is.
    log : TrialLog
        The trials.
    files : DatabaseFiles
        The workloads and records.
    """

    folder: Path
    log: TrialLog
    files: DatabaseFiles

    @property
    def trials(self) -> list[Trial]:
        """In the order of the log."""
        return self.log.trials

    @property
    def problems(self) -> list[Problem]:
        """The lines that could not be used, as far as they were looked at."""
        return [*self.log.problems, *self.files.problems]

    def last_trials(self) -> dict[str, Trial]:
        """The last trial of each kernel, which knows the name it has now."""
        return {trial.kernel: trial for trial in self.trials}


def has_records(folder: Path) -> bool:
    """Whether any of the three files is there."""
    return any((folder / name).exists() for name in FILES)


def check_folder(folder: Path) -> None:
    """Raises RecordsError for a folder that is missing or holds no records."""
    if not folder.is_dir():
        found = "it is a file" if folder.exists() else "it does not exist"
        raise RecordsError(
            f"no records in {str(folder)!r}: {found}; expected a folder that 'tvm-ext tune' wrote: "
            "check the path"
        )
    if not has_records(folder):
        raise RecordsError(
            f"no records in {str(folder)!r}; expected at least one of {', '.join(FILES)} in it: "
            "check the path"
        )


def read_folder(folder: Path) -> Records:
    """Reads all that can be read.

    Raises
    ------
    RecordsError
        There are no records, or a file cannot be read at all.
    """
    check_folder(folder)
    return Records(folder, read_trials(folder), read_database(folder))

"""Joins folders of records into one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.configs.errors import RecordsError
from tvm_ext.tuning.logs.best_records import RecordKinds
from tvm_ext.tuning.logs.database_files import (
    StoredRecord,
    StoredWorkload,
    drop_refused,
    read_database,
    write_database,
)
from tvm_ext.tuning.logs.lines import Problem, locked
from tvm_ext.tuning.logs.record_folder import check_folder, has_records, repair_folder
from tvm_ext.tuning.logs.trial_log import TRIALS, Trial, TrialLine, trial_lines


@dataclass
class Merged:
    """What came together.

    Attributes
    ----------
    trials, workloads, records : int
        In the result.
    repeated_trials, repeated_records : int
        Left out because they are in it already.
    modelled_records : int
        Left out because they are a model's answers for a kernel that was measured on the target.
    problems : list[Problem]
        Lines that could not be used.
    """

    trials: int = 0
    workloads: int = 0
    records: int = 0
    repeated_trials: int = 0
    repeated_records: int = 0
    modelled_records: int = 0
    problems: list[Problem] = field(default_factory=list)


def merge_folders(folders: Sequence[Path], output: Path) -> Merged:
    """Writes all trials, workloads and records of ``folders`` to ``output``, each once.

    Records of a model are left out where the trials of any of the folders measured; those trials
    stay in the log.
    ``output`` is a new folder or one of ``folders``; in the second case, its bad lines go to side
    files. Lines of the log that a newer version wrote are carried over as they are.

    Raises
    ------
    RecordsError
        A folder holds no records, or ``output`` holds others, or somebody writes to it.
    OutputPathError
        A file cannot be written.
    """
    for folder in folders:
        check_folder(folder)
    sources = list(dict.fromkeys(folder.resolve() for folder in folders))
    result = output.resolve()
    if result not in sources and has_records(output):
        raise RecordsError(
            f"{str(output)!r} holds records already; expected a new folder or one of those that "
            "are merged: name it among them, or choose another"
        )
    merged = Merged()
    with locked(output):
        if result in sources:
            merged.problems += repair_folder(output)
            # Its lines first, so that they keep their places.
            sources = [result, *(folder for folder in sources if folder != result)]
        lines = _joined_lines(sources, merged)
        workloads, records = _joined_databases(sources, merged)
        kinds = RecordKinds(line.trial for line in lines if line.trial is not None)
        comparable = kinds.comparable(records)
        merged.records, merged.modelled_records = len(comparable), len(records) - len(comparable)
        write_text(output / TRIALS, "".join(line.text + "\n" for line in lines))
        write_database(output, workloads.values(), comparable)
    return merged


def _joined_lines(sources: Sequence[Path], merged: Merged) -> list[TrialLine]:
    seen: set[object] = set()
    lines = []
    for folder in sources:
        for line in trial_lines(folder):
            if line.problem is not None:
                merged.problems.append(line.problem)
                if not line.is_newer:
                    continue
            key = _identity(line.trial) if line.trial is not None else line.text
            if key in seen:
                merged.repeated_trials += 1
                continue
            seen.add(key)
            lines.append(line)
    merged.trials = len(lines)
    return lines


def _identity(trial: Trial) -> tuple[str, ...]:
    return trial.run, trial.candidate, trial.purpose, trial.time


def _joined_databases(
    sources: Sequence[Path], merged: Merged
) -> tuple[dict[str, StoredWorkload], list[StoredRecord]]:
    workloads: dict[str, StoredWorkload] = {}
    records: list[StoredRecord] = []
    seen: set[tuple[str, str]] = set()
    for folder in sources:
        files = read_database(folder)
        drop_refused(files)
        merged.problems += files.problems
        for stored in files.workloads.values():
            workloads.setdefault(stored.hash, stored)
        for record in files.records:
            key = (record.workload, json.dumps(record.body, sort_keys=True))
            if key in seen:
                merged.repeated_records += 1
                continue
            seen.add(key)
            records.append(record)
    merged.workloads = len(workloads)
    return workloads, records

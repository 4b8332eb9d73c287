"""The best record of each kernel on each target."""

import itertools
import math
from collections.abc import Iterable, Iterator

from tvm_ext.tuning.database_files import (
    FAILED_SECONDS,
    RECORDS,
    DatabaseFiles,
    StoredRecord,
)
from tvm_ext.tuning.lines import Problem
from tvm_ext.tuning.record_check import RecordCheck
from tvm_ext.tuning.record_choice import kept, standings
from tvm_ext.tuning.record_kinds import Group, RecordKinds, group_of
from tvm_ext.tuning.target_key import target_key
from tvm_ext.tuning.trial import Trial


def is_timed(record: StoredRecord) -> bool:
    """Whether a record has a time."""
    return math.isfinite(record.seconds) and record.seconds < FAILED_SECONDS


def grouped_records(records: Iterable[StoredRecord]) -> dict[Group, list[StoredRecord]]:
    """The records of each kernel on each target, the fastest first, those without a time last."""
    groups: dict[Group, list[StoredRecord]] = {}
    for record in records:
        groups.setdefault(group_of(record), []).append(record)
    return {
        group: sorted(own, key=lambda record: (not is_timed(record), record.seconds))
        for group, own in groups.items()
    }


def records_of_trials(trials: Iterable[Trial]) -> list[StoredRecord]:
    """What the trials of a log speak for, as records: of folders that hold nothing but a log."""
    return [
        StoredRecord(
            workload=kernel,
            trace=one.trial.trace,
            seconds=one.seconds,
            target=dict(one.trial.target),
            body=[one.trial.trace, [one.seconds], dict(one.trial.target), None],
        )
        for (kernel, _), own in grouped_trials(trials).items()
        for one in kept(standings(own))
    ]


def grouped_trials(trials: Iterable[Trial]) -> dict[Group, list[Trial]]:
    """The trials of each kernel on each target, in their order."""
    groups: dict[Group, list[Trial]] = {}
    for trial in trials:
        groups.setdefault((trial.kernel, target_key(trial.target)), []).append(trial)
    return groups


def best_records(files: DatabaseFiles, trials: Iterable[Trial] = ()) -> dict[Group, StoredRecord]:
    """By kernel and target, the record with the least mean seconds that applies to its workload.

    Faster ones that do not apply are moved to the problems of ``files``. With the ``trials`` of the
    log beside it, times of a model stand only where nothing was measured.
    """
    return {group: records[0] for group, records in top_records(files, 1, trials).items()}


def top_records(
    files: DatabaseFiles, count: int, trials: Iterable[Trial] = ()
) -> dict[Group, list[StoredRecord]]:
    """The same with the ``count`` best; without those that have no time."""
    check = RecordCheck(files)
    found = {}
    for group, records in grouped_records(RecordKinds(trials).comparable(files.records)).items():
        timed = [record for record in records if is_timed(record)]
        chosen = list(itertools.islice(_applying(files, check, timed), count))
        if chosen:
            found[group] = chosen
    return found


def _applying(
    files: DatabaseFiles, check: RecordCheck, records: Iterable[StoredRecord]
) -> Iterator[StoredRecord]:
    for record in records:
        reason = check.refusal(record)
        if not reason:
            yield record
            continue
        files.problems.append(Problem(files.folder / RECORDS, record.line, reason))
        files.records.remove(record)

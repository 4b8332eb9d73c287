"""The best record of each kernel on each target."""

import itertools
import math
from collections.abc import Iterable, Iterator

from tvm_ext.tuning.database_files import RECORDS, DatabaseFiles, StoredRecord
from tvm_ext.tuning.lines import Problem
from tvm_ext.tuning.record_check import RecordCheck
from tvm_ext.tuning.target_key import target_key

# MetaSchedule writes this many seconds for a candidate that failed.
_FAILED_SECONDS = 1e10

Group = tuple[str, str]
"""A kernel's hash and the key of a target."""


def is_timed(record: StoredRecord) -> bool:
    """Whether a record has a time."""
    return math.isfinite(record.seconds) and record.seconds < _FAILED_SECONDS


def grouped_records(files: DatabaseFiles) -> dict[Group, list[StoredRecord]]:
    """The records of each kernel on each target, the fastest first, those without a time last."""
    groups: dict[Group, list[StoredRecord]] = {}
    for record in files.records:
        groups.setdefault((record.workload, target_key(record.target)), []).append(record)
    return {
        group: sorted(records, key=lambda record: (not is_timed(record), record.seconds))
        for group, records in groups.items()
    }


def best_records(files: DatabaseFiles) -> dict[Group, StoredRecord]:
    """By kernel and target, the record with the least mean seconds that applies to its workload.

    Faster ones that do not apply are moved to the problems of ``files``.
    """
    return {group: records[0] for group, records in top_records(files, 1).items()}


def top_records(files: DatabaseFiles, count: int) -> dict[Group, list[StoredRecord]]:
    """The same with the ``count`` best; without those that have no time."""
    check = RecordCheck(files)
    found = {}
    for group, records in grouped_records(files).items():
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

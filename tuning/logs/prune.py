"""Makes a folder of records smaller: only the best records, and no trials that failed."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from tvm_ext.configs.atomic_file import write_text
from tvm_ext.configs.errors import RecordsError
from tvm_ext.tuning.logs.best_records import Group, RecordKinds, grouped_records
from tvm_ext.tuning.logs.database_files import (
    DatabaseFiles,
    StoredRecord,
    drop_refused,
    read_database,
    write_database,
)
from tvm_ext.tuning.logs.lines import Problem, locked
from tvm_ext.tuning.logs.record_folder import check_folder, has_records, repair_folder
from tvm_ext.tuning.logs.summary import TargetFilter
from tvm_ext.tuning.logs.trial_log import FAILURES, TRIALS, Trial, TrialLine, trial_lines


@dataclass(frozen=True)
class PruneOptions:
    """What goes.

    Attributes
    ----------
    keep : int
        Records that stay of each kernel on each target, the fastest; at least 1. Those of a model
        go where something was measured.
    drop_failed : bool
        Whether trials that failed go. A session that comes back will try those candidates again.
    is_meant : TargetFilter
        Nothing goes of other targets.
    """

    keep: int = 1
    drop_failed: bool = False
    is_meant: TargetFilter = lambda target: True


@dataclass
class Pruned:
    """What went, and what stayed.

    Attributes
    ----------
    records : dict[Group, list[StoredRecord]]
        Records that went, by kernel and target.
    statuses : dict[str, int]
        Trials that went, by how they had ended.
    names : dict[str, str]
        Kernels' names by hash, as far as they are known.
    records_kept, trials_kept : int
        What stayed.
    problems : list[Problem]
        Lines that could not be used; when the folder itself was pruned, they are in side files.
    """

    records: dict[Group, list[StoredRecord]] = field(default_factory=dict)
    statuses: dict[str, int] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    records_kept: int = 0
    trials_kept: int = 0
    problems: list[Problem] = field(default_factory=list)


def prune_folder(folder: Path, options: PruneOptions, output: Path | None = None) -> Pruned:
    """Leaves out what ``options`` say, in ``folder`` itself or in a copy at ``output``.

    Raises
    ------
    RecordsError
        There are no records, ``output`` holds some, or somebody writes to the folder.
    OutputPathError
        A file cannot be written.
    """
    check_folder(folder)
    place = output or folder
    is_copy = place.resolve() != folder.resolve()
    if is_copy and has_records(place):
        raise RecordsError(
            f"{str(place)!r} holds records already; expected a new folder: choose another with "
            "--output"
        )
    pruned = Pruned()
    with locked(place):
        if not is_copy:
            pruned.problems += repair_folder(folder)
        lines, files = list(trial_lines(folder)), read_database(folder)
        drop_refused(files)
        pruned.problems += [line.problem for line in lines if line.problem is not None]
        pruned.problems += files.problems
        pruned.names = {line.trial.kernel: line.trial.kernel_name for line in lines if line.trial}
        texts = _kept_lines(lines, options, pruned)
        kinds = RecordKinds(line.trial for line in lines if line.trial is not None)
        records = _kept_records(files, kinds, options, pruned)
        if is_copy or pruned.statuses:
            write_text(place / TRIALS, "".join(text + "\n" for text in texts))
        if is_copy or pruned.records:
            write_database(place, files.workloads.values(), records)
    return pruned


def _kept_lines(lines: list[TrialLine], options: PruneOptions, pruned: Pruned) -> list[str]:
    gone: Counter[str] = Counter()
    texts = []
    for line in lines:
        if line.trial is None and not line.is_newer:
            continue
        if line.trial is not None and options.drop_failed and _goes(line.trial, options):
            gone[line.trial.status] += 1
            continue
        texts.append(line.text)
    pruned.statuses, pruned.trials_kept = dict(gone), len(texts)
    return texts


def _goes(trial: Trial, options: PruneOptions) -> bool:
    return trial.status in FAILURES and options.is_meant(trial.target)


def _kept_records(
    files: DatabaseFiles, kinds: RecordKinds, options: PruneOptions, pruned: Pruned
) -> list[StoredRecord]:
    gone: set[int] = set()
    comparable = {record.line for record in kinds.comparable(files.records)}
    for group, records in grouped_records(files.records).items():
        lines = [record.line for record in records if record.line in comparable]
        surplus = [record for record in records if record.line not in lines[: options.keep]]
        if surplus and options.is_meant(records[0].target):
            pruned.records[group] = surplus
            gone |= {record.line for record in surplus}
    kept = [record for record in files.records if record.line not in gone]
    pruned.records_kept = len(kept)
    return kept

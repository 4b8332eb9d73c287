"""The best record of each kernel on each target."""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tvm_ext.tuning.logs.database_files import (
    FAILED_SECONDS,
    RECORDS,
    DatabaseFiles,
    RecordCheck,
    StoredRecord,
    target_key,
)
from tvm_ext.tuning.logs.lines import Problem
from tvm_ext.tuning.logs.trial_log import FAILURES, Trial

# Which schedule of a kernel its trials speak for.
#
# A time from the search alone is one draw among many, and the least of many is partly luck. So
# the best are measured again beside the default, and what does not beat it there is dropped.
# Before that has happened, a candidate has to be ahead of the default by more than the noise.
#
# Times of a model stand for a kernel on a target where nothing was measured, and nowhere else:
# the two are never compared.


# A smaller gain is noise, however small the spread.
LEAST_GAIN = 0.01


@dataclass(frozen=True)
class CandidateResult:
    """One candidate of a kernel as its trials leave it.

    Attributes
    ----------
    trial : Trial
        Its first trial.
    seconds : float
        Of one call; from the last confirmation if there was one.
    spread : float
        Relative spread of the same.
    is_confirmed : bool
        Whether it was measured again beside the default.
    """

    trial: Trial
    seconds: float
    spread: float
    is_confirmed: bool

    @property
    def is_modelled(self) -> bool:
        """Whether the time is a model's answer."""
        return self.trial.is_modelled


def timed(trials: Iterable[Trial]) -> list[Trial]:
    """Of one kernel on one target, the trials whose times count: all of one kind.

    The measured ones; those of a model where nothing was measured. Of a kernel of dynamic sizes,
    those for the sizes of the last one.
    """
    known = list(trials)
    known = [trial for trial in known if trial.sizes == known[-1].sizes]
    measured = [trial for trial in known if trial.is_measured]
    return measured or [trial for trial in known if trial.is_modelled]


def candidate_results(trials: Iterable[Trial]) -> dict[str, CandidateResult]:
    """By candidate, the trials of one kernel on one target whose times count.

    A candidate that was of no use in any trial, even after a good one, is out: threads that race
    give right numbers now and then.
    """
    found: dict[str, CandidateResult] = {}
    known_trials = list(trials)
    bad = {one.candidate for one in known_trials if one.status in FAILURES}
    for trial in timed(known_trials):
        if trial.candidate in bad or trial.seconds is None:
            continue
        known = found.get(trial.candidate)
        confirms = trial.purpose == "confirm"
        if known is None:
            found[trial.candidate] = CandidateResult(trial, trial.seconds, trial.spread, confirms)
        elif confirms:
            found[trial.candidate] = CandidateResult(known.trial, trial.seconds, trial.spread, True)
    return found


def default_of(results: dict[str, CandidateResult]) -> CandidateResult | None:
    """The default schedule's result; of the newest, if it has changed."""
    defaults = [one for one in results.values() if one.trial.is_default]
    return defaults[-1] if defaults else None


def kept(results: dict[str, CandidateResult]) -> list[CandidateResult]:
    """What belongs into a database, the best first: those that beat the default, and the default.

    A candidate that looks better than the best confirmed one, and was not confirmed itself, is
    left out: it had its chance.
    """
    default = default_of(results)
    others = [one for one in results.values() if default is None or one is not default]
    if default is not None:
        others = [one for one in others if beats(one, default)]
    confirmed = [one.seconds for one in others if one.is_confirmed]
    if default is not None and any(one.is_confirmed for one in results.values()):
        confirmed.append(default.seconds)
    if confirmed:
        least = min(confirmed)
        others = [one for one in others if one.is_confirmed or one.seconds > least]
    chosen = sorted(others, key=lambda item: item.seconds)
    return chosen if default is None else [*chosen, default]


def best(results: dict[str, CandidateResult]) -> CandidateResult | None:
    """The schedule to use."""
    return next(iter(kept(results)), None)


def beats(candidate: CandidateResult, default: CandidateResult) -> bool:
    """Whether it is faster than the default by more than the noise of its measurement."""
    noise = LEAST_GAIN if candidate.is_confirmed else max(LEAST_GAIN, candidate.spread)
    return candidate.seconds < default.seconds * (1 - noise)


Group = tuple[str, str]
"""A kernel's hash and the key of a target."""

# Other programs write times with fewer digits.
_SAME_TIME = 1e-9


def group_of(record: StoredRecord) -> Group:
    """Of which kernel a record is, on which target."""
    return record.workload, target_key(record.target)


class RecordKinds:
    """Which records of a database hold measured times, and which the answers of a model.

    MetaSchedule's form has no place for it. The log beside the database says it: a record is of a
    model if a modelled trial has its trace and its time, and no measured one has.

    Parameters
    ----------
    trials : Iterable[Trial]
        Those of the log beside the records.
    """

    def __init__(self, trials: Iterable[Trial]) -> None:
        known = list(trials)
        self._modelled = grouped_trials(one for one in known if one.is_modelled)
        self._measured = grouped_trials(one for one in known if one.is_measured)

    def is_modelled(self, record: StoredRecord) -> bool:
        """Whether the record's time is a model's answer."""
        return bool(self.modelled_trials(record))

    def modelled_trials(self, record: StoredRecord) -> list[Trial]:
        """The trials in which a model gave the record's time; none if it was measured."""
        modelled = _behind(self._modelled, record)
        return modelled if modelled and not _behind(self._measured, record) else []

    def comparable(self, records: Iterable[StoredRecord]) -> list[StoredRecord]:
        """The records without those of a model for kernels that were measured on their target."""
        known = list(records)
        if not self._modelled:
            return known
        kinds = [self.is_modelled(record) for record in known]
        measured = set(self._measured)
        measured |= {group_of(one) for one, kind in zip(known, kinds, strict=True) if not kind}
        return [
            one
            for one, kind in zip(known, kinds, strict=True)
            if not kind or group_of(one) not in measured
        ]


def _behind(trials: dict[Group, list[Trial]], record: StoredRecord) -> list[Trial]:
    """The trials with the trace and the time of a record."""
    return [
        trial
        for trial in trials.get(group_of(record), ())
        if trial.trace == record.trace
        and math.isclose(trial.seconds or 0.0, record.seconds, rel_tol=_SAME_TIME)
    ]


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
        for one in kept(candidate_results(own))
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

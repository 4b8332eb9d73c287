"""What a folder of records says about each kernel on each target."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm_ext.configs.errors import RecordsError, TargetError
from tvm_ext.hardware.targets import resolve_target
from tvm_ext.tir_schedules.recorded_schedule import (
    RecordedSchedule,
    describe_schedule,
    recorded_schedule,
)
from tvm_ext.tuning.candidate import NominalCall
from tvm_ext.tuning.jobs import spread_of
from tvm_ext.tuning.logs.best_records import (
    Group,
    RecordKinds,
    best,
    best_records,
    candidate_results,
    default_of,
    group_of,
    grouped_trials,
)
from tvm_ext.tuning.logs.database_files import StoredRecord, target_key, target_text, trace_of
from tvm_ext.tuning.logs.record_folder import Records
from tvm_ext.tuning.logs.trial_log import FAILURES, Trial


@dataclass(frozen=True)
class BestSchedule:
    """A kernel's best record on a target.

    Attributes
    ----------
    kernel, name : str
        The hash of its workload; its name, or the hash again when only records know it.
    origins : list[str]
        The model's nodes that it computes.
    record : StoredRecord
        The record itself.
    recorded : RecordedSchedule
        What it says.
    is_modelled : bool
        Whether its time is a model's answer.
    nominal : tuple[NominalCall, ...]
        Of dynamic sizes: the calls for which it was tuned last.
    """

    kernel: str
    name: str
    origins: list[str]
    record: StoredRecord
    recorded: RecordedSchedule
    is_modelled: bool = False
    nominal: tuple[NominalCall, ...] = ()

    @property
    def target(self) -> dict[str, Any]:
        """Attributes of the TVM target."""
        return self.record.target


def best_schedules(records: Records) -> list[BestSchedule]:
    """One for each kernel and target, in the order of the file.

    Records that do not apply to their workloads are added to the problems.
    """
    names, kinds = records.last_trials(), RecordKinds(records.trials)
    found = []
    for (kernel, _), record in best_records(records.files, records.trials).items():
        known = names.get(kernel)
        name, origins = (known.kernel_name, known.origins) if known else (kernel, [])
        recorded = best_schedule(records, record)
        is_modelled = kinds.is_modelled(record)
        pairs = zip(known.sizes, known.arguments, strict=False) if known else ()
        nominal = tuple(NominalCall.from_lists(*pair) for pair in pairs)
        found.append(BestSchedule(kernel, name, origins, record, recorded, is_modelled, nominal))
    return found


def best_schedule(records: Records, record: StoredRecord) -> RecordedSchedule:
    """What a record says that applies to its workload."""
    mod = records.files.workloads[record.workload].mod
    return recorded_schedule(mod, trace_of(record, mod), record.seconds)


# Picks targets by what a user types.


TargetFilter = Callable[[Mapping[str, Any]], bool]


def target_filter(text: str | None) -> TargetFilter:
    """Whether a target is the one that is meant; None means every one.

    A name that ``resolve_target`` knows is that machine; any other text is a part of the name that
    lists of records show, such as "znver4". Raises ConfigError for a .toml file that is not valid.
    """
    if text is None:
        return lambda target: True
    try:
        wanted = target_key(dict(resolve_target(text).tvm_target().export()))
    except TargetError:
        part = text.lower()
        return lambda target: part in target_text(target).lower()
    return lambda target: target_key(target) == wanted


@dataclass(frozen=True)
class Times:
    """Times of one call of a kernel, all of one kind: measured, or a model's.

    Attributes
    ----------
    default_seconds, best_seconds : float or None
        With the default schedule and with the best one; None when not known.
    schedule : str
        The best schedule, with its decisions.
    spread : float
        Relative spread of the best's times.
    is_confirmed : bool
        Whether the best was measured again beside the default, or is the default.
    """

    default_seconds: float | None = None
    best_seconds: float | None = None
    schedule: str = ""
    spread: float = 0.0
    is_confirmed: bool = False

    @property
    def gain(self) -> float | None:
        """How many times as fast as the default the best is."""
        if self.default_seconds is None or self.best_seconds is None:
            return None
        return self.default_seconds / self.best_seconds


@dataclass(frozen=True)
class KernelSummary:
    """One kernel on one target.

    Attributes
    ----------
    kernel, name : str
        The hash of its workload; its name, or the hash again when only records know it.
    origins : list[str]
        The model's nodes that it computes.
    model : str
        The model that it was tuned in last.
    target : dict
        Attributes of the TVM target.
    statuses : dict[str, int]
        Number of trials by how they ended.
    records : int
        Records in MetaSchedule's file.
    measured, modelled : Times
        What was measured, and what a cost model says; never mixed.
    """

    kernel: str
    name: str
    origins: list[str]
    model: str
    target: dict[str, Any]
    statuses: dict[str, int] = field(default_factory=dict)
    records: int = 0
    measured: Times = field(default_factory=Times)
    modelled: Times = field(default_factory=Times)

    @property
    def key(self) -> Group:
        """What tells it from the others."""
        return self.kernel, target_key(self.target)

    @property
    def is_modelled(self) -> bool:
        """Whether a model alone says what it takes: nothing was measured."""
        is_measured = "ok" in self.statuses or self.measured != Times()
        return not is_measured and self.modelled != Times()

    @property
    def times(self) -> Times:
        """The times that count: those of a model only if nothing was measured."""
        return self.modelled if self.is_modelled else self.measured

    @property
    def trials(self) -> int:
        """Number of trials."""
        return sum(self.statuses.values())

    @property
    def failed(self) -> dict[str, int]:
        """Number of failed trials by how they failed."""
        return {name: self.statuses[name] for name in FAILURES if name in self.statuses}

    def to_json(self) -> dict[str, Any]:
        """The summary as values of JSON."""
        return {
            "kernel": self.kernel,
            "name": self.name,
            "origins": self.origins,
            "model": self.model,
            "target": target_text(self.target),
            "target_attributes": plain_target(self.target),
            "trials": self.trials,
            "statuses": self.statuses,
            "records": self.records,
            "measured": _times_json(self.measured),
            "modelled": _times_json(self.modelled),
        }


def summaries(records: Records) -> list[KernelSummary]:
    """One summary for each kernel and target, in the order of their first trials.

    The trials decide; records count for kernels without measured trials, such as those of plain
    MetaSchedule. Records that do not apply to their workloads are added to the problems.
    """
    trials = grouped_trials(records.trials)
    stored = best_records(records.files, records.trials)
    kinds = RecordKinds(records.trials)
    modelled = {group for group, record in stored.items() if kinds.is_modelled(record)}
    measured = {group: record for group, record in stored.items() if group not in modelled}
    counts = Counter(map(group_of, records.files.records))
    names = records.last_trials()
    return [
        _summary(records, group, trials.get(group, []), measured.get(group), counts[group], names)
        for group in dict.fromkeys([*trials, *counts])
    ]


def chosen_summaries(
    records: Records, target: str | None = None, kernel: str | None = None
) -> list[KernelSummary]:
    """The summaries of a target, and of the kernels with ``kernel`` in a name, hash or origin.

    Raises
    ------
    RecordsError
        There are summaries, but none of these.
    """
    found = summaries(records)
    is_meant = target_filter(target)
    chosen = [one for one in found if is_meant(one.target) and _is_named(one, kernel)]
    if found and not chosen:
        asked = [f"target '{target}'"] * (target is not None)
        asked += [f"kernel '{kernel}'"] * (kernel is not None)
        targets = dict.fromkeys(target_text(one.target) for one in found)
        raise RecordsError(
            f"{str(records.folder)!r} has no records of {' and '.join(asked)}; expected one of "
            f"{len(found)} kernels on {'; '.join(targets)}: leave the option out to see them"
        )
    return chosen


def _is_named(summary: KernelSummary, part: str | None) -> bool:
    names = (summary.name, summary.kernel, *summary.origins)
    return part is None or any(part.lower() in name.lower() for name in names)


def plain_target(target: Mapping[str, Any]) -> dict[str, Any]:
    """A target's attributes without those that TVM derives from the others."""
    return {key: value for key, value in target.items() if not key.startswith("feature.")}


def _summary(
    records: Records,
    group: Group,
    trials: list[Trial],
    record: StoredRecord | None,
    count: int,
    names: Mapping[str, Trial],
) -> KernelSummary:
    measured = _times(trial for trial in trials if not trial.is_modelled)
    if measured.best_seconds is None and record is not None:
        measured = _recorded(records, record)
    known = names.get(group[0])
    target = trials[-1].target if trials else _target_of(records, group)
    return KernelSummary(
        kernel=group[0],
        name=known.kernel_name if known else group[0],
        origins=known.origins if known else [],
        model=known.model if known else "",
        target=target,
        statuses=dict(Counter(trial.status for trial in trials)),
        records=count,
        measured=measured,
        modelled=_times(trial for trial in trials if not trial.is_measured),
    )


def _target_of(records: Records, group: Group) -> dict[str, Any]:
    found = (r.target for r in records.files.records if target_key(r.target) == group[1])
    return next(found)


def _times(trials: Iterable[Trial]) -> Times:
    """What trials of one kind say."""
    found = candidate_results(trials)
    chosen, default = best(found), default_of(found)
    seconds = default.seconds if default is not None else None
    if chosen is None:
        return Times(seconds)
    schedule = describe_schedule(chosen.trial.template, chosen.trial.decisions)
    confirmed = chosen.is_confirmed or chosen.trial.is_default
    return Times(seconds, chosen.seconds, schedule, chosen.spread, confirmed)


def _recorded(records: Records, record: StoredRecord) -> Times:
    schedule = best_schedule(records, record)
    spread = spread_of([float(value) for value in record.body[1]])
    return Times(None, record.seconds, schedule.describe(), spread)


def _times_json(times: Times) -> dict[str, Any]:
    return {
        "default_seconds": times.default_seconds,
        "best_seconds": times.best_seconds,
        "gain": times.gain,
        "schedule": times.schedule,
        "spread": times.spread,
        "is_confirmed": times.is_confirmed,
    }

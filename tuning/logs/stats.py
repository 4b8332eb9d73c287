"""Figures about a folder of records: how much was tried, how fast, and how it ended."""

import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone

from tvm_ext.tuning.logs.best_records import RecordKinds
from tvm_ext.tuning.logs.database_files import target_key, target_text
from tvm_ext.tuning.logs.record_folder import Records
from tvm_ext.tuning.logs.trial_log import Trial


@dataclass(frozen=True)
class SessionFigures:
    """One session.

    Attributes
    ----------
    run : str
        Its name.
    trials : int
        Trials that it wrote.
    begun : str
        When its first trial began, UTC, ISO 8601; empty if its lines do not tell.
    wall_seconds : float
        From then to the end of its last trial.
    trials_per_minute : float or None
        None for a session that took no time.
    build_seconds, run_seconds : float
        Time spent building and running, added up over trials; builds run side by side.
    """

    run: str
    trials: int
    begun: str
    wall_seconds: float
    trials_per_minute: float | None
    build_seconds: float
    run_seconds: float


@dataclass(frozen=True)
class SpreadFigures:
    """Relative spreads of the measured trials: the quartiles and the largest."""

    quarter: float
    half: float
    three_quarters: float
    largest: float


@dataclass(frozen=True)
class FolderFigures:
    """All about a folder.

    Attributes
    ----------
    trials : int
        Lines of the log that could be read.
    statuses, purposes : dict[str, int]
        Trials by how they ended, and by what they were for.
    unreadable_lines : int
        Lines of all files that could not be used.
    wall_seconds : float
        Of all sessions together.
    trials_per_minute : float or None
        Over that time.
    build_seconds, run_seconds : float
        Time spent building and running, added up over trials.
    sessions : list[SessionFigures]
        In the order of their first trials.
    spread : SpreadFigures or None
        None without a measured trial.
    kernels, workloads, records : int
        Kernels with trials; lines of MetaSchedule's two files.
    modelled_records : int
        How many of the records hold a model's answer.
    targets, hosts, devices, models : dict[str, int]
        Trials for each.
    versions : list[dict[str, str]]
        All combinations of versions that trials were made with.
    """

    trials: int
    statuses: dict[str, int]
    purposes: dict[str, int]
    unreadable_lines: int
    wall_seconds: float
    trials_per_minute: float | None
    build_seconds: float
    run_seconds: float
    sessions: list[SessionFigures]
    spread: SpreadFigures | None
    kernels: int
    workloads: int
    records: int
    modelled_records: int = 0
    targets: dict[str, int] = field(default_factory=dict)
    hosts: dict[str, int] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)
    models: dict[str, int] = field(default_factory=dict)
    versions: list[dict[str, str]] = field(default_factory=list)


def figures_of(records: Records) -> FolderFigures:
    """The figures of a folder."""
    trials = records.trials
    by_run: dict[str, list[Trial]] = {}
    for trial in trials:
        by_run.setdefault(trial.run, []).append(trial)
    sessions = [_session(run, found) for run, found in by_run.items()]
    wall = sum(session.wall_seconds for session in sessions)
    texts = {target_key(trial.target): target_text(trial.target) for trial in trials}
    return FolderFigures(
        trials=len(trials),
        statuses=_counts(trial.status for trial in trials),
        purposes=_counts(trial.purpose for trial in trials),
        unreadable_lines=len(records.problems),
        wall_seconds=wall,
        trials_per_minute=_per_minute(len(trials), wall),
        build_seconds=sum(trial.build_seconds for trial in trials),
        run_seconds=sum(trial.run_seconds for trial in trials),
        sessions=sessions,
        spread=_spread([trial.spread for trial in trials if trial.is_measured]),
        kernels=len({trial.kernel for trial in trials}),
        workloads=len(records.files.workloads),
        records=len(records.files.records),
        modelled_records=sum(map(RecordKinds(trials).is_modelled, records.files.records)),
        targets=_counts(texts[target_key(trial.target)] for trial in trials),
        hosts=_counts(trial.host_cpu for trial in trials),
        devices=_counts(trial.device for trial in trials),
        models=_counts(trial.model for trial in trials if trial.model),
        versions=_distinct(trial.versions for trial in trials),
    )


def _session(run: str, trials: list[Trial]) -> SessionFigures:
    spans = [span for trial in trials if (span := _span(trial)) is not None]
    begun = min((begin for begin, _ in spans), default=0.0)
    wall = max((end for _, end in spans), default=0.0) - begun
    return SessionFigures(
        run=run,
        trials=len(trials),
        begun=_iso(begun) if spans else "",
        wall_seconds=wall,
        trials_per_minute=_per_minute(len(trials), wall),
        build_seconds=sum(trial.build_seconds for trial in trials),
        run_seconds=sum(trial.run_seconds for trial in trials),
    )


def _span(trial: Trial) -> tuple[float, float] | None:
    """Seconds since 1970 at which a trial began and ended; None if its line does not tell."""
    try:
        # Python 3.10 does not know the "Z" of UTC.
        ended = datetime.fromisoformat(trial.time.replace("Z", "+00:00"))
    except ValueError:
        return None
    if ended.tzinfo is None:
        ended = ended.replace(tzinfo=timezone.utc)
    end = ended.timestamp()
    return end - trial.build_seconds - trial.run_seconds, end


def _iso(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return ""


def _per_minute(count: int, seconds: float) -> float | None:
    return 60 * count / seconds if seconds > 0 else None


def _spread(values: list[float]) -> SpreadFigures | None:
    if not values:
        return None
    several = values if len(values) > 1 else values * 2
    quarter, half, three_quarters = statistics.quantiles(several, n=4, method="inclusive")
    return SpreadFigures(quarter, half, three_quarters, max(values))


def _counts(values: Iterable[str]) -> dict[str, int]:
    return dict(Counter(values).most_common())


def _distinct(versions: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for one in versions:
        if one not in found:
            found.append(one)
    return found

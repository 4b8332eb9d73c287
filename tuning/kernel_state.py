"""Where one kernel of a session stands."""

import statistics
from collections.abc import Iterable

from tvm_ext.tir_schedules.recorded_schedule import describe_schedule
from tvm_ext.tuning.candidate import Candidate, KernelTask
from tvm_ext.tuning.jobs import Timing, spread_of
from tvm_ext.tuning.logs.best_records import LEAST_GAIN, best, candidate_results, default_of
from tvm_ext.tuning.logs.trial_log import Trial
from tvm_ext.tuning.progress import KernelProgress
from tvm_ext.tuning.search import KernelSearch


class KernelState:
    """A kernel, its search once it has begun, and what its trials say.

    Attributes
    ----------
    search : KernelSearch or None
        None until its turn comes.
    trials : list[Trial]
        For the session's target, of all sessions.
    modelled_seconds : float
        What one call is expected to take, before it is measured.
    measures : bool
        Whether the session measures: then the answers of a model among the trials are no trials of
        its search. One that asks a model passes over measured ones.
    """

    def __init__(
        self, task: KernelTask, modelled_seconds: float, trials: list[Trial], measures: bool = True
    ) -> None:
        self.task = task
        self.modelled_seconds = modelled_seconds
        self.trials = trials
        self.measures = measures
        self.search: KernelSearch | None = None
        self.progress = KernelProgress(task.name, task.hash, task.calls, task.origins)
        self.refresh()

    def begin(self, search: KernelSearch) -> list[tuple[Candidate, float | None]]:
        """Starts its search, which learns what earlier sessions tried.

        Returns
        -------
        list[tuple[Candidate, float or None]]
            That: candidates with their seconds, None for one that was of no use.
        """
        self.search = search
        again = {trial.candidate: self.again(trial) for trial in self.own_trials()}
        # Another version, or other passes: what was timed then is not what its trace says now.
        stale = {name for name, candidate in again.items() if candidate is None}
        self.trials[:] = [t for t in self.trials if t.candidate not in stale or not t.is_timed]
        found = [candidate for candidate in again.values() if candidate is not None]
        known = [(candidate, self.known_seconds(candidate)) for candidate in found]
        search.tell(known)
        self.refresh()
        return known

    def has_ended(self, trials: int | None, patience: int) -> str:
        """Why its search has ended by its trials, empty if it has not.

        ``trials`` is how many it may have, None for any number.
        """
        if trials is not None and len(self.searched()) >= trials:
            return f"{trials} trials, as the effort says"
        if self.since_improvement() >= patience:
            return f"no gain in {patience} trials"
        return ""

    def end(self, state: str, reason: str) -> None:
        """Ends its search: "done" or "skipped", and why."""
        self.progress.state, self.progress.reason = state, reason

    def is_default(self, candidate: Candidate) -> bool:
        """Whether a candidate is what the kernel gets without a record."""
        default = self.search.default if self.search is not None else None
        return default is not None and default.hash == candidate.hash

    def again(self, trial: Trial) -> Candidate | None:
        """The candidate of an earlier trial; None where it leads to other loops by now."""
        return self.search.again(trial.trace, trial.candidate) if self.search is not None else None

    @property
    def is_open(self) -> bool:
        """Whether its search may go on."""
        return self.progress.state in ("waiting", "tuning")

    @property
    def cost(self) -> float:
        """Seconds of all its calls in one run of the model, measured or else modelled."""
        return (self.progress.best_seconds or self.modelled_seconds) * self.task.calls

    def own_trials(self) -> list[Trial]:
        """The trials for the task's sizes without times of the other kind; see ``measures``."""
        other, sizes = "modelled" if self.measures else "ok", self.task.sizes
        return [one for one in self.trials if one.status != other and one.sizes == sizes]

    def knows(self, candidate: Candidate) -> bool:
        """Whether a candidate was tried before, in whatever session."""
        return any(trial.candidate == candidate.hash for trial in self.own_trials())

    def known_seconds(self, candidate: Candidate) -> float | None:
        """What it took then; None if it was of no use."""
        found = candidate_results(t for t in self.own_trials() if t.candidate == candidate.hash)
        return next((one.seconds for one in found.values()), None)

    def reference_seconds(self) -> float | None:
        """What the default took when it was measured first: the unit of all other times."""
        default = self.search.default if self.search is not None else None
        if default is None:
            return None
        measured = (t for t in self.own_trials() if t.candidate == default.hash and t.is_measured)
        return next((trial.seconds for trial in measured), None)

    def since_improvement(self) -> int:
        """Trials since one was better than all before by more than the least gain."""
        least, since = float("inf"), 0
        for trial in self.searched():
            since += 1
            if trial.is_timed and (trial.seconds or least) < least * (1 - LEAST_GAIN):
                since = 0
            if trial.is_timed:
                least = min(least, trial.seconds or least)
        return since

    def searched(self) -> list[Trial]:
        """The search's own trials, without confirmations."""
        return [trial for trial in self.own_trials() if trial.purpose == "search"]

    def to_confirm(self, count: int) -> list[Trial]:
        """The best that look better than the default and were not measured beside it again."""
        found = candidate_results(self.own_trials())
        default = default_of(found)
        limit = default.seconds if default is not None else float("inf")
        open_ones = [
            one
            for one in found.values()
            if not one.is_confirmed and not one.trial.is_default and one.seconds < limit
        ]
        done = [one.seconds for one in found.values() if one.is_confirmed]
        ahead = [one for one in open_ones if one.seconds < min(done, default=limit)]
        return [one.trial for one in sorted(ahead, key=lambda item: item.seconds)[:count]]

    def refresh(self) -> None:
        """Brings what is shown up to date with the trials."""
        shown = self.progress
        found = candidate_results(self.own_trials())
        default, chosen = default_of(found), best(found)
        shown.default_seconds = default.seconds if default is not None else None
        searched = self.searched()
        shown.trials = len(searched)
        shown.failed = sum(not trial.is_timed for trial in searched)
        if chosen is not None:
            shown.best_seconds = chosen.seconds
            shown.best_schedule = describe_schedule(chosen.trial.template, chosen.trial.decisions)
            shown.is_confirmed = chosen.is_confirmed or chosen.trial.is_default
            shown.spread = chosen.spread
        shown.curve = list(_improvements(searched))


def corrected(timing: Timing, reference_seconds: float | None) -> tuple[float, float]:
    """Seconds of one call freed of the machine's drift, and their relative spread.

    The median ratio of candidate and reference in the same turns, times what the reference took
    when the kernel's search began.
    """
    if not timing.reference_seconds or reference_seconds is None:
        return statistics.median(timing.seconds), spread_of(timing.seconds)
    pairs = zip(timing.seconds, timing.reference_seconds, strict=True)
    ratios = [mine / other for mine, other in pairs]
    return statistics.median(ratios) * reference_seconds, spread_of(ratios)


def _improvements(trials: Iterable[Trial]) -> Iterable[tuple[int, float]]:
    least = float("inf")
    for number, trial in enumerate(trials, start=1):
        if trial.is_timed and trial.seconds is not None and trial.seconds < least:
            least = trial.seconds
            yield number, least

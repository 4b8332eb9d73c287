"""What a session has reached so far: for displays while it runs and for its summary."""

import time
from dataclasses import dataclass, field
from typing import Protocol


@dataclass
class KernelProgress:
    """One kernel of the model.

    Attributes
    ----------
    name, hash : str
        The kernel and the hash of its workload.
    calls : int
        Calls in one run of the model.
    origins : tuple[str, ...]
        The model's nodes that it computes.
    state : str
        "waiting", "tuning", "done" or "skipped".
    reason : str
        Why it was skipped, or why its search ended.
    default_seconds, best_seconds : float or None
        Of one call with the default schedule and with the best found; None before they are
        measured. ``best_seconds`` is never above ``default_seconds``.
    best_schedule : str
        The best schedule, with its decisions.
    trials, failed, pruned : int
        Candidates tried in all sessions on this folder, how many of them were of no use, and how
        many were dismissed by the predictor without being built.
    curve : list[tuple[int, float]]
        Number of the trial and best seconds after it, at every improvement.
    is_confirmed : bool
        Whether the best was measured again beside the default.
    spread : float
        Relative spread of the best's times.
    """

    name: str
    hash: str
    calls: int = 1
    origins: tuple[str, ...] = ()
    state: str = "waiting"
    reason: str = ""
    default_seconds: float | None = None
    best_seconds: float | None = None
    best_schedule: str = ""
    trials: int = 0
    failed: int = 0
    pruned: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)
    is_confirmed: bool = False
    spread: float = 0.0

    @property
    def gain(self) -> float | None:
        """How many times as fast as the default the best is."""
        if self.default_seconds is None or not self.best_seconds:
            return None
        return self.default_seconds / self.best_seconds


@dataclass
class SessionProgress:
    """The whole session.

    Attributes
    ----------
    model, target, folder : str
        What is tuned, for what, and where its records are.
    kernels : list[KernelProgress]
        By cost, the most expensive first.
    current : str
        Hash of the kernel that is being measured; empty for none.
    trials_done, trials_planned : int
        Trials of this session, and how many it may take; ``trials_planned`` is 0 for no limit.
    budget_seconds : float or None
        Time that it may take.
    begun : float
        ``time.monotonic()`` at its start.
    ended : float or None
        The same at its end.
    notes : list[str]
        One line each: what went otherwise than planned (a cost model that failed, say).
    outcome : str
        Why the session ended; empty while it runs.
    was_interrupted : bool
        Whether Ctrl-C ended it.
    predictor : str
        How well the performance predictor ranks kernels that it has not seen; empty if unknown.
    is_modelled : bool
        Whether all times are a model's answers, and none was measured.
    sizes : list[dict[str, int]]
        Those of the model's dynamic dimensions that its kernels are tuned for.
    """

    model: str
    target: str
    folder: str
    kernels: list[KernelProgress] = field(default_factory=list)
    current: str = ""
    trials_done: int = 0
    trials_planned: int = 0
    budget_seconds: float | None = None
    begun: float = field(default_factory=lambda: time.monotonic())
    ended: float | None = None
    notes: list[str] = field(default_factory=list)
    outcome: str = ""
    was_interrupted: bool = False
    predictor: str = ""
    is_modelled: bool = False
    sizes: list[dict[str, int]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Time since its start, or that it took."""
        return (self.ended if self.ended is not None else time.monotonic()) - self.begun

    @property
    def fraction(self) -> float:
        """How much of it is done, 0 to 1: of the trials or of the time, whichever is nearer."""
        if self.ended is not None:
            return 1.0
        parts = [0.0]
        if self.trials_planned:
            parts.append(self.trials_done / self.trials_planned)
        if self.budget_seconds:
            parts.append(self.seconds / self.budget_seconds)
        return min(1.0, max(parts))

    @property
    def seconds_left(self) -> float | None:
        """Expected time to the end; None before there is anything to go by."""
        limits = []
        if self.budget_seconds is not None:
            limits.append(max(0.0, self.budget_seconds - self.seconds))
        if self.trials_planned and self.trials_done:
            left = max(0, self.trials_planned - self.trials_done)
            limits.append(left * self.seconds / self.trials_done)
        return min(limits, default=None)

    @property
    def default_latency(self) -> float:
        """Seconds of all kernels of one run, with default schedules, as far as measured."""
        return sum((k.default_seconds or 0.0) * k.calls for k in self.kernels)

    @property
    def best_latency(self) -> float:
        """The same kernels with the best schedules found so far."""
        timed = [k for k in self.kernels if k.default_seconds]
        return sum((k.best_seconds or k.default_seconds or 0.0) * k.calls for k in timed)

    def share(self, kernel: KernelProgress) -> float:
        """The kernel's share of the model's time with default schedules, 0 to 1."""
        total = self.default_latency
        return (kernel.default_seconds or 0.0) * kernel.calls / total if total else 0.0


class ProgressListener(Protocol):
    """Shows a session while it runs."""

    def update(self, progress: SessionProgress) -> None:
        """Called after every change, several times a second at most."""
        ...


class Silent:
    """Shows nothing."""

    def update(self, progress: SessionProgress) -> None:
        """See ``ProgressListener.update``."""

"""What a tuning session reached: the figures that its display, summary and page share, and all of
them as JSON.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvm_ext.report.units import ABSENT, format_count, seconds_scale

if TYPE_CHECKING:
    from tvm_ext.tuning.progress import KernelProgress, SessionProgress


NEAR = 1.05
"""A default whose gain is at most this is near the best found."""

_REASON_NAMES = 3
_UNSEARCHED = {
    "default only": "only the default was measured",
    "no time": "no schedule could be measured",
    "not reached": "not reached",
}


@dataclass(frozen=True)
class Figures:
    """Counts over the kernels of one session.

    Attributes
    ----------
    tunable : int
        Kernels that were not skipped.
    done : int
        Those whose search ended.
    searched : int
        Kernels for which something was compared with the default.
    improved, default_is_best, near : int
        Those of them for which something faster was found; for which nothing was; whose default
        takes at most ``NEAR`` times the best found.
    untimed : int
        Kernels without a default time: the expected latency lacks them.
    failed, pruned, all_trials : int
        Sums over all kernels, of all sessions on the folder, without the defaults' own trials.
    """

    tunable: int
    done: int
    searched: int
    improved: int
    default_is_best: int
    near: int
    untimed: int
    failed: int
    pruned: int
    all_trials: int


def figures(progress: "SessionProgress") -> Figures:
    kernels = progress.kernels
    tunable = [kernel for kernel in kernels if kernel.state != "skipped"]
    gains = [kernel.gain or 1.0 for kernel in tunable if is_searched(kernel)]
    return Figures(
        tunable=len(tunable),
        done=sum(kernel.state == "done" for kernel in tunable),
        searched=len(gains),
        improved=sum(gain > 1 for gain in gains),
        default_is_best=sum(gain <= 1 for gain in gains),
        near=sum(gain <= NEAR for gain in gains),
        untimed=sum(kernel.default_seconds is None for kernel in kernels),
        failed=sum(kernel.failed for kernel in kernels),
        pruned=sum(kernel.pruned for kernel in kernels),
        all_trials=sum(max(0, kernel.trials - 1) for kernel in kernels),
    )


def by_cost(progress: "SessionProgress") -> "list[KernelProgress]":
    """The kernels by measured time of one run, the most expensive first, unmeasured ones last."""
    return sorted(progress.kernels, key=lambda kernel: -progress.share(kernel))


def file_name(progress: "SessionProgress") -> str:
    """The model's file name, without its folder."""
    return re.split(r"[\\/]", progress.model.rstrip("\\/"))[-1]


def latency_gain(progress: "SessionProgress") -> float | None:
    """How many times as fast the model is expected to be; None before anything is measured."""
    after = progress.best_latency
    return progress.default_latency / after if after > 0 else None


def is_searched(kernel: "KernelProgress") -> bool:
    """Whether something was compared with the default, which is a trial itself."""
    return kernel.state != "skipped" and kernel.trials > 1 and kernel.gain is not None


def has_news(kernel: "KernelProgress") -> bool:
    """Whether anything was compared with its default schedule, or failed."""
    return result(kernel) in ("faster", "default kept", "no time")


def result(kernel: "KernelProgress") -> str:
    """What came of one kernel, in two words."""
    if kernel.state == "skipped":
        return "skipped"
    if kernel.gain is None:
        return "no time" if kernel.trials else "not reached"
    if kernel.gain > 1:
        return "faster"
    return "default kept" if is_searched(kernel) else "default only"


def left_out(progress: "SessionProgress") -> dict[str, list[str]]:
    """By what came of kernels that were not searched: lines with how many and why."""
    lines = {"skipped": [f"skipped: {reason}" for reason in _skipped_reasons(progress)]}
    results = [result(kernel) for kernel in progress.kernels]
    for kind, text in _UNSEARCHED.items():
        if kind in results:
            lines[kind] = [f"{text}: {format_count(results.count(kind), 'kernel')}"]
    return lines


def _skipped_reasons(progress: "SessionProgress") -> list[str]:
    names: dict[str, list[str]] = {}
    for kernel in progress.kernels:
        if kernel.state == "skipped":
            names.setdefault(kernel.reason or "no reason recorded", []).append(kernel.name)
    return [f"{reason} ({_listed(found)})" for reason, found in names.items()]


def _listed(names: list[str]) -> str:
    shown, more = names[:_REASON_NAMES], len(names) - _REASON_NAMES
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def format_pair(before: float, after: float, arrow: str = "→") -> str:
    """Return two times in one unit, for example "3.21 ms → 2.90 ms"."""
    scale = seconds_scale(max(before, after))
    return f"{scale(before)} {arrow} {scale(after)}"


def format_gain(gain: float | None) -> str:
    """Return a gain as "1.11x"; never "1.00x" for one that is there."""
    if gain is None:
        return ABSENT
    return "<1.01x" if 1 < gain < 1.005 else f"{gain:,.2f}x"


def format_clock(seconds: float) -> str:
    """Return a time as "12:34", or "1:02:34" from an hour on."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def format_duration(seconds: float) -> str:
    """Return a time in words, for example "40 s", "4 min" or "1 h 10 min"."""
    if round(seconds) < 60:
        return f"{max(0, round(seconds))} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def sizes_text(progress: "SessionProgress") -> str:
    """Return the sizes of dynamic dimensions that it tunes for; empty for known sizes."""
    each = [[f"{name}={size}" for name, size in sizes.items()] for sizes in progress.sizes]
    return "; ".join(map(", ".join, each))


def trials_planned(progress: "SessionProgress") -> str:
    """The limits of the session, for example "at most 256 trials, 30 min"."""
    limits = []
    if progress.trials_planned > 0:
        limits.append(format_count(progress.trials_planned, "trial"))
    if progress.budget_seconds is not None:
        limits.append(format_duration(progress.budget_seconds))
    return "at most " + ", ".join(limits) if limits else "no limit"


# A tuning session as JSON values.


SCHEMA = 1


def tuning_json(
    progress: "SessionProgress",
    facts: Mapping[str, str],
    versions: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return what the page shows as JSON values; times in seconds, of one call or of one run.

    Parameters
    ----------
    progress : SessionProgress
        The session, ended or not.
    facts : Mapping[str, str]
        What else is to be known of it: command, CPU, seed.
    versions : Mapping[str, str], optional
        Of the packages that it ran with.
    """
    counts = figures(progress)
    return {
        "schema": SCHEMA,
        "model": progress.model,
        "target": progress.target,
        "folder": progress.folder,
        "sizes": progress.sizes,
        "facts": dict(facts),
        "versions": dict(versions or {}),
        "outcome": progress.outcome,
        "seconds": progress.seconds,
        "budget_seconds": progress.budget_seconds,
        "trials": progress.trials_done,
        "trials_planned": progress.trials_planned or None,
        "default_latency_seconds": progress.default_latency if latency_gain(progress) else None,
        "best_latency_seconds": progress.best_latency if latency_gain(progress) else None,
        "gain": _finite(latency_gain(progress)),
        "kernels_searched": counts.searched,
        "kernels_improved": counts.improved,
        "kernels_untimed": counts.untimed,
        "predictor": progress.predictor,
        "notes": list(progress.notes),
        "kernels": [_kernel(progress, kernel) for kernel in by_cost(progress)],
    }


def _kernel(progress: "SessionProgress", kernel: "KernelProgress") -> dict[str, Any]:
    return {
        "name": kernel.name,
        "hash": kernel.hash,
        "calls": kernel.calls,
        "origins": list(kernel.origins),
        "state": kernel.state,
        "reason": kernel.reason,
        "default_seconds": _finite(kernel.default_seconds),
        "best_seconds": _finite(kernel.best_seconds),
        "gain": _finite(kernel.gain),
        "share": progress.share(kernel),
        "best_schedule": kernel.best_schedule,
        "is_confirmed": kernel.is_confirmed,
        "spread": _finite(kernel.spread),
        "trials": kernel.trials,
        "failed": kernel.failed,
        "pruned": kernel.pruned,
        "curve": [{"trial": n, "best_seconds": _finite(seconds)} for n, seconds in kernel.curve],
    }


def _finite(value: float | None) -> float | None:
    """JSON has no infinity and no "not a number"."""
    return value if value is not None and math.isfinite(value) else None

"""A tuning session as JSON values."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tvm_ext.report.tuning_figures import by_cost, figures, latency_gain

if TYPE_CHECKING:
    from tvm_ext.tuning.progress import KernelProgress, SessionProgress

SCHEMA = 1


def tuning_json(progress: "SessionProgress", facts: Mapping[str, str]) -> dict[str, Any]:
    """Return what the page shows as JSON values; times in seconds, of one call or of one run.

    Parameters
    ----------
    progress : SessionProgress
        The session, ended or not.
    facts : Mapping[str, str]
        What else is to be known of it: seed, versions.
    """
    counts = figures(progress)
    return {
        "schema": SCHEMA,
        "model": progress.model,
        "target": progress.target,
        "folder": progress.folder,
        "facts": dict(facts),
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

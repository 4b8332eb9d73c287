"""Tuning sessions made up for tests of how they look."""

from tvm_ext.tuning.progress import KernelProgress, SessionProgress


def tuned(
    name: str, default: float | None = 1e-3, best: float | None = 8e-4, **other
) -> KernelProgress:
    """A kernel whose search ended, with three improvements on the way to ``best``."""
    first, last = default or 1.0, best or 1.0
    fields = {
        "hash": "0123456789abcdef",
        "origins": (f"/{name}/Conv + /{name}/Relu",),
        "state": "done",
        "reason": "all trials made",
        "default_seconds": default,
        "best_seconds": best,
        "best_schedule": "register tile (rows=6, columns=2)",
        "trials": 64,
        "failed": 3,
        "pruned": 12,
        "curve": [(1, first), (9, (first + last) / 2), (40, last)],
        "is_confirmed": True,
        "spread": 0.012,
    }
    return KernelProgress(name, **{**fields, **other})


def session(count: int = 12, **other) -> SessionProgress:
    """A session that ended: every third kernel's default is the best found, one was skipped."""
    found = []
    for index in range(count):
        default = 2e-3 / (index + 1)
        best = default if index % 3 == 2 else default * 0.8
        found.append(tuned(f"fused_conv{index}", default, best, calls=1 + index % 2))
    reason = "a size is known only at run time"
    found.append(KernelProgress("gather", "00" * 8, state="skipped", reason=reason))
    fields = {
        "model": "models/resnet50.onnx",
        "target": "cpu",
        "folder": "records",
        "kernels": found,
        "trials_done": 256,
        "trials_planned": 256,
        "begun": 100.0,
        "ended": 100.0 + 754.0,
        "outcome": "all trials were made",
    }
    return SessionProgress(**{**fields, **other})

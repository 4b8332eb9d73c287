"""A tuning session as one self-contained HTML page.

How it looks is in the templates next to this file. Names come from model files: the templates
escape every value.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_ext.report import tuning_curve
from tvm_ext.report.page import KeyFigure, page_environment
from tvm_ext.report.tuning_figures import (
    NEAR,
    by_cost,
    figures,
    file_name,
    format_clock,
    format_gain,
    format_pair,
    has_news,
    latency_gain,
    left_out,
    result,
    sizes_text,
    trials_planned,
)
from tvm_ext.report.tuning_text import times
from tvm_ext.report.units import ABSENT, format_count, format_percent, format_seconds

if TYPE_CHECKING:
    from tvm_ext.tuning.progress import KernelProgress, SessionProgress


@dataclass(frozen=True)
class TunedKernel:
    """One kernel as the page shows it.

    Attributes
    ----------
    record : KernelProgress
        The kernel.
    default, best, gain, result : str
        Times of one call, how many times as fast, and what came of it.
    share, length : float
        Share of the model's time with default schedules, and length of its bar, 0 to 1.
    curve : Curve or None
        The drawing.
    anchor : str
        Where on the page it is; empty without a drawing.
    confirmation : str
        Whether and how the best was measured again.
    """

    record: "KernelProgress"
    default: str
    best: str
    gain: str
    result: str
    share: float
    length: float
    curve: tuning_curve.Curve | None
    anchor: str
    confirmation: str


def render_tuning_html(
    progress: "SessionProgress",
    facts: Mapping[str, str],
    versions: Mapping[str, str] | None = None,
) -> str:
    """Return the page; it names no resource outside itself and has no JavaScript.

    Parameters
    ----------
    progress : SessionProgress
        The session, which may have ended or not.
    facts : Mapping[str, str]
        What else is to be known of it.
    versions : Mapping[str, str], optional
        Of the packages that it ran with.
    """
    kernels = _kernels(progress)
    drawn = [kernel for kernel in kernels if kernel.curve is not None]
    return (
        page_environment()
        .get_template("tuning.html.j2")
        .render(
            name=file_name(progress),
            progress=progress,
            tiles=_tiles(progress),
            kernels=[kernel for kernel in kernels if has_news(kernel.record)],
            measured_only=[kernel for kernel in kernels if kernel.result == "default only"],
            known=figures(progress),
            versions=versions or {},
            curves=[kernel for kernel in drawn if kernel.result == "faster"],
            flat_curves=[kernel for kernel in drawn if kernel.result != "faster"],
            usual_reason=_usual_reason(drawn),
            drawing=tuning_curve,
            left_out=left_out(progress),
            facts=_facts(progress, facts),
            absent=ABSENT,
        )
    )


def _kernels(progress: "SessionProgress") -> list[TunedKernel]:
    ordered = by_cost(progress)
    longest = max((progress.share(kernel) for kernel in ordered), default=0.0)
    rows = []
    for index, kernel in enumerate(ordered, start=1):
        default, best = times(kernel)
        share = progress.share(kernel)
        drawing = tuning_curve.curve(kernel) if kernel.trials > 1 else None
        row = TunedKernel(
            *(kernel, default, best, format_gain(kernel.gain), result(kernel)),
            share=share,
            length=share / longest if longest > 0 else 0.0,
            curve=drawing,
            anchor=f"curve-{index}" if drawing else "",
            confirmation=_confirmation(kernel),
        )
        rows.append(row)
    return rows


def _usual_reason(kernels: list[TunedKernel]) -> str:
    """Why most of the searches ended; empty where there is no such reason."""
    counts = Counter(kernel.record.reason for kernel in kernels)
    return next((reason for reason, n in counts.items() if 2 * n > len(kernels)), "")


def _confirmation(kernel: "KernelProgress") -> str:
    if not kernel.is_confirmed:
        return ""
    return f"measured again beside the default, spread {format_percent(kernel.spread)}"


def _tiles(progress: "SessionProgress") -> list[KeyFigure]:
    return [
        *_latency_tiles(progress),
        _gain_tile(progress),
        _kernel_tile(progress),
        _trial_tile(progress),
        _time_tile(progress),
    ]


def _latency_tiles(progress: "SessionProgress") -> list[KeyFigure]:
    labels = "Expected latency before", "Expected latency after"
    if latency_gain(progress) is None:
        return [KeyFigure(label, ABSENT, "no kernel was measured") for label in labels]
    untimed = figures(progress).untimed
    missing = f"; {format_count(untimed, 'kernel')} without a time not counted" if untimed else ""
    notes = f"with default schedules{missing}", "with the best found"
    pair = format_pair(progress.default_latency, progress.best_latency).split(" → ")
    return [KeyFigure(*tile) for tile in zip(labels, pair, notes, strict=True)]


def _gain_tile(progress: "SessionProgress") -> KeyFigure:
    gain = latency_gain(progress)
    if gain is None:
        return KeyFigure("Gain", ABSENT, "nothing to compare")
    saved = progress.default_latency - progress.best_latency
    return KeyFigure("Gain", format_gain(gain), f"{format_seconds(saved)} less a run")


def _kernel_tile(progress: "SessionProgress") -> KeyFigure:
    counts = figures(progress)
    if not counts.searched:
        return KeyFigure("Kernels improved", ABSENT, "none was searched")
    note = f"default is the best found for {counts.default_is_best:,}"
    if counts.near > counts.default_is_best:
        note += f", within {round(100 * (NEAR - 1))} % of it for {counts.near:,}"
    return KeyFigure("Kernels improved", f"{counts.improved:,} of {counts.searched:,}", note)


def _trial_tile(progress: "SessionProgress") -> KeyFigure:
    counts = figures(progress)
    notes = [trials_planned(progress)]
    if counts.all_trials > progress.trials_done:
        notes.append(f"{counts.all_trials:,} in all sessions")
    if counts.failed or counts.pruned:
        notes.append(f"{counts.failed:,} failed, {counts.pruned:,} dismissed unbuilt")
    return KeyFigure("Trials", f"{progress.trials_done:,}", "; ".join(notes))


def _time_tile(progress: "SessionProgress") -> KeyFigure:
    note = progress.outcome or ("ended" if progress.ended is not None else "still running")
    return KeyFigure("Time", format_clock(progress.seconds), note)


def _facts(progress: "SessionProgress", facts: Mapping[str, str]) -> list[tuple[str, str]]:
    known = [
        ("Model", progress.model),
        ("Target", progress.target),
        ("Sizes", sizes_text(progress)),
        ("Records", progress.folder),
        ("Limits", trials_planned(progress)),
        ("Predictor", progress.predictor),
        ("Ended", progress.outcome or "not yet"),
    ]
    # What is given says more than the session's own word for it.
    given = {name.lower() for name in facts}
    own = [(name, value) for name, value in known if name.lower() not in given]
    return [(name, value) for name, value in (*own, *facts.items()) if value]

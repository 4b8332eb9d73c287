"""The summary at the end of a tuning session, for a terminal.

Names come from model files, so they enter as `Text`, never as rich markup.
"""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from tvm_ext.report.records import computes
from tvm_ext.report.terminal_tables import FlexibleTable, ShortName, counted_lines, facts_table
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
from tvm_ext.report.units import (
    ABSENT,
    format_count,
    format_percent,
    plain,
    seconds_scale,
)

if TYPE_CHECKING:
    from tvm_ext.tuning.progress import KernelProgress, SessionProgress


KERNELS_SHOWN = 25


def tuning_summary(
    progress: "SessionProgress",
    report: str | Path | None = None,
    compile_arguments: Sequence[str] = (),
    *,
    model: str = "",
) -> RenderableType:
    """Return the summary as one rich renderable.

    Parameters
    ----------
    progress : SessionProgress
        The session.
    report : str, Path or None
        Where its page was saved.
    compile_arguments : Sequence[str]
        What ``tvm-ext compile`` needs besides model and records, such as ("--target", "gpu").
    model : str
        Path of the model, if it is not what the session calls it.
    """
    parts = [
        _title(progress),
        _key_figures(progress),
        Text(),
        _kernels(progress),
        _left_out(progress),
        counted_lines(progress.notes, "note"),
        _whereabouts(progress, report, compile_line(progress, model, compile_arguments)),
    ]
    return Group(*(part for part in parts if part is not None))


def compile_line(
    progress: "SessionProgress", model: str = "", arguments: Sequence[str] = ()
) -> list[str]:
    """Return the words of the command that compiles the model with the records."""
    path = model or progress.model
    return ["tvm-ext", "compile", path, "--records", progress.folder, *arguments]


def _title(progress: "SessionProgress") -> Text:
    title = Text(plain(file_name(progress)), style="bold")
    sizes = f" at {plain(sizes_text(progress))}" if progress.sizes else ""
    return title.append(f"  tuned for {plain(progress.target)}{sizes}", style="not bold dim")


def _key_figures(progress: "SessionProgress") -> Table:
    return facts_table(
        {
            "Expected latency": _latency(progress),
            "Kernels": _kernel_figure(progress),
            "Default schedules": _default_figure(progress),
            "Trials": _trial_figure(progress),
            "Predictor": progress.predictor,
            "Time": format_clock(progress.seconds),
            "Ended": progress.outcome or "not yet",
        }
    )


def _latency(progress: "SessionProgress") -> str:
    gain = latency_gain(progress)
    if gain is None:
        return f"{ABSENT}  (no kernel was measured)"
    untimed = figures(progress).untimed
    notes = [format_gain(gain), "sum of the kernels of one run"]
    if untimed:
        notes.append(f"{format_count(untimed, 'kernel')} without a time not counted")
    pair = format_pair(progress.default_latency, progress.best_latency)
    return f"{pair}  ({', '.join(notes)})"


def _kernel_figure(progress: "SessionProgress") -> str:
    counts = figures(progress)
    if not counts.searched:
        return f"{format_count(len(progress.kernels), 'kernel')}, none searched"
    return f"{counts.improved:,} of {format_count(counts.searched, 'searched kernel')} faster"


def _default_figure(progress: "SessionProgress") -> str:
    counts = figures(progress)
    if not counts.searched:
        return ""
    searched = format_count(counts.searched, "kernel")
    text = f"{counts.default_is_best:,} of {searched}: default is the best found"
    if counts.near > counts.default_is_best:
        text += f"; within {round(100 * (NEAR - 1))} % of it for {counts.near:,}"
    return text


def _trial_figure(progress: "SessionProgress") -> str:
    counts = figures(progress)
    notes = [trials_planned(progress)]
    if counts.all_trials > progress.trials_done:
        notes.append(f"{counts.all_trials:,} in all sessions on these records")
    if counts.failed:
        notes.append(f"{counts.failed:,} failed")
    if counts.pruned:
        notes.append(f"{counts.pruned:,} more dismissed without being built")
    return f"{progress.trials_done:,}  ({', '.join(notes)})"


def _kernels(progress: "SessionProgress") -> Table | None:
    ordered = [kernel for kernel in by_cost(progress) if has_news(kernel)]
    if not ordered:
        return None
    shown, rest = ordered[:KERNELS_SHOWN], ordered[KERNELS_SHOWN:]
    table = FlexibleTable(
        "Kernels by measured time of one run, times of one call",
        *("~Computes", ">Calls", ">Default", ">Best", ">Gain"),
        *(">Trials", ">Failed@90", ">Share", "~Schedule@100"),
    )
    for kernel in shown:
        table.add_row(*_row(progress, kernel))
    if rest:
        sums = [sum(kernel.trials for kernel in rest), sum(kernel.failed for kernel in rest)]
        share = format_percent(sum(progress.share(kernel) for kernel in rest))
        more = f"{len(rest):,} more"
        table.add_row(more, "", "", "", "", *(f"{number:,}" for number in sums), share, "")
    return table


def _row(progress: "SessionProgress", kernel: "KernelProgress") -> list[RenderableType]:
    gain = kernel.gain
    style = "green" if gain is not None and gain > 1 else ""
    return [
        ShortName(computes(kernel)),
        f"{kernel.calls:,}",
        *times(kernel),
        Text(format_gain(gain), style=style),
        f"{kernel.trials:,}",
        f"{kernel.failed:,}",
        format_percent(progress.share(kernel)) if kernel.default_seconds else ABSENT,
        ShortName(kernel.best_schedule or result(kernel)),
    ]


def times(kernel: "KernelProgress") -> tuple[str, str]:
    """Return the time of one call with the default and with the best schedule, in one unit."""
    default, best = kernel.default_seconds, kernel.best_seconds
    scale = seconds_scale(max(default or 0.0, best or 0.0))
    return (scale(default) if default else ABSENT), (scale(best) if best else ABSENT)


def _left_out(progress: "SessionProgress") -> Text | None:
    lines = [
        f"Not searched, {plain(line)}" for kind in left_out(progress).values() for line in kind
    ]
    return Text("\n".join(lines), style="dim") if lines else None


def _whereabouts(
    progress: "SessionProgress", report: str | Path | None, command: Sequence[str]
) -> RenderableType:
    facts = {"Records": progress.folder, "Report": str(report) if report is not None else ""}
    parts: list[RenderableType] = [Text(), facts_table(facts)]
    if figures(progress).improved:
        parts += [Text("Compile with them", style="dim"), _Command(command)]
    return Group(*parts)


class _Command:
    """A command that stays one when it is copied: the shell joins its lines."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = [plain(shlex.quote(word)) for word in words]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        first, *others = self._words
        lines = [f"  {first}"]
        for word in others:
            if len(lines[-1]) + len(word) > options.max_width - 3:
                lines[-1] += " \\"
                lines.append(f"    {word}")
            else:
                lines[-1] += f" {word}"
        yield Text("\n".join(lines), overflow="fold")

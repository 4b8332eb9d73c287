"""A running tuning session as a table that fits a terminal of any size."""

from collections import Counter
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tvm_ext.report.short_name import ShortName
from tvm_ext.report.tuning_figures import (
    computes,
    figures,
    file_name,
    format_clock,
    format_duration,
    format_gain,
    format_pair,
    latency_gain,
)
from tvm_ext.report.tuning_text import times
from tvm_ext.report.units import ABSENT, format_count, format_percent, plain

if TYPE_CHECKING:
    from tvm_ext.tuning.progress import KernelProgress, SessionProgress

# Columns that a terminal of at least so many characters has room for.
_COLUMNS = {
    "Kernel": 100,
    "Computes": 0,
    "Default": 56,
    "Best": 46,
    "Gain": 0,
    "Trials": 64,
    "Share": 76,
    "State": 36,
}
_NAMES = ("Kernel", "Computes")
_FRAME_LINES = 4  # title, names of the columns, rule; kernels that are not shown
_LEAST_BAR = 10


def session_display(progress: "SessionProgress", width: int, height: int) -> RenderableType:
    """Return what fits ``height`` lines of ``width`` characters.

    Of too many kernels it holds the most expensive ones and the one that is being tuned.
    """
    below = [_bar_line(progress, width), _line(figures_text(progress, "→"))]
    if progress.notes:
        below.append(_line(f"! {plain(progress.notes[-1])}", "yellow"))
    # The cursor stands on a line of its own: an echoed ^C must not break another one.
    below.append(Text())
    rows = height - len(below) - _FRAME_LINES
    if rows < 2 or not progress.kernels:
        return Group(*below[-height:])
    title = _line(f"{plain(file_name(progress))}  tuned for {plain(progress.target)}", "bold")
    shown = _shown(progress, rows)
    missing = _line(_missing(progress, shown), "dim")
    return Group(title, _table(progress, shown, width), missing, *below)


def trial_text(progress: "SessionProgress") -> str:
    """How many trials were made, for example "trial 57/256"."""
    planned = f"/{progress.trials_planned}" if progress.trials_planned > 0 else ""
    return f"trial {progress.trials_done}{planned}"


def figures_text(progress: "SessionProgress", arrow: str) -> str:
    """What was reached, for example "7 of 39 kernels done · 3.21 ms → 2.90 ms (1.11x)"."""
    counts = figures(progress)
    parts = [f"{counts.done:,} of {format_count(counts.tunable, 'kernel')} done"]
    gain = latency_gain(progress)
    if gain is not None:
        pair = format_pair(progress.default_latency, progress.best_latency, arrow)
        parts.append(f"{pair} ({format_gain(gain)})")
    return " · ".join(parts)


def left_text(progress: "SessionProgress") -> str:
    """How long it will take, for example "4 min left"; empty where nothing is known."""
    left = progress.seconds_left
    return "" if left is None else f"{format_duration(left)} left"


def _line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _bar_line(progress: "SessionProgress", width: int) -> RenderableType:
    parts = [trial_text(progress), format_clock(progress.seconds), left_text(progress)]
    limited = progress.trials_planned > 0 or bool(progress.budget_seconds)
    if limited:
        parts.insert(0, f"{100 * progress.fraction:.0f} %")
    text = " · ".join(part for part in parts if part)
    room = min(60, width - len(text) - 1)
    if not limited or room < _LEAST_BAR:
        return _line(text)
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(1.0, progress.fraction, width=room), _line(text))
    return line


def _table(progress: "SessionProgress", kernels: "list[KernelProgress]", width: int) -> Table:
    names = [name for name, least in _COLUMNS.items() if width >= least]
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, expand=True)
    table.pad_edge, table.collapse_padding = False, True
    for name in names:
        flexible = name in _NAMES
        table.add_column(
            name,
            justify="left" if flexible or name == "State" else "right",
            ratio=1 if flexible else None,
            no_wrap=True,
            overflow="ellipsis",
        )
    for kernel in kernels:
        style = "dim" if kernel.state in ("waiting", "skipped") else ""
        style = "bold" if _is_running(progress, kernel) else style
        cells = _cells(progress, kernel, marked=names[0])
        table.add_row(*(cells[name] for name in names), style=style)
    return table


def _shown(progress: "SessionProgress", rows: int) -> "list[KernelProgress]":
    kernels = progress.kernels
    if len(kernels) <= rows:
        return kernels
    wanted = [kernel for kernel in kernels if kernel.state != "skipped"]
    first, rest = wanted[:rows], wanted[rows:]
    running = [kernel for kernel in rest if _is_running(progress, kernel)]
    return first[: len(first) - len(running[:1])] + running[:1]


def _is_running(progress: "SessionProgress", kernel: "KernelProgress") -> bool:
    """A session goes back and forth between the kernels whose searches are not over."""
    if progress.current:
        return kernel.hash == progress.current
    return kernel.state == "tuning"


def _missing(progress: "SessionProgress", shown: "list[KernelProgress]") -> str:
    count = len(progress.kernels) - len(shown)
    if not count:
        return ""
    states = Counter(kernel.state for kernel in progress.kernels)
    states.subtract(kernel.state for kernel in shown)
    known = ", ".join(f"{number:,} {state}" for state, number in states.items() if number)
    return f"  {count:,} more: {known}"


def _cells(
    progress: "SessionProgress", kernel: "KernelProgress", marked: str
) -> dict[str, RenderableType]:
    default, best = times(kernel)
    gain = kernel.gain
    cells: dict[str, RenderableType] = {
        "Default": default,
        "Best": best,
        "Gain": Text(format_gain(gain), style="green" if gain is not None and gain > 1 else ""),
        "Trials": f"{kernel.trials:,}",
        "Share": format_percent(progress.share(kernel)) if kernel.default_seconds else ABSENT,
        "State": kernel.state,
    }
    for name, text in (("Kernel", kernel.name), ("Computes", computes(kernel))):
        mark = "> " if _is_running(progress, kernel) else "  "
        cells[name] = ShortName(text, mark if name == marked else "")
    return cells

"""Shows a tuning session on stderr while it runs: a table on a terminal, else a line a minute.

stdout stays free for the result. Nothing that goes wrong here ends a session: a display that
cannot be written goes silent.
"""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tvm_ext.cli.stderr_lines import is_terminal
from tvm_ext.report.records import computes
from tvm_ext.report.terminal_tables import FlexibleTable, ShortName
from tvm_ext.report.tuning_figures import (
    figures,
    file_name,
    format_clock,
    format_duration,
    format_gain,
    format_pair,
    latency_gain,
    trials_planned,
)
from tvm_ext.report.tuning_text import times
from tvm_ext.report.units import ABSENT, format_count, format_percent, plain

if TYPE_CHECKING:
    from typing_extensions import Self

    from tvm_ext.tuning.progress import KernelProgress, SessionProgress


# A running tuning session as a table that fits a terminal of any size.


_COLUMNS = (
    *("~Computes", ">Default@56", ">Best@46", ">Gain"),
    *(">Trials@64", ">Share@76", "State@36"),
)
_FRAME_LINES = 4  # title, names of the columns, rule; kernels that are not shown
_LEAST_BAR = 10


def session_display(progress: "SessionProgress", width: int, height: int) -> RenderableType:
    """Return what fits ``height`` lines of ``width`` characters.

    Of too many kernels it holds the most expensive ones and the one that is being tuned.
    """
    below = [_bar_line(progress, width), _text_line(figures_text(progress, "→"))]
    if progress.notes:
        below.append(_text_line(f"! {plain(progress.notes[-1])}", "yellow"))
    # The cursor stands on a line of its own: an echoed ^C must not break another one.
    below.append(Text())
    rows = height - len(below) - _FRAME_LINES
    if rows < 2 or not progress.kernels:
        return Group(*below[-height:])
    title = _text_line(f"{plain(file_name(progress))}  tuned for {plain(progress.target)}", "bold")
    shown = _shown(progress, rows)
    missing = _text_line(_missing(progress, shown), "dim")
    return Group(title, _table(progress, shown), missing, *below)


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


def _text_line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def _bar_line(progress: "SessionProgress", width: int) -> RenderableType:
    parts = [trial_text(progress), format_clock(progress.seconds), left_text(progress)]
    limited = progress.trials_planned > 0 or bool(progress.budget_seconds)
    if limited:
        parts.insert(0, f"{100 * progress.fraction:.0f} %")
    text = " · ".join(part for part in parts if part)
    room = min(60, width - len(text) - 1)
    if not limited or room < _LEAST_BAR:
        return _text_line(text)
    line = Table.grid(padding=(0, 1))
    line.add_row(ProgressBar(1.0, progress.fraction, width=room), _text_line(text))
    return line


def _table(progress: "SessionProgress", kernels: "list[KernelProgress]") -> Table:
    table = FlexibleTable("", *_COLUMNS)
    table.show_edge = False
    for kernel in kernels:
        style = "dim" if kernel.state in ("waiting", "skipped") else ""
        style = "bold" if _is_running(progress, kernel) else style
        table.add_row(*_cells(progress, kernel), style=style)
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


def _cells(progress: "SessionProgress", kernel: "KernelProgress") -> list[RenderableType]:
    gain = kernel.gain
    mark = "> " if _is_running(progress, kernel) else "  "
    return [
        ShortName(computes(kernel), mark),
        *times(kernel),
        Text(format_gain(gain), style="green" if gain is not None and gain > 1 else ""),
        f"{kernel.trials:,}",
        format_percent(progress.share(kernel)) if kernel.default_seconds else ABSENT,
        kernel.state,
    ]


REDRAWS_PER_SECOND = 4
SECONDS_PER_LINE = 60.0

Clock = Callable[[], float]


class TuneView:
    """A ``ProgressListener`` to be used as a context manager.

    Attributes
    ----------
    failure : Exception or None
        Why it went silent.
    """

    def __init__(self, console: Console | None = None, clock: Clock = time.monotonic) -> None:
        self.failure: Exception | None = None
        self._console = console if console is not None else stderr_console()
        live = self._console.is_interactive
        self._display = (LiveTable if live else MinuteLines)(self._console, clock)
        self._last: SessionProgress | None = None

    def __enter__(self) -> "Self":
        self._guarded(self._display.begin)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # The terminal is given back even after a failure.
        with contextlib.suppress(Exception):
            self._display.restore()
        if self._last is not None:
            self._guarded(self._display.end, self._last)

    def tell(self, what: str) -> None:
        """Shows what is done before the session begins."""
        if self._last is None:
            self._guarded(self._display.tell, what)

    def update(self, progress: "SessionProgress") -> None:
        """See ``ProgressListener.update``."""
        self._last = progress
        self._guarded(self._display.show, progress)

    def _guarded(self, action: Callable[..., None], *arguments: Any) -> None:
        if self.failure is not None:
            return
        try:
            action(*arguments)
        except Exception as error:  # noqa: BLE001  (a display must not end hours of tuning)
            self.failure = error


class LiveTable:
    """A table that is redrawn in place, and at the end a line.

    It is drawn when the session reports, never by a thread of its own: that would take time from
    the kernel that is being measured.
    """

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console, self._clock = console, clock
        self._redraws: deque[float] = deque(maxlen=REDRAWS_PER_SECOND)
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            vertical_overflow="crop",
        )

    def begin(self) -> None:
        self._live.start()

    def tell(self, what: str) -> None:
        self._live.update(Text(plain(what)), refresh=True)

    def show(self, progress: "SessionProgress") -> None:
        now = self._clock()
        if len(self._redraws) == REDRAWS_PER_SECOND and now - self._redraws[0] < 1.0:
            return
        self._redraws.append(now)
        size = self._console.size
        self._live.update(session_display(progress, size.width, size.height), refresh=True)

    def restore(self) -> None:
        self._live.stop()

    def end(self, progress: "SessionProgress") -> None:
        _print(self._console, _last_line(progress))


class MinuteLines:
    """A line at the start, one a minute, and one at the end; notes when there are new ones."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console, self._clock = console, clock
        self._printed: float | None = None
        self._notes = 0

    def begin(self) -> None:
        """Nothing is known yet."""

    def tell(self, what: str) -> None:
        """Too much for lines that stay."""

    def show(self, progress: "SessionProgress") -> None:
        now = self._clock()
        if self._printed is not None and now - self._printed < SECONDS_PER_LINE:
            return
        line = _minute_line if self._printed is not None else _first_line
        _print(self._console, line(progress))
        self._printed = now
        self._show_note(progress)

    def restore(self) -> None:
        """Nothing was changed."""

    def end(self, progress: "SessionProgress") -> None:
        self._show_note(progress)
        _print(self._console, _last_line(progress))

    def _show_note(self, progress: "SessionProgress") -> None:
        new = len(progress.notes) - self._notes
        if new > 0:
            more = f" (and {format_count(new - 1, 'other note')})" if new > 1 else ""
            note = f"note: {plain(progress.notes[-1])}{more}"
            _print(self._console, f"{format_clock(progress.seconds)} {note}")
        self._notes = len(progress.notes)


def stderr_console() -> Console:
    """Return a console on stderr, which may be closed or missing."""
    # Where FORCE_COLOR is set, rich alone would take a pipe for a terminal.
    return _Console(stderr=True, force_interactive=None if is_terminal() else False)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Passes the error on; rich itself would end the program."""
        raise


def _print(console: Console, line: str) -> None:
    # Whoever reads a log finds a line whole; a terminal breaks it between words.
    console.print(Text(line), soft_wrap=not console.is_terminal)


def _first_line(progress: "SessionProgress") -> str:
    name, target = plain(file_name(progress)), plain(progress.target)
    kernels = format_count(len(progress.kernels), "kernel")
    limits = trials_planned(progress)
    records = plain(progress.folder)
    clock = format_clock(progress.seconds)
    return f"{clock} tuning {name} for {target}: {kernels}, {limits}, records in {records}"


def _minute_line(progress: "SessionProgress") -> str:
    left = left_text(progress)
    return _line(progress) + (f" · {left}" if left else "")


def _last_line(progress: "SessionProgress") -> str:
    return f"{_line(progress)} · {plain(progress.outcome) or 'stopped before its end'}"


def _line(progress: "SessionProgress") -> str:
    clock, trial = format_clock(progress.seconds), trial_text(progress)
    return f"{clock} {trial} · {figures_text(progress, '->')}"

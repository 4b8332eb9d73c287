"""Shows a tuning session on stderr while it runs: a table on a terminal, else a line a minute.

stdout stays free for the result. Nothing that goes wrong here ends a session: a display that
cannot be written goes silent.
"""

import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tvm_ext.cli.tune_table import figures_text, left_text, session_display, trial_text
from tvm_ext.report.tuning_figures import file_name, format_clock, trials_planned
from tvm_ext.report.units import format_count, plain

if TYPE_CHECKING:
    from typing_extensions import Self

    from tvm_ext.tuning.progress import SessionProgress

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
        self._drawn: deque[float] = deque(maxlen=REDRAWS_PER_SECOND)
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
        if len(self._drawn) == REDRAWS_PER_SECOND and now - self._drawn[0] < 1.0:
            return
        self._drawn.append(now)
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
    try:
        terminal = sys.stderr.isatty()
    except (AttributeError, ValueError):
        terminal = False
    # Where FORCE_COLOR is set, rich alone would take a pipe for a terminal.
    return _Console(stderr=True, force_interactive=None if terminal else False)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Passes the error on; rich itself would end the program."""
        raise


def _print(console: Console, line: str) -> None:
    console.print(Text(line), soft_wrap=True)


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

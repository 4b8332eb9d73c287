"""Lines on stderr beside a result: what the work is at, and which lines of a folder of records
could not be used.
"""

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm_ext.tuning.logs.lines import Problem


# Kernels and nodes follow each other faster than anybody reads.
_SECONDS_BETWEEN = 0.05


def is_terminal() -> bool:
    """Whether stderr, which may be closed or missing, is a terminal."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


@contextmanager
def progress_line(is_measuring: bool = False) -> Iterator[None]:
    """Shows on stderr what is told (``configs.progress``); nothing where that is no terminal.

    What passes print inside of the block goes to stderr as well: stdout belongs to the command's
    own result. Where ``is_measuring``, no thread redraws the line, as that takes time from what is
    being measured: it changes only when something is told.
    """
    with _shown(is_measuring), contextlib.redirect_stdout(sys.stderr):
        yield


@contextmanager
def _shown(is_measuring: bool) -> Iterator[None]:
    if not is_terminal():
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Column

    from tvm_ext.cli.tune_view import stderr_console
    from tvm_ext.configs.progress import listening
    from tvm_ext.report.units import plain

    one_line = Column(no_wrap=True, overflow="ellipsis")
    line = Progress(
        SpinnerColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False, table_column=one_line),
        console=stderr_console(),
        transient=True,
        redirect_stdout=False,
        auto_refresh=not is_measuring,
    )
    shown = 0.0

    def show(what: str) -> None:
        nonlocal shown
        now = time.monotonic()
        # A terminal that goes away is no reason to end the work.
        with suppress(OSError):
            line.update(task, description=plain(what))
            if now - shown > _SECONDS_BETWEEN:
                line.refresh()
                shown = now

    with line, listening(show):
        task = line.add_task("starting", total=None)
        yield


# Says on stderr which lines of a folder could not be used.


_MOST_LINES = 20


def print_problems(problems: "Sequence[Problem]") -> None:
    """One line each, as "file:line: reason", up to a limit; then how many more there are."""
    from tvm_ext.report.units import plain

    # Whoever does not listen still gets the result.
    with suppress(OSError):
        for problem in problems[:_MOST_LINES]:
            print(plain(str(problem)), file=sys.stderr)
        more = len(problems) - _MOST_LINES
        if more > 0:
            print(f"and {more} more", file=sys.stderr)

"""One line on a terminal with what the work is at and how long it takes, gone when it is done."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

# Kernels and nodes follow each other faster than anybody reads.
_SECONDS_BETWEEN = 0.05


@contextmanager
def progress_line() -> Iterator[None]:
    """Shows on stderr what is told (``configs.progress``); nothing where that is no terminal."""
    try:
        terminal = sys.stderr.isatty()
    except (AttributeError, ValueError):
        terminal = False
    if not terminal:
        yield
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from tvm_ext.cli.tune_view import stderr_console
    from tvm_ext.configs.progress import listening
    from tvm_ext.report.units import plain

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    line = Progress(*columns, console=stderr_console(), transient=True, redirect_stdout=False)
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

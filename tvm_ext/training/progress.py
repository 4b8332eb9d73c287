"""A bar on stderr with the number of steps and the loss, where that is a terminal."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(batches: Iterable[Any], wanted: bool) -> Iterator[Callable[[float], None]]:
    """What to call with the loss behind each step; it does nothing where nobody would see it."""
    if not wanted or not sys.stderr.isatty():
        yield _nothing
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeElapsedColumn as Elapsed

    total = len(batches) if isinstance(batches, Sized) else None
    columns = (BarColumn(), MofNCompleteColumn(), Elapsed(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)

        def show(loss: float) -> None:
            bar.update(task, advance=1, description=f"loss {loss:.4f}")

        yield show


def _nothing(loss: float) -> None:
    """Shows nothing."""

"""Prints results, as text or as JSON, and looks at the paths of result files."""

import json
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_ext.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

# What a pipe or a file gets where COLUMNS does not say: rich's own 80 columns cut names.
_WIDTH_WITHOUT_TERMINAL = 120


def print_json(value: Any) -> None:
    """Prints one JSON document."""
    print_text(json.dumps(value, indent=2, allow_nan=False))


def print_text(text: str) -> None:
    """Prints plain text.

    Raises
    ------
    BrokenPipeError
        Whoever read the output went away.
    InputError
        The output cannot be written for another reason, such as a full disk.
    """
    with _printing():
        sys.stdout.write(text if text.endswith("\n") else f"{text}\n")
        sys.stdout.flush()


def print_piece(text: str) -> None:
    """Prints a piece of a text at once, which may be a part of a line; raises as ``print_text``."""
    with _printing():
        sys.stdout.write(without_controls(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()


def without_controls(text: str) -> str:
    """The text without what would move the cursor of a terminal or change its colours."""
    is_kept = (c in "\n\t" or unicodedata.category(c) != "Cc" for c in text)
    return "".join(c if kept else "\ufffd" for c, kept in zip(text, is_kept, strict=True))


@contextmanager
def _printing() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InputError(
            f"the result cannot be printed ({error.strerror}); expected an output that can be "
            "written to: free some space or send it elsewhere"
        ) from error


def print_rich(*parts: "RenderableType") -> None:
    """Prints tables and text, with colours only on a terminal."""
    from rich.console import Console

    # rich itself follows COLUMNS, and else asks the terminal.
    is_known = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    width = None if is_known else _WIDTH_WITHOUT_TERMINAL
    console = Console(file=sys.stdout, width=width, highlight=False)
    # Captured, because rich itself would answer a closed pipe with exit code 1.
    with _printing(), console.capture() as captured:
        for part in parts:
            console.print(part)
    print_text("\n".join(line.rstrip() for line in captured.get().splitlines()))


def check_result_files(sources: list[Path], results: list[Path]) -> None:
    """Refuses, before the work, result files that cannot be written or would overwrite a source.

    Raises
    ------
    InputError
        A result file is also a source, or two are the same.
    ArtifactError
        A path cannot be written.
    """
    from tvm_ext.configs.atomic_file import check_writable

    taken = {os.path.realpath(path) for path in sources}
    for path in results:
        real = os.path.realpath(path)
        if real in taken:
            raise InputError(
                f"{path} would overwrite another file of this command; expected a file of its "
                "own: choose another path"
            )
        taken.add(real)
        check_writable(path)


def check_report_file(path: Path | None) -> None:
    """Raises InputError for a ``--report`` that ends neither in .html nor in .json."""
    if path is not None and path.suffix not in (".html", ".json"):
        raise InputError(
            f"--report {path} ends in '{path.suffix}'; expected .html or .json: rename it"
        )


def print_saved(*paths: Path | None) -> None:
    """Prints which files were saved, and their sizes."""
    from tvm_ext.report.units import format_bytes

    for path in paths:
        if path is not None:
            print_text(f"Saved {path} ({format_bytes(path.stat().st_size)})")

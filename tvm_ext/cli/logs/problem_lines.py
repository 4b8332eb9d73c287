"""Says on stderr which lines of a folder could not be used."""

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm_ext.tuning.lines import Problem

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

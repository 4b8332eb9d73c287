"""What every page is rendered with: the environment of its template, and its key figures.

Names come from model files: every value is escaped, and shown with nothing that does not print.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tvm_ext.report.units import (
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    plain,
)


@dataclass(frozen=True)
class KeyFigure:
    """One key figure at the top of the page."""

    label: str
    value: str
    note: str
    badge: str = ""


@lru_cache
def page_environment(*packages: str) -> Environment:
    """Return the environment that every page is rendered with.

    ``packages`` hold templates of their own, which may include those of the compile report.
    """
    # Autoescape is set for every template: the usual rule by file name skips "*.html.j2".
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(one, "") for one in (*packages, "tvm_ext.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )
    environment.filters.update(
        seconds=format_seconds,
        size=format_bytes,
        percent=format_percent,
        counted=format_count,
        breakable=_breakable,
    )
    return environment


def _breakable(name: str) -> Markup:
    """Return a node name, escaped, that a line may break after each inner "/" or "." of."""
    pieces = re.split(r"(?<=\w[/.])(?=\w)", plain(name))
    return Markup("<wbr>").join(escape(piece) for piece in pieces)


def _printable(value: object) -> object:
    if isinstance(value, str) and not isinstance(value, Markup):
        return plain(value)
    return value

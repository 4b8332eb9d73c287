"""The compile report as one self-contained HTML page.

What is shown is decided in `view`; how it looks is in the templates next to this file. Names come
from model files: the templates escape every value.
"""

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tvm_ext.report import view
from tvm_ext.report.units import (
    ABSENT,
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    plain,
    seconds_scale,
)

if TYPE_CHECKING:
    from tvm_ext.report.records import CompileReport

OPERATORS_SHOWN = 10


def render_html(report: "CompileReport") -> str:
    """Return the page; it names no resource outside itself and works without JavaScript."""
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            report=report,
            tiles=view.tiles(report),
            phases=view.parts([(phase.name, phase.seconds) for phase in report.phases]),
            phase_scale=seconds_scale(report.total_seconds),
            comparisons=view.comparisons(report),
            operators_shown=OPERATORS_SHOWN,
            kernels=view.kernel_rows(report),
            kernel_scales=view.kernel_scales(report),
            concentration=view.concentration(report),
            sources=view.source_rows(report),
            passes=view.pass_rows(report),
            pass_scale=seconds_scale(max((p.seconds for p in report.passes), default=0.0)),
            memory=view.memory_parts(report),
            absent=ABSENT,
        )
    )


@lru_cache(maxsize=1)
def _environment() -> Environment:
    # Autoescape is set for every template: the usual rule by file name skips "*.html.j2".
    environment = Environment(
        loader=PackageLoader("tvm_ext.report", ""),
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

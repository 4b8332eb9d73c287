"""The compile report as one self-contained HTML page.

What is shown is decided in `view`; how it looks is in the templates next to this file. Names come
from model files: the templates escape every value.
"""

from typing import TYPE_CHECKING

from tvm_ext.report import view
from tvm_ext.report.page_environment import page_environment
from tvm_ext.report.units import ABSENT, seconds_scale

if TYPE_CHECKING:
    from tvm_ext.report.compile_report import CompileReport

OPERATORS_SHOWN = 10


def render_html(report: "CompileReport") -> str:
    """Return the page; it names no resource outside itself and works without JavaScript."""
    return (
        page_environment()
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

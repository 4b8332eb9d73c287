"""A memory plan as one self-contained HTML page, or as one SVG drawing.

How they look is in the templates next to this file, which escape every value: names come from model
files.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tvm_ext.errors import InputError
from tvm_ext.report.memory_drawing import (
    BOTTOM,
    HEIGHT,
    LEFT,
    TOP,
    MemoryDrawing,
    draw_memory,
)
from tvm_ext.report.memory_plan import FunctionPlan, ModelMemory
from tvm_ext.report.memory_text import key_figures
from tvm_ext.report.page import KeyFigure, page_environment

_FORMS = (".html", ".svg")
# Fewer calls have room for their labels in a drawing that fits a page.
_MOST_CALLS_WITH_LABELS = 60
_SIZES = {"height": HEIGHT, "left": LEFT, "top": TOP, "bottom": BOTTOM}


@dataclass(frozen=True)
class _DrawnFunction:
    """A function with its drawings; the wide one for more calls than fit."""

    plan: FunctionPlan
    drawing: MemoryDrawing | None
    wide: MemoryDrawing | None


def check_plan_file(path: Path) -> None:
    """Raises InputError for a file that ends neither in .html nor in .svg."""
    if path.suffix not in _FORMS:
        raise InputError(
            f"--output {path} ends in '{path.suffix}'; expected .html or .svg: rename it"
        )


def render_plan(found: ModelMemory, form: str) -> str:
    """Returns the plan in the form of a file that ends so: ".html" or ".svg".

    Neither names a resource outside of itself, nor needs JavaScript.
    """
    return _html(found) if form == ".html" else _svg(found)


def _html(found: ModelMemory) -> str:
    functions = [
        _DrawnFunction(plan, draw_memory(plan), _wide(plan)) for plan in found.plan.functions
    ]
    tiles = [KeyFigure(*figure) for figure in key_figures(found)]
    page = page_environment().get_template("memory.html.j2")
    return page.render(found=found, functions=functions, tiles=tiles, **_SIZES)


def _wide(plan: FunctionPlan) -> MemoryDrawing | None:
    is_needed = len(plan.calls) > _MOST_CALLS_WITH_LABELS
    return draw_memory(plan, is_wide=True) if is_needed else None


def _svg(found: ModelMemory) -> str:
    """The function with the largest arena alone.

    Raises InputError where each run decides where values lie.
    """
    largest = max(found.plan.functions, key=lambda plan: plan.arena_bytes or 0, default=None)
    drawing = draw_memory(largest) if largest is not None else None
    if drawing is None:
        raise InputError(
            f"each run decides where the values of {found.model} lie; expected sizes that are "
            "known: give --input-shape with numbers, or with ranges as 'N:1:8'"
        )
    environment = page_environment()
    template = environment.get_template("memory_drawing.svg.j2")
    return template.render(drawing=drawing, style=_style(environment), **_SIZES)


def _style(environment: Any) -> Markup:
    """The rules of the drawing, with the colours of the pages."""
    pages = environment.get_template("page.css.j2").render()
    # The colours stand in front of everything else, for light and for dark screens.
    colours, _, _ = pages.partition("\n* {")
    return Markup(colours + environment.get_template("memory_drawing.css.j2").render())

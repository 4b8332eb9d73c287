"""The registered passes and the optimisation levels, as data and as tables."""

import contextlib
import inspect
import sys
from typing import TYPE_CHECKING, Any

from tvm_ext.passes import registry
from tvm_ext.passes.pipeline import Pipeline, build_pipeline, load_pipelines, opt_level_name
from tvm_ext.passes.plugins import load_plugins

if TYPE_CHECKING:
    from rich.console import RenderableType


def catalogue(opt_level: str | None = None) -> dict[str, Any]:
    """The levels (all, or the given one) with their passes by stage, and every registered pass.

    Raises
    ------
    ConfigError
        There is no such level.
    """
    _load_plugins()
    configs = load_pipelines()
    names = list(configs) if opt_level is None else [opt_level_name(opt_level)]
    levels = {
        name: {"summary": configs[name].summary, **_stages(build_pipeline(name))} for name in names
    }
    return {"levels": levels, "passes": [describe_pass(entry) for entry in registry.all_entries()]}


def find_pass(name: str) -> registry.PassEntry:
    """The registered pass of that name, plugins included; raises PassError when there is none."""
    _load_plugins()
    return registry.get(name)


def describe_pass(entry: registry.PassEntry) -> dict[str, Any]:
    """A pass in plain values."""
    return {
        "name": entry.name,
        "level": entry.level,
        "source": entry.source,
        "summary": entry.summary,
        "options": {name: _plain(default) for name, default in entry.options().items()},
        "after": entry.after,
        "before": entry.before,
        "doc": inspect.cleandoc(entry.doc),
    }


def _plain(default: Any) -> Any:
    """A default as JSON holds it; a function or an object, which has no such form, by its name."""
    if default is None or isinstance(default, (bool, int, float, str)):
        return default
    if isinstance(default, (list, tuple)):
        return [_plain(item) for item in default]
    return getattr(default, "__name__", type(default).__name__)


def catalogue_parts(found: dict[str, Any]) -> "list[RenderableType]":
    """What ``catalogue`` returned, for the terminal."""
    from rich import box
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for name, level in found["levels"].items():
        parts.append(Text(f"{name}: {level['summary']}", style="bold"))
        for stage, passes in level.items():
            if stage != "summary" and passes:
                parts.append(Padding(Text(f"{stage}: {', '.join(passes)}"), (0, 0, 0, 2)))
    table = Table(title="Registered passes", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("Pass", no_wrap=True)
    for column in ("Level", "From", "What it does", "Options"):
        table.add_column(column)
    for entry in found["passes"]:
        defaults = "\n".join(f"{key}={value!r}" for key, value in entry["options"].items())
        fields = (entry["name"], entry["level"], entry["source"], entry["summary"], defaults)
        table.add_row(*(Text(field) for field in fields))
    return [*parts, Text(), table]


def _stages(pipeline: Pipeline) -> dict[str, list[str]]:
    stages = ("graph", "lower", "schedule", "tile", "memory", "target")
    return {stage: [step.entry.name for step in getattr(pipeline, stage)] for stage in stages}


def _load_plugins() -> None:
    # A plugin may print while it is imported; stdout belongs to the command's own result.
    with contextlib.redirect_stdout(sys.stderr):
        load_plugins()

"""What ``tvm-ext passes`` prints: registered passes and optimisation levels, and what a compile
report says of each decision.
"""

import contextlib
import inspect
import sys
from collections.abc import Iterator, Set
from typing import TYPE_CHECKING, Any

from tvm_ext.passes import registry
from tvm_ext.passes.pipeline import (
    STAGES,
    Pipeline,
    PipelineSource,
    build_pipeline,
    load_pipelines,
    opt_level_name,
)
from tvm_ext.passes.registry import load_plugins
from tvm_ext.report.compile_report import CompileReport
from tvm_ext.report.records import KernelRecord, PassRecord
from tvm_ext.report.units import format_seconds, plain

if TYPE_CHECKING:
    from rich.console import RenderableType


def catalogue(opt_level: str | None = None, own: PipelineSource | None = None) -> dict[str, Any]:
    """The levels (all, or the given one) with their passes by stage, and every registered pass.

    With a user's pipeline, that alone in place of the levels.

    Raises
    ------
    PassError, ConfigError
        There is no such level, or the pipeline cannot run.
    """
    _load_plugins()
    configs = load_pipelines()
    names = list(configs) if opt_level is None else [opt_level_name(opt_level)]
    if own is None:
        levels = {
            name: {"summary": configs[name].summary, **_stages(build_pipeline(name))}
            for name in names
        }
    else:
        pipeline = build_pipeline(names[-1], own=own)
        summary = f"your own pipeline; stages that it leaves open are those of {names[-1]}"
        levels = {pipeline.opt_level: {"summary": summary, **_stages(pipeline)}}
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


def catalogue_parts(listed: dict[str, Any]) -> "list[RenderableType]":
    """What ``catalogue`` returned, for the terminal."""
    from rich import box
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for name, level in listed["levels"].items():
        parts.append(Text(f"{name}: {level['summary']}", style="bold"))
        for stage, passes in level.items():
            if stage != "summary" and passes:
                parts.append(Padding(Text(f"{stage}: {', '.join(passes)}"), (0, 0, 0, 2)))
    table = Table(title="Registered passes", title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("Pass", no_wrap=True)
    for column in ("Level", "From", "What it does", "Options"):
        table.add_column(column)
    for entry in listed["passes"]:
        defaults = "\n".join(f"{key}={value!r}" for key, value in entry["options"].items())
        fields = (entry["name"], entry["level"], entry["source"], entry["summary"], defaults)
        table.add_row(*(Text(field) for field in fields))
    return [*parts, Text(), table]


def _stages(pipeline: Pipeline) -> dict[str, list[str]]:
    return {stage: [step.entry.name for step in getattr(pipeline, stage)] for stage in STAGES}


def _load_plugins() -> None:
    # A plugin may print while it is imported; stdout belongs to the command's own result.
    with contextlib.redirect_stdout(sys.stderr):
        load_plugins()


# What a compile report says of decisions: by pass and by kernel, taken and left alone.


def explain(
    report: CompileReport, passes: Set[str] = frozenset(), refused_only: bool = False
) -> dict[str, Any]:
    """The decisions as JSON values.

    Parameters
    ----------
    report : CompileReport
        Of the model.
    passes : set of str
        Names of the passes to keep; all of them, and the kernels, when empty.
    refused_only : bool
        Whether to keep only what was left alone.
    """
    records = [record for record in report.passes if not passes or record.name in passes]
    if refused_only:
        records = [record for record in records if record.refused]
    kernels = [] if passes else report.kernels_by_cost
    if refused_only:
        kernels = [kernel for kernel in kernels if kernel.refusals]
    return {
        "model": report.model,
        "opt_level": report.opt_level,
        "passes": [_explain_pass(record, refused_only) for record in records],
        "kernels": [_explain_kernel(kernel) for kernel in kernels],
    }


def _explain_pass(record: PassRecord, refused_only: bool) -> dict[str, Any]:
    def listed(applied: bool) -> list[dict[str, str]]:
        return [
            {"where": decision.where, "reason": decision.reason}
            for decision in record.decisions
            if decision.applied is applied
        ]

    return {
        "name": record.name,
        "level": record.level,
        "changed": record.changed,
        "skipped": record.skipped,
        "applied": [] if refused_only else listed(True),
        "refused": listed(False),
    }


def _explain_kernel(kernel: KernelRecord) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "calls": kernel.calls,
        "origins": kernel.origins,
        "schedule": kernel.schedule,
        "source": kernel.source,
        "reason": kernel.reason,
        "refusals": kernel.refusals,
        "estimated_seconds": kernel.estimated_seconds,
    }


def explanation_text(explanation: dict[str, Any]) -> str:
    """What ``explain`` returned as text: ``+`` for what was done, ``-`` for what was left alone."""
    model, level = plain(explanation["model"]), explanation["opt_level"]
    lines = [f"{model}, optimisation {level}  (+ done, - left alone)", ""]
    for record in explanation["passes"]:
        lines += _pass_lines(record)
    if explanation["kernels"]:
        lines += ["", "Kernels, the costliest (modelled) first"]
    for kernel in explanation["kernels"]:
        lines += _kernel_lines(kernel)
    if not explanation["passes"] and not explanation["kernels"]:
        lines.append("Nothing of that kind was recorded.")
    return "\n".join(lines)


def _pass_lines(record: dict[str, Any]) -> Iterator[str]:
    effect = "changed the module" if record["changed"] else "no change"
    yield f"{plain(record['name'])}: {record['skipped'] or effect}"
    for mark, key in (("+", "applied"), ("-", "refused")):
        for decision in record[key]:
            yield f"  {mark} {plain(decision['where'])}: {plain(decision['reason'])}"


def _kernel_lines(kernel: dict[str, Any]) -> Iterator[str]:
    estimated = kernel["estimated_seconds"]
    seconds = "time not known"
    if estimated is not None:
        seconds = format_seconds(kernel["calls"] * estimated)
    yield f"{plain(kernel['name'])}: {kernel['calls']} call(s), {seconds}"
    for origin in kernel["origins"]:
        yield f"    {plain(origin)}"
    yield f"  + {kernel['schedule']} ({kernel['source']}): {plain(kernel['reason'])}"
    for refusal in kernel["refusals"]:
        yield f"  - {plain(refusal)}"

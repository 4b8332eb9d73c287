"""What ``tvm-ext passes`` prints: registered passes and optimisation levels, and what a compile
report says of each decision.
"""

import contextlib
import inspect
import sys
from collections.abc import Iterator, Set
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

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
from tvm_ext.report.terminal_tables import FlexibleTable, ShortName, marked_line, reasons
from tvm_ext.report.units import format_count, plain, seconds_scale


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


def unbroken(doc: str) -> str:
    """A documentation with its long lines whole again, for a terminal to break them elsewhere."""
    whole = ""
    before = 0
    for line in doc.splitlines():
        is_rest = before + len(line.split(maxsplit=1)[0]) >= _BROKEN_AT if line.strip() else False
        whole += f" {line.strip()}" if is_rest else f"\n{line}"
        before = len(line)
    return whole.strip()


# Columns of a docstring's line in our sources, less its indentation.
_BROKEN_AT = 95


def _plain(default: Any) -> Any:
    """A default as JSON holds it; a function or an object, which has no such form, by its name."""
    if default is None or isinstance(default, (bool, int, float, str)):
        return default
    if isinstance(default, (list, tuple)):
        return [_plain(item) for item in default]
    return getattr(default, "__name__", type(default).__name__)


def catalogue_parts(listed: dict[str, Any], verbose: bool = False) -> list[RenderableType]:
    """What ``catalogue`` returned, for the terminal; options, and all words, where ``verbose``."""
    parts: list[RenderableType] = []
    for name, level in listed["levels"].items():
        parts.append(Text(f"{name}: {level['summary']}", style="bold"))
        for stage, passes in level.items():
            if stage != "summary" and passes:
                parts.append(Padding(Text(f"{stage}: {', '.join(passes)}"), (0, 0, 0, 2)))
    does = "=What it does" if verbose else "~What it does"
    table = FlexibleTable("Registered passes", "Pass", "Level", "From@100", does)
    for entry in listed["passes"]:
        table.add_row(*(Text(plain(entry[key])) for key in ("name", "level", "source", "summary")))
        for key, value in entry["options"].items() if verbose else ():
            table.add_row("", "", "", Text(plain(f"  {key}={value!r}"), style="dim"))
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


def explanation_parts(explanation: dict[str, Any], verbose: bool = False) -> list[RenderableType]:
    """What ``explain`` returned, for a terminal: ``+`` for what was done, ``-`` for what was not.

    Places with one reason stand together, and so do kernels with one schedule. ``verbose`` adds
    passes without decisions, all names of nodes, and names of kernels.
    """
    title = Text(plain(explanation["model"]), style="bold")
    title.append(
        f"  optimisation {explanation['opt_level']}  (+ done, - left alone)", "not bold dim"
    )
    passes, kernels = explanation["passes"], explanation["kernels"]
    parts: list[RenderableType] = [title]
    for record in passes:
        has_decisions = record["applied"] or record["refused"]
        if verbose or has_decisions:
            parts += [*([Text()] if has_decisions else []), *_pass_parts(record, verbose)]
    if not verbose:
        parts += _without_decisions(passes)
    if kernels:
        parts += [Text(), Text("Kernels, the costliest (modelled) first", style="bold")]
    for group in _alike(kernels):
        parts += [Text(), *_schedule_parts(group, verbose)]
    if not passes and not kernels:
        parts.append(Text("Nothing of that kind was recorded."))
    return parts


def _pass_parts(record: dict[str, Any], verbose: bool) -> Iterator[RenderableType]:
    effect = "" if record["changed"] else "  no change"
    text = Text(plain(record["name"]), style="bold")
    yield text.append(plain(f"  {record['skipped']}" if record["skipped"] else effect), "not bold")
    for mark, key in (("+", "applied"), ("-", "refused")):
        yield from reasons(mark, ((one["where"], one["reason"]) for one in record[key]), verbose)


def _without_decisions(passes: list[dict[str, Any]]) -> Iterator[RenderableType]:
    silent = [one for one in passes if not (one["applied"] or one["refused"])]
    kinds = {
        "Skipped": [one["name"] for one in silent if one["skipped"]],
        "Changed the module as a whole": [one["name"] for one in silent if one["changed"]],
    }
    rest = len(silent) - sum(map(len, kinds.values()))
    lines = [f"{kind}: {', '.join(dict.fromkeys(names))}" for kind, names in kinds.items() if names]
    if rest:
        lines.append(f"{format_count(rest, 'pass', 'passes')} changed nothing; -v lists them")
    for line in lines:
        yield Text()
        yield Text(plain(line))


def _alike(kernels: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The kernels in groups of one schedule, with the same reasons."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for kernel in kernels:
        key = (kernel["schedule"], kernel["source"], kernel["reason"], *kernel["refusals"])
        groups.setdefault(key, []).append(kernel)
    return list(groups.values())


def _schedule_parts(kernels: list[dict[str, Any]], verbose: bool) -> Iterator[RenderableType]:
    first = kernels[0]
    title = Text(plain(f"{first['schedule']} ({first['source']})"), style="bold")
    yield title.append(plain(f": {first['reason']}"), "not bold")
    yield Padding(_kernel_rows(kernels, verbose), (0, 0, 0, 4))
    refusals: dict[str, list[str]] = {}
    for refusal in first["refusals"]:
        template, _, reason = refusal.partition(": ")
        refusals.setdefault(reason, []).append(template)
    for reason, templates in refusals.items():
        yield marked_line("-", f"{', '.join(templates)}: {reason}" if reason else templates[0])


def _kernel_rows(kernels: list[dict[str, Any]], verbose: bool) -> Table:
    times = [_run_seconds(kernel) for kernel in kernels]
    scale = seconds_scale(max(seconds or 0.0 for seconds in times))
    table = Table.grid(padding=(0, 2))
    for _ in range(1 + verbose):
        table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    for kernel, seconds in zip(kernels, times, strict=True):
        nodes = kernel["origins"] or [kernel["name"]]
        named = [ShortName(kernel["name"])] if verbose else []
        calls = format_count(kernel["calls"], "call")
        table.add_row(*named, ShortName(nodes[0]), calls, scale(seconds))
        for node in nodes[1:] if verbose else ():
            table.add_row("", ShortName(node))
    return table


def _run_seconds(kernel: dict[str, Any]) -> float | None:
    estimated: float | None = kernel["estimated_seconds"]
    return None if estimated is None else kernel["calls"] * estimated

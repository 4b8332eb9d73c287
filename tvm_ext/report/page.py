"""The compile report as one self-contained HTML page.

This module lays the figures out; how they look is in the templates next to this file. The
environment of the templates and the key figures are those of every page. Names come from model
files: each value is escaped, and shown with nothing that does not print.
"""

import re
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from tvm_ext.report.units import (
    ABSENT,
    Scale,
    bytes_scale,
    flops_scale,
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    plain,
    seconds_scale,
)

if TYPE_CHECKING:
    from tvm_ext.report.compile_report import CompileReport
    from tvm_ext.report.records import Decision, KernelRecord, ModuleCounts

_SOURCES = ("record", "template", "tvm rule", "generic")
_STEPS = 6  # shades of the accent that the style sheet has
_LABEL_SHARE = 0.13  # a part of a bar at least this long holds its own name


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


@dataclass(frozen=True)
class Part:
    """One part of a whole, for example one phase of the compile time."""

    name: str
    value: float
    share: float
    step: int
    labelled: bool


@dataclass(frozen=True)
class OperatorRow:
    """One operator's count before and after, with the lengths (0 to 1) of its bars."""

    name: str
    before: int
    after: int
    before_length: float
    after_length: float


@dataclass(frozen=True)
class Comparison:
    """Operator counts before and after a step, the most frequent operator first."""

    title: str
    before_title: str
    after_title: str
    before: int
    after: int
    rows: list[OperatorRow]


@dataclass(frozen=True)
class KernelRow:
    """One kernel with its share of the modelled time, and the length of its bar (0 to 1)."""

    record: "KernelRecord"
    share: float
    length: float


@dataclass(frozen=True)
class KernelScales:
    """One unit for each column of the kernel table."""

    flops: Scale
    bytes: Scale
    call: Scale
    total: Scale


@dataclass(frozen=True)
class KnownColumns:
    """Which columns of the kernel table say something; the others are left out.

    Attributes
    ----------
    flops, bytes, seconds : bool
        Whether the work, the bytes moved and the modelled time of a kernel are known.
    usual_source : str
        Where more than half of the schedules came from: only other sources are marked.
    """

    flops: bool
    bytes: bool
    seconds: bool
    usual_source: str


@dataclass(frozen=True)
class SourceRow:
    """How many kernels got their schedule from one source, and what they cost."""

    name: str
    kernels: int
    calls: int
    seconds: float
    share: float


@dataclass(frozen=True)
class PassRow:
    """One pass, with the module behind it in numbers and its decisions split."""

    name: str
    level: str
    seconds: float
    changed: bool
    applied: int
    refused: int
    skipped: str
    after: "ModuleCounts | None"
    taken: "list[Decision]"
    left_alone: "list[Decision]"


def tiles(report: "CompileReport") -> list[KeyFigure]:
    return [
        _latency_tile(report),
        _kernel_tile(report),
        _memory_tile(report),
        KeyFigure("Weights", format_bytes(report.memory.weights_bytes), "constants of the program"),
        _pass_tile(report),
        _time_tile(report),
        *_work_tiles(report),
        *_specialized_tiles(report),
        *_precision_tiles(report),
        *_device_tiles(report),
    ]


def _latency_tile(report: "CompileReport") -> KeyFigure:
    seconds = report.estimated_seconds
    nominal = report.nominal
    if seconds is None and nominal and nominal.estimated_seconds:
        figure = format_seconds(nominal.estimated_seconds)
        return KeyFigure("Estimated latency", figure, nominal.where, badge="modelled")
    if seconds is None:
        return KeyFigure("Estimated latency", ABSENT, report.not_known)
    if seconds <= 0:
        return KeyFigure("Estimated latency", ABSENT, "no estimate")
    return KeyFigure("Estimated latency", format_seconds(seconds), "", badge="modelled")


def _kernel_tile(report: "CompileReport") -> KeyFigure:
    graph = report.graph
    figure = f"{graph.kernels_before_fusion:,} → {graph.kernels:,}"
    note = "by fusion"
    if graph.kernels_per_anchor is not None:
        note += f"; {graph.kernels_per_anchor:.2f} per convolution or matmul"
    if report.tuned_figure:
        note += f"; tuned records for {report.tuned_figure}"
    return KeyFigure("Kernel calls", figure, note)


def _memory_tile(report: "CompileReport") -> KeyFigure:
    memory = report.memory
    nominal = report.nominal
    if memory.planned_peak_bytes is None and nominal and nominal.memory_bytes is not None:
        return KeyFigure("Peak memory", format_bytes(nominal.memory_bytes), nominal.where)
    if memory.planned_peak_bytes is None:
        return KeyFigure("Peak memory", ABSENT, report.not_known)
    note = "buffers of one run, as planned"
    if memory.saved_share > 0:
        note = f"{format_percent(memory.saved_share)} less than without reuse"
    if memory.workspace_bytes:
        note += f"; {format_bytes(memory.workspace_bytes)} of it arrays of kernels"
    if report.symbolic_sizes:
        note += "; for the largest sizes"
    return KeyFigure("Peak memory", format_bytes(memory.planned_peak_bytes), note)


def _work_tiles(report: "CompileReport") -> list[KeyFigure]:
    """Of a program whose sizes a run decides: what the kernel table cannot add up."""
    nominal = report.nominal
    if nominal is None or nominal.work is None:
        return []
    titles = {"flops": "Work of a run", "bytes": "Moved in a run"}
    return [
        KeyFigure(
            title,
            nominal.work.figure(what),
            f"{nominal.where}; {nominal.work.formula(what, nominal.sizes)}",
        )
        for what, title in titles.items()
    ]


def _device_tiles(report: "CompileReport") -> list[KeyFigure]:
    device = report.device
    if device is None:
        return []
    figure = f"{device.graph_kernels:,}" if device.graphs else "none"
    return [
        KeyFigure("Device code", device.arch, device.code_figure),
        KeyFigure("Kernel calls in CUDA graphs", figure, device.graph_figure),
    ]


def _specialized_tiles(report: "CompileReport") -> list[KeyFigure]:
    count = len(report.specialized)
    return [KeyFigure("Exact sizes", f"{count}", report.specialized_figure)] if count else []


def _precision_tiles(report: "CompileReport") -> list[KeyFigure]:
    chosen = report.precision
    if chosen is None:
        return []
    share = f"{len(chosen.narrow):,} of {len(chosen.nodes):,}" if chosen.nodes else "none"
    return [KeyFigure("Products in bfloat16", share, chosen.figure)]


def _pass_tile(report: "CompileReport") -> KeyFigure:
    if not report.passes:
        return KeyFigure("Rewrites applied", ABSENT, "no pass was recorded")
    skipped = sum(1 for record in report.passes if record.skipped)
    left = format_count(report.refused, "near match", "near matches")
    notes = [f"{left} left alone" if report.refused else "no near match left alone"]
    if skipped:
        notes.append(f"{format_count(skipped, 'pass', 'passes')} skipped")
    return KeyFigure("Rewrites applied", f"{report.applied:,}", ", ".join(notes))


def _time_tile(report: "CompileReport") -> KeyFigure:
    total = report.total_seconds
    if total <= 0:
        return KeyFigure("Compile time", ABSENT, "no phase was timed")
    slowest = max(report.phases, key=lambda phase: phase.seconds)
    note = f"{slowest.name} takes {format_percent(slowest.seconds / total)}"
    if report.is_from_cache:
        note = "from the cache"
    elif report.kernels_from_cache:
        note += f"; code for {report.kernels_from_cache:,} kernels from the cache"
    return KeyFigure("Compile time", format_seconds(total), note)


def parts(values: list[tuple[str, float]]) -> list[Part]:
    """Return the parts in the order given, the largest with the strongest shade (step 0)."""
    total = sum(value for _, value in values)
    largest_first = sorted(range(len(values)), key=lambda index: -values[index][1])
    steps = {index: min(rank, _STEPS - 1) for rank, index in enumerate(largest_first)}
    shares = [value / total if total > 0 else 0.0 for _, value in values]
    return [
        Part(name, value, share, steps[index], share >= _LABEL_SHARE)
        for index, ((name, value), share) in enumerate(zip(values, shares, strict=True))
    ]


def comparisons(report: "CompileReport") -> list[Comparison]:
    graph = report.graph
    both = [
        ("ONNX nodes", "as given", "prepared", graph.onnx_nodes, graph.prepared_nodes),
        ("Relax calls", "imported", "optimised", graph.relax_before, graph.relax_after),
    ]
    return [_comparison(*step) for step in both if step[3] or step[4]]


def _comparison(
    title: str, before_title: str, after_title: str, before: dict[str, int], after: dict[str, int]
) -> Comparison:
    counts = [(name, before.get(name, 0), after.get(name, 0)) for name in {**before, **after}]
    counts.sort(key=lambda row: (-max(row[1:]), row[0]))
    longest = max(1, *(max(row[1:]) for row in counts))
    rows = [OperatorRow(name, old, new, old / longest, new / longest) for name, old, new in counts]
    totals = sum(before.values()), sum(after.values())
    return Comparison(title, before_title, after_title, *totals, rows)


def kernel_rows(report: "CompileReport") -> list[KernelRow]:
    total = report.seconds_of_run
    ordered = report.kernels_by_cost
    if not total:
        return [KernelRow(kernel, 0.0, 0.0) for kernel in ordered]
    largest = _seconds(ordered[0])
    return [
        KernelRow(kernel, _seconds(kernel) / total, _seconds(kernel) / largest)
        for kernel in ordered
    ]


def _seconds(kernel: "KernelRecord") -> float:
    return kernel.seconds_of_run or 0.0


def kernel_scales(report: "CompileReport") -> KernelScales:
    kernels = report.kernels
    return KernelScales(
        flops=flops_scale(_largest(kernels, "flops")),
        bytes=bytes_scale(_largest(kernels, "bytes")),
        call=seconds_scale(_largest(kernels, "estimated_seconds")),
        total=seconds_scale(max((_seconds(kernel) for kernel in kernels), default=0.0)),
    )


def _largest(kernels: "list[KernelRecord]", figure: str) -> float:
    return max((kernel.of_call(figure) or 0.0 for kernel in kernels), default=0.0)


def known_columns(report: "CompileReport") -> KnownColumns:
    kernels = report.kernels
    counts = Counter(kernel.source for kernel in kernels)
    return KnownColumns(
        flops=any(kernel.of_call("flops") is not None for kernel in kernels),
        bytes=any(kernel.of_call("bytes") is not None for kernel in kernels),
        seconds=any(kernel.of_call("estimated_seconds") is not None for kernel in kernels),
        usual_source=next((name for name, n in counts.items() if 2 * n > len(kernels)), ""),
    )


def concentration(report: "CompileReport") -> str:
    """Return where the modelled time is: how few kernels make up 80 % of it."""
    total = report.seconds_of_run
    if not total:
        return ""
    reached = 0.0
    for rank, kernel in enumerate(report.kernels_by_cost, start=1):
        reached += _seconds(kernel)
        if reached >= 0.8 * total:
            verb = "takes" if rank == 1 else "take"
            return f"{format_count(rank, 'kernel')} {verb} {format_percent(reached / total)}"
    return ""


def source_rows(report: "CompileReport") -> list[SourceRow]:
    total = report.seconds_of_run or 0.0
    names = list(_SOURCES) + sorted({kernel.source for kernel in report.kernels} - set(_SOURCES))
    rows = []
    for name in names:
        kernels = [kernel for kernel in report.kernels if kernel.source == name]
        seconds = sum(_seconds(kernel) for kernel in kernels)
        share = seconds / total if total > 0 else 0.0
        calls = sum(kernel.calls for kernel in kernels)
        rows.append(SourceRow(name, len(kernels), calls, seconds, share))
    return [row for row in rows if row.kernels]


def pass_rows(report: "CompileReport") -> list[PassRow]:
    return [
        PassRow(
            *(record.name, record.level, record.seconds, record.changed),
            *(record.applied, record.refused, record.skipped, record.after),
            taken=[decision for decision in record.decisions if decision.applied],
            left_alone=[decision for decision in record.decisions if not decision.applied],
        )
        for record in report.passes
    ]


def memory_parts(report: "CompileReport") -> list[tuple[str, int, float]]:
    """Return (label, bytes, length of the bar from 0 to 1) of each figure, on one scale."""
    memory = report.memory
    figures = {
        "Intermediates without reuse": memory.unplanned_values_bytes,
        "Intermediates as planned": memory.values_bytes,
        "Arrays of kernels": memory.kernel_bytes,
        "Weights": memory.weights_bytes,
        "Tables of the program": memory.program_bytes,
    }
    known = [(label, value) for label, value in figures.items() if value is not None]
    longest = max(1, *(value for _, value in known))
    return [(label, value, value / longest) for label, value in known]


OPERATORS_SHOWN = 10


def render_html(report: "CompileReport") -> str:
    """Return the page; it names no resource outside itself and works without JavaScript."""
    rows = pass_rows(report)
    return (
        page_environment()
        .get_template("page.html.j2")
        .render(
            report=report,
            tiles=tiles(report),
            phases=parts([(phase.name, phase.seconds) for phase in report.phases]),
            phase_scale=seconds_scale(report.total_seconds),
            comparisons=comparisons(report),
            operators_shown=OPERATORS_SHOWN,
            kernels=kernel_rows(report),
            kernel_scales=kernel_scales(report),
            known=known_columns(report),
            concentration=concentration(report),
            sources=source_rows(report),
            passes=[row for row in rows if row.changed],
            quiet_passes=[row for row in rows if not row.changed],
            quiet_refusals=[row.name for row in rows if row.refused and not row.changed],
            pass_scale=seconds_scale(max((p.seconds for p in report.passes), default=0.0)),
            memory=memory_parts(report),
            absent=ABSENT,
        )
    )

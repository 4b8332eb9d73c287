"""The compile report as a page of text for a terminal: rich tables, and their plain rendering.

Names come from model files, so they enter as `Text`, never as rich markup.
"""

from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tvm_ext.report.terminal_tables import FlexibleTable, counted_lines
from tvm_ext.report.units import (
    ABSENT,
    Scale,
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    plain,
    seconds_scale,
)

if TYPE_CHECKING:
    from tvm_ext.report.compile_report import CompileReport
    from tvm_ext.report.records import KernelRecord, PassRecord

KERNELS_SHOWN = 10


def renderable(report: "CompileReport") -> RenderableType:
    """Return the summary as one rich renderable."""
    parts = [
        _title(report),
        _key_figures(report),
        Text(),
        _phases(report),
        _passes(report),
        _kernels(report),
        _host_steps(report),
        _misses(report),
        counted_lines(report.warnings, "warning"),
    ]
    return Group(*(part for part in parts if part is not None))


def _title(report: "CompileReport") -> Text:
    target = report.target.get("name", "")
    facts = [f"optimisation {report.opt_level}", f"target {target}" if target else ""]
    title = Text(plain(report.model_name), style="bold")
    title.append("  " + ", ".join(plain(fact) for fact in facts if fact), style="dim")
    return title


def _key_figures(report: "CompileReport") -> Table:
    graph, memory = report.graph, report.memory
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    table.add_row("Compile time", format_seconds(report.total_seconds))
    table.add_row(
        "ONNX nodes", _change(sum(graph.onnx_nodes.values()), sum(graph.prepared_nodes.values()))
    )
    table.add_row(
        "Relax calls", _change(sum(graph.relax_before.values()), sum(graph.relax_after.values()))
    )
    table.add_row("Kernel calls", _kernel_figure(report))
    if report.tuned_figure:
        table.add_row("Tuned records", report.tuned_figure)
    if graph.batch_norms_left:
        table.add_row("Batch norms left", f"{graph.batch_norms_left:,}")
    table.add_row("Peak memory", _memory_figure(report))
    table.add_row("Weights", format_bytes(memory.weights_bytes))
    if report.device is not None:
        table.add_row("Device code", report.device.code_figure)
        table.add_row("CUDA graphs", report.device.graph_figure)
    table.add_row("Estimated latency", _latency_figure(report))
    return table


def _change(before: int, after: int) -> str:
    return f"{before:,} → {after:,}"


def _kernel_figure(report: "CompileReport") -> str:
    figure = _change(report.graph.kernels_before_fusion, report.graph.kernels)
    per_anchor = report.graph.kernels_per_anchor
    notes = [format_count(len(report.kernels), "distinct kernel")]
    if per_anchor is not None:
        notes.append(f"{per_anchor:.2f} per convolution or matmul")
    return f"{figure}  ({', '.join(notes)})"


def _memory_figure(report: "CompileReport") -> str:
    memory = report.memory
    if memory.planned_peak_bytes is None or memory.unplanned_bytes is None:
        return report.not_known
    figure = format_bytes(memory.planned_peak_bytes)
    largest = ", for the largest sizes" if report.symbolic_sizes else ""
    return f"{figure}  ({format_bytes(memory.unplanned_bytes)} without reuse{largest})"


def _latency_figure(report: "CompileReport") -> str:
    if report.estimated_seconds is None:
        return report.not_known
    if report.estimated_seconds <= 0:
        return ABSENT
    return f"{format_seconds(report.estimated_seconds)}  (modelled, not measured)"


def _phases(report: "CompileReport") -> Table | None:
    if not report.phases:
        return None
    total = report.total_seconds
    scale = seconds_scale(total)
    table = FlexibleTable("Phases", "Phase", ">Time", ">Share")
    for phase in report.phases:
        share = format_percent(phase.seconds / total) if total > 0 else ABSENT
        table.add_row(Text(plain(phase.name)), scale(phase.seconds), share)
    table.add_section()
    table.add_row("Total", scale(total), format_percent(1.0) if total > 0 else ABSENT)
    return table


def _passes(report: "CompileReport") -> Table | None:
    if not report.passes:
        return None
    scale = seconds_scale(max(record.seconds for record in report.passes))
    table = FlexibleTable("Passes", "Pass", ">Time", ">Applied", ">Refused", "~Behind it")
    for record in report.passes:
        ran = not record.skipped
        table.add_row(
            Text(plain(record.name)),
            scale(record.seconds) if ran else ABSENT,
            f"{record.applied:,}" if ran else ABSENT,
            f"{record.refused:,}" if ran else ABSENT,
            Text(plain(_effect(record))),
        )
    table.add_section()
    total = sum(record.seconds for record in report.passes)
    table.add_row("Total", scale(total), f"{report.applied:,}", f"{report.refused:,}", "")
    return table


def _effect(record: "PassRecord") -> str:
    if record.skipped:
        return f"skipped: {record.skipped}"
    if not record.changed:
        return "no change"
    after = record.after
    if after is None:
        return "changed"
    counts = (format_count(after.operators, "operator"), format_count(after.kernels, "kernel"))
    return ", ".join([*counts, format_bytes(after.intermediate_bytes)])


def _kernels(report: "CompileReport") -> Table | None:
    if not report.kernels:
        return None
    ordered = report.kernels_by_cost
    shown, rest = ordered[:KERNELS_SHOWN], ordered[KERNELS_SHOWN:]
    total = report.estimated_seconds
    times = seconds_scale(ordered[0].total_seconds or 0.0)
    table = FlexibleTable(
        "Kernels by estimated time of one run (modelled)",
        *("~Computes", "Schedule", "From", ">Calls", ">Time", ">Share"),
    )
    for kernel in shown:
        names = Text(plain(_computes(kernel)))
        rows = (names, Text(plain(kernel.schedule)), Text(plain(kernel.source)))
        table.add_row(*rows, *_figures([kernel], times, total))
    if rest:
        table.add_row(f"{len(rest):,} more", "", "", *_figures(rest, times, total))
    table.add_section()
    table.add_row("Total", "", "", *_figures(ordered, times, total))
    return table


def _misses(report: "CompileReport") -> Text | None:
    missed = [kernel for kernel in report.kernels_by_cost if kernel.miss]
    if not missed:
        return None
    lines = Text(format_count(len(missed), "kernel") + " without a record", style="bold")
    for kernel in missed[:KERNELS_SHOWN]:
        lines.append(f"\n  - {plain(_computes(kernel))}: {plain(kernel.miss)}", style="not bold")
    if len(missed) > KERNELS_SHOWN:
        lines.append(f"\n  and {len(missed) - KERNELS_SHOWN} more", style="not bold")
    return lines


def _computes(kernel: "KernelRecord") -> str:
    if not kernel.origins:
        return kernel.name
    more = len(kernel.origins) - 1
    return kernel.origins[0] + (f" (+{more} more)" if more else "")


def _figures(
    kernels: "list[KernelRecord]", times: Scale, total: float | None
) -> tuple[str, str, str]:
    found = [kernel.total_seconds for kernel in kernels]
    known = [seconds for seconds in found if seconds is not None]
    seconds = sum(known) if len(known) == len(found) else None
    calls = sum(kernel.calls for kernel in kernels)
    share = format_percent(seconds / total) if seconds is not None and total else ABSENT
    return f"{calls:,}", times(seconds), share


def _host_steps(report: "CompileReport") -> Table | None:
    if not report.host:
        return None
    table = Table(box=box.SIMPLE_HEAD, title="On the host, around the compiled code")
    table.title_justify = "left"
    for column in ("Operator", "Node", "Why"):
        table.add_column(column, overflow="fold")
    for record in report.host:
        table.add_row(*(Text(plain(t)) for t in (record.operator, record.node, record.reason)))
    return table

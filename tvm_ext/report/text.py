"""The compile report as a page of text for a terminal: rich tables, and their plain rendering.

Names come from model files, so they enter as `Text`, never as rich markup.
"""

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tvm_ext.report.records import computes
from tvm_ext.report.terminal_tables import (
    FlexibleTable,
    ShortName,
    counted_lines,
    facts_table,
    reasons,
)
from tvm_ext.report.units import (
    ABSENT,
    Scale,
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    format_signed_percent,
    plain,
    seconds_scale,
)

if TYPE_CHECKING:
    from tvm_ext.report.compile_report import CompileReport
    from tvm_ext.report.records import KernelRecord, MemoryRecord, PassRecord

KERNELS_SHOWN = 10


def renderable(report: "CompileReport", verbose: bool = False) -> RenderableType:
    """Return the summary as one rich renderable.

    ``verbose`` adds names of kernels, and passes that changed nothing.
    """
    parts = [
        _title(report),
        _key_figures(report),
        Text(),
        _phases(report),
        _passes(report, verbose),
        _precision(report, verbose),
        _kernels(report, verbose),
        _host_steps(report),
        _collectives(report, verbose),
        _misses(report, verbose),
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
    graph, device = report.graph, report.device
    left = graph.batch_norms_left
    nodes = [sum(counts.values()) for counts in (graph.onnx_nodes, graph.prepared_nodes)]
    calls = [sum(counts.values()) for counts in (graph.relax_before, graph.relax_after)]
    return facts_table(
        {
            "Compile time": _compile_time(report),
            "Exact sizes": plain(report.specialized_figure),
            "ONNX nodes": _change(*nodes),
            "Relax calls": _change(*calls),
            "Kernel calls": _kernel_figure(report),
            "Tuned records": report.tuned_figure,
            "Batch norms left": f"{left:,}" if left else "",
            "Peak memory": _memory_figure(report),
            "Memory limit": ": ".join(filter(None, limit_figure(report.memory))),
            "Kernels' arrays": ", ".join(filter(None, kernel_arrays_figure(report.memory))),
            "Weights": format_bytes(report.memory.weights_bytes),
            "Micro-batches": plain(report.micro_batch_figure),
            "Precision": plain(report.precision.figure) if report.precision else "",
            "Devices": _devices_figure(report),
            "Device code": device.code_figure if device is not None else "",
            "CUDA graphs": device.graph_figure if device is not None else "",
            "Work of a run": _work_figure(report, "flops"),
            "Moved in a run": _work_figure(report, "bytes"),
            "Estimated latency": _latency_figure(report),
        }
    )


def _devices_figure(report: "CompileReport") -> str:
    """How the model is split, and what a device sends in a run; empty for one device."""
    sharding = report.sharding
    if sharding is None:
        return ""
    kinds = Counter(one.kind for one in sharding.collectives)
    calls = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "nothing exchanged"
    sent = ""
    if kinds:
        moved, seconds = int(sharding.moved_bytes), sharding.seconds
        sent = f"; {format_bytes(moved)} in {format_seconds(seconds)}, modelled"
    return f"{sharding.devices}, by {sharding.strategy}  ({calls}{sent})"


def _collectives(report: "CompileReport", verbose: bool) -> Table | None:
    """What the devices exchange, in the order of a run."""
    if report.sharding is None or not verbose or not report.sharding.collectives:
        return None
    numbers = (">Tensor", ">Sent by each", ">Modelled", ">Beside kernels")
    table = FlexibleTable("Values exchanged in a run", "Collective", "~Node", *numbers)
    for one in report.sharding.collectives:
        sizes = [format_bytes(int(size)) for size in (one.nbytes, one.moved_bytes)]
        figures = [*sizes, format_seconds(one.seconds), f"{one.kernels_beside:,}"]
        table.add_row(one.kind, ShortName(one.where), *figures)
    return table


def _compile_time(report: "CompileReport") -> str:
    figure = format_seconds(report.total_seconds)
    if report.is_from_cache:
        return f"{figure}  (from the cache)"
    found = report.kernels_from_cache
    return f"{figure}  (code for {found:,} kernels from the cache)" if found else figure


def _change(before: int, after: int) -> str:
    return f"{before:,} → {after:,}"


def _kernel_figure(report: "CompileReport") -> str:
    figure = _change(report.graph.kernels_before_fusion, report.graph.kernels)
    per_anchor = report.graph.kernels_per_anchor
    notes = [f"{len(report.kernels):,} distinct"]
    if per_anchor is not None:
        notes.append(f"{per_anchor:.2f} per convolution or matmul")
    return f"{figure}  ({', '.join(notes)})"


def _memory_figure(report: "CompileReport") -> str:
    memory = report.memory
    if memory.planned_peak_bytes is None or memory.unplanned_bytes is None:
        nominal = report.nominal
        if nominal is None or nominal.memory_bytes is None:
            return report.not_known
        formula = f"  ({nominal.memory_formula} bytes)" if nominal.memory_formula else ""
        return plain(f"{format_bytes(nominal.memory_bytes)} {nominal.where}{formula}")
    figure = format_bytes(memory.planned_peak_bytes)
    largest = ", for the largest sizes" if report.symbolic_sizes else ""
    own = memory.workspace_bytes
    arrays = f", {format_bytes(own)} of both for kernels' arrays" if own else ""
    return f"{figure}  ({format_bytes(memory.unplanned_bytes)} without reuse{arrays}{largest})"


def limit_figure(memory: "MemoryRecord") -> tuple[str, str]:
    """A memory limit, and what was done for it at which price; empty where there was none."""
    limit, needed = memory.limit, memory.planned_peak_bytes
    if limit is None or needed is None:
        return "", ""
    notes = [f"met, {format_bytes(needed)}"]
    if limit.calls_again:
        notes.append(f"{format_count(limit.calls_again, 'call')} again")
    if limit.is_reordered:
        notes.append("calls reordered")
    if limit.calls_again:
        notes.append(f"{format_signed_percent(limit.predicted_slowdown)} predicted")
    if needed < limit.unlimited_bytes:
        notes.append(f"{format_bytes(limit.unlimited_bytes)} without a limit")
    return format_bytes(limit.limit_bytes), ", ".join(notes)


def kernel_arrays_figure(memory: "MemoryRecord") -> tuple[str, str]:
    """What kernels allocate for themselves, and of each further thread; empty for nothing."""
    if not memory.kernel_bytes and not memory.kernel_thread_bytes:
        return "", ""
    more = memory.kernel_thread_bytes
    note = f"and {format_bytes(more)} for each further thread" if more else ""
    return format_bytes(memory.kernel_bytes or 0), note


def _work_figure(report: "CompileReport", what: str) -> str:
    """The ``flops`` or ``bytes`` of a run whose sizes it decides, at nominal ones and for any."""
    nominal = report.nominal
    if nominal is None or nominal.work is None:
        return ""
    formula = nominal.work.formula(what, nominal.sizes)
    return plain(f"{nominal.work.figure(what)} {nominal.where}  ({formula})")


def _latency_figure(report: "CompileReport") -> str:
    nominal = report.nominal
    if report.estimated_seconds is None and nominal and nominal.estimated_seconds:
        figure = format_seconds(nominal.estimated_seconds)
        return plain(f"{figure} {nominal.where}  (modelled, not measured)")
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


def _passes(report: "CompileReport", verbose: bool) -> RenderableType | None:
    shown = [record for record in report.passes if record.changed or verbose]
    if not report.passes:
        return None
    scale = seconds_scale(max(record.seconds for record in report.passes))
    numbers = (">Time", ">Applied", ">Refused", ">Operators", ">Kernels", ">Intermediates@90")
    table = FlexibleTable("Passes, and the module behind each", "~Pass", *numbers)
    for record in shown:
        table.add_row(ShortName(record.name), *_pass_figures(record, scale))
    table.add_section()
    total = sum(record.seconds for record in report.passes)
    table.add_row("Total", scale(total), f"{report.applied:,}", f"{report.refused:,}", "", "", "")
    left = [record for record in report.passes if record not in shown]
    return Group(table, _no_news(left)) if left else table


def _pass_figures(record: "PassRecord", scale: Scale) -> list[str]:
    if record.skipped:
        return [ABSENT, ABSENT, ABSENT, "skipped", "", ""]
    figures = [scale(record.seconds), f"{record.applied:,}", f"{record.refused:,}"]
    after = record.after
    if not record.changed or after is None:
        return [*figures, "changed" if record.changed else "no change", "", ""]
    sizes = (f"{after.operators:,}", f"{after.kernels:,}", format_bytes(after.intermediate_bytes))
    return [*figures, *sizes]


def _precision(report: "CompileReport", verbose: bool) -> Table | None:
    """Which products are wide, and with ``verbose`` all of them."""
    nodes = report.precision.nodes if report.precision is not None else []
    shown = [node for node in nodes if node.reason or verbose]
    if not shown:
        return None
    table = FlexibleTable("Precision of products", "~Node", "Type", ">Bound", "~Why it is wide")
    for node in shown:
        bound = ABSENT if node.bound is None else f"{node.bound:.1e}"
        table.add_row(ShortName(node.name), node.dtype, bound, plain(node.reason))
    return table


def _no_news(passes: "list[PassRecord]") -> Text:
    """How many passes are not listed, and which of them would have something to say."""
    skipped = [record.name for record in passes if record.skipped]
    refused = [record.name for record in passes if record.refused]
    text = f"{format_count(len(passes), 'more pass', 'more passes')} changed nothing; -v lists them"
    if refused:
        text += f"; matches left alone by {', '.join(dict.fromkeys(refused))}"
    if skipped:
        text += f"; skipped: {', '.join(dict.fromkeys(skipped))}"
    return Text(f"{plain(text)}\n", style="dim")


def _kernels(report: "CompileReport", verbose: bool) -> Table | None:
    if not report.kernels:
        return None
    ordered = report.kernels_by_cost
    shown, rest = ordered[:KERNELS_SHOWN], ordered[KERNELS_SHOWN:]
    total = report.seconds_of_run
    times = seconds_scale(ordered[0].seconds_of_run or 0.0)
    where = f" {report.nominal.where}" if report.nominal and total is not None else ""
    title = plain(f"Kernels by estimated time of one run{where} (modelled)")
    names = ["~Kernel"] if verbose else []
    names += ["~Computes", "~Schedule"]
    numbers = [">Calls", ">Time", ">Share"]
    if total is None:
        title, numbers = "Kernels", numbers[:1]
    table = FlexibleTable(title, *names, *numbers)

    def add(cells: list[str], kernels: "list[KernelRecord]") -> None:
        words = [*cells, *[""] * (len(names) - len(cells))]
        figures = _figures(kernels, times, total)[: len(numbers)]
        table.add_row(*(ShortName(word) for word in words), *figures)

    for kernel in shown:
        mangled = [kernel.name] if verbose else []
        add([*mangled, computes(kernel), kernel.schedule_and_source], [kernel])
    if rest:
        add([f"{len(rest):,} more"], rest)
    table.add_section()
    add(["Total"], ordered)
    return table


def _misses(report: "CompileReport", verbose: bool) -> RenderableType | None:
    missed = [(computes(kernel), kernel.miss) for kernel in report.kernels_by_cost if kernel.miss]
    if not missed:
        return None
    heading = format_count(len(missed), "kernel") + " without a record"
    return Group(Text(heading, style="bold"), *reasons("-", missed, verbose))


def _figures(
    kernels: "list[KernelRecord]", times: Scale, total: float | None
) -> tuple[str, str, str]:
    found = [kernel.seconds_of_run for kernel in kernels]
    known = [seconds for seconds in found if seconds is not None]
    seconds = sum(known) if len(known) == len(found) else None
    calls = sum(kernel.calls for kernel in kernels)
    share = format_percent(seconds / total) if seconds is not None and total else ABSENT
    return f"{calls:,}", times(seconds), share


def _host_steps(report: "CompileReport") -> Table | None:
    if not report.host:
        return None
    title = "On the host, around the compiled code"
    table = FlexibleTable(title, "Operator", "~Node", "=Why")
    for record in report.host:
        table.add_row(plain(record.operator), ShortName(record.node), Text(plain(record.reason)))
    return table

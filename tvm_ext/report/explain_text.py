"""Explanations of kernels for a terminal. Names come from model files: they enter as `Text`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tvm_ext.report.records import computes
from tvm_ext.report.terminal_tables import FlexibleTable, ShortName, facts_table, reasons
from tvm_ext.report.units import (
    ABSENT,
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
    from tvm_ext.compiler.explain_model import (
        KernelExplanation,
        KernelRoofline,
        ModelExplanation,
    )
    from tvm_ext.tir_schedules.analysis.memory_access import LoopStride, MemoryAccess

KERNELS_SHOWN = 20
ACCESSES_SHOWN = 12

_UNIT_TITLES = {"lines": ">Lines", "sectors": ">Sectors", "cycles": ">Cycles"}


def kernel_list(found: "ModelExplanation", shown: int, verbose: bool = False) -> RenderableType:
    """Return the kernels by modelled time of a run, each in a line."""
    scale = seconds_scale(max((one.run_seconds for one in found.kernels), default=0.0))
    total = sum(one.run_seconds for one in found.kernels)
    names = ["~Kernel"] if verbose else []
    columns = ("~Computes", "Schedule@80", ">Calls", ">Time", ">Share", ">Roofline@100", "Limit")
    table = FlexibleTable("Kernels by time of one run (modelled)", *names, *columns)
    for one in found.kernels[:shown]:
        record, roofline = one.record, one.roofline
        table.add_row(
            *([ShortName(record.name)] if verbose else []),
            ShortName(computes(record)),
            ShortName(record.schedule),
            f"{record.calls:,}",
            scale(one.run_seconds if one.scheduled_seconds is not None else None),
            format_percent(one.run_seconds / total) if total else ABSENT,
            scale(record.calls * roofline.seconds if roofline is not None else None),
            roofline.limit if roofline is not None else ABSENT,
        )
    more = len(found.kernels) - shown
    rest = [Text(f"{format_count(more, 'more kernel')}")] if more > 0 else []
    return Group(_title(found), Text(), table, *rest)


def kernel_parts(
    found: "ModelExplanation", kernels: "Sequence[KernelExplanation]", verbose: bool = False
) -> list[RenderableType]:
    """Return for each of ``kernels`` what it does, its accesses and its roofline."""
    parts: list[RenderableType] = [_title(found)]
    for one in kernels:
        parts += [Text(), _facts(one)]
        if one.accesses:
            parts += [Text(), *_accesses(one.accesses, verbose)]
        refused = [text.partition(": ")[::2] for text in one.record.refusals]
        if verbose and refused:
            parts += [Text("Templates that were not applicable", style="bold")]
            parts += reasons("·", [(name, reason) for name, reason in refused], verbose)
    return parts


def _title(found: "ModelExplanation") -> Text:
    facts = f"  optimisation {found.opt_level}, target {found.machine.name}; modelled, not measured"
    text = Text(plain(found.model), style="bold").append(plain(facts), "not bold dim")
    if found.sizes:
        sizes = ", ".join(f"{name}={size}" for name, size in found.sizes.items())
        text.append("\n").append(plain(f"Figures for {sizes}"), "not bold dim")
    return text


def _facts(one: "KernelExplanation") -> Table:
    record, roofline = one.record, one.roofline
    decided = ", ".join(f"{name}={value}" for name, value in one.decisions.items())
    facts = {
        "Computes": "\n".join(dict.fromkeys(record.origins)),
        "Kernel": f"{record.name}, {format_count(record.calls, 'call')}",
        "Schedule": f"{record.schedule_and_source}: {record.reason}",
        "Decisions": decided,
    }
    if roofline is not None:
        facts |= _roofline_facts(roofline)
    if one.scheduled_seconds is not None:
        facts["As scheduled"] = _scheduled(one.scheduled_seconds, roofline)
    if one.unknown:
        facts["Accesses"] = f"not known: {one.unknown}"
    return facts_table(facts)


def _roofline_facts(roofline: "KernelRoofline") -> dict[str, str]:
    work = roofline.work
    flops, rate = flops_scale(work.flops), flops_scale(roofline.peak_flops)
    intensity = work.flops / work.bytes if work.bytes else 0.0
    arithmetic = format_seconds(roofline.arithmetic_seconds)
    memory = format_seconds(roofline.memory_seconds)
    return {
        "Work": f"{flops(work.flops)} in {work.dtype}, {format_bytes(work.bytes)} of tensors, "
        f"{intensity:.3g} operations a byte",
        "Roofline": f"{format_seconds(roofline.seconds)}, limited by {roofline.limit}: "
        f"arithmetic {arithmetic} at {rate(roofline.peak_flops)}/s, "
        f"memory {memory} at {1e-9 * roofline.bandwidth:,.1f} GB/s",
    }


def _scheduled(seconds: float, roofline: "KernelRoofline | None") -> str:
    text = format_seconds(seconds)
    if roofline is None or not roofline.seconds:
        return text
    return f"{text}, {seconds / roofline.seconds:.2f} x the roofline"


def _accesses(accesses: "Sequence[MemoryAccess]", verbose: bool) -> list[RenderableType]:
    """One line an access; arrays within a kernel for a CPU only where ``verbose``."""
    chosen = [one for one in accesses if verbose or one.memory != "local"]
    shown = chosen if verbose else chosen[:ACCESSES_SHOWN]
    parts: list[RenderableType] = []
    for memory in dict.fromkeys(one.memory for one in shown):
        rows = [one for one in shown if one.memory == memory]
        parts.append(_access_table(memory, rows))
    hidden = len(accesses) - len(shown)
    if hidden:
        parts.append(Text(f"{format_count(hidden, 'other access', 'other accesses')} (--verbose)"))
    return parts


def _access_table(memory: str, rows: "Sequence[MemoryAccess]") -> Table:
    unit = rows[0].unit
    fetched = "into L1" if unit == "lines" else "asked for"
    title = f"Accesses of {memory} memory; bytes {fetched}, and their ratio to the least"
    reuse = ["Reuse@110"] if unit == "lines" else []
    shown = _UNIT_TITLES[unit]
    numbers = (">Runs@110", shown, ">Fewest@100", ">Bytes", ">Least@100", ">Ratio")
    table = FlexibleTable(title, "~Access", "Pattern", "=Strides, elements", *numbers, *reuse)
    scale = bytes_scale(max(one.fetched_bytes for one in rows))
    for one in rows:
        table.add_row(
            ShortName(one.tensor, "store " if one.is_store else "load "),
            one.pattern,
            Text(_strides(one.strides)),
            f"{one.runs:,.0f}",
            f"{one.units:.3g}",
            f"{one.least_units:.3g}",
            scale(one.fetched_bytes),
            scale(one.least_bytes),
            f"{one.overfetch:.2f}",
            *([_reuse(one)] if reuse else []),
        )
    return table


def _strides(strides: "Sequence[LoopStride]") -> str:
    return "  ".join(
        f"{one.name}[{one.extent:,.4g}] {_number(one.elements)}"
        for one in strides
        if one.extent > 1
    )


def _number(step: float | None) -> str:
    return "varies" if step is None else f"{step:,.6g}"


def _reuse(one: "MemoryAccess") -> str:
    if not one.reuse:
        return ABSENT
    nearest = one.reuse[0]
    return f"{nearest.level}, after {format_bytes(nearest.distance_bytes)}"

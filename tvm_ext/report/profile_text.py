"""A profile for a terminal. Names come from model files: they enter as `ShortName` or `Text`."""

from typing import TYPE_CHECKING, TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tvm_ext.report.profile import Timed, timed_together
from tvm_ext.report.records import computes
from tvm_ext.report.terminal_tables import FlexibleTable, ShortName, facts_table
from tvm_ext.report.units import (
    ABSENT,
    Scale,
    flops_scale,
    format_count,
    format_percent,
    format_seconds,
    plain,
    seconds_scale,
)

if TYPE_CHECKING:
    from tvm_ext.report.profile import KernelTime, Profile

KERNELS_SHOWN = 10
NOT_KNOWN = "not known"
MODELLED = "modelled, not measured"

Figure: TypeAlias = tuple[str, str, str]
"""A name, a value, and what is to be said of it."""


def renderable(
    profile: "Profile", shown: int = KERNELS_SHOWN, verbose: bool = False
) -> RenderableType:
    """Return the summary: key figures, and so many kernels; ``verbose`` adds their names."""
    facts = {"Inputs": ", ".join(profile.inputs)}
    if profile.program:
        facts["Program"] = plain(profile.program)
    for name, value, note in key_figures(profile):
        facts[name] = f"{value}  ({note})" if note else value
    parts: list[RenderableType] = [_title(profile), facts_table(facts)]
    if profile.kernels:
        parts += [Text(), _kernels(profile, shown, verbose)]
    chosen = [kernel for kernel in profile.kernels[:shown] if kernel.versions]
    if chosen:
        parts += [Text(), _versions(chosen)]
    return Group(*parts)


def _title(profile: "Profile") -> Text:
    facts = f"profile, optimisation {profile.opt_level}, target {profile.target}"
    return Text(plain(profile.model), style="bold").append(f"  {plain(facts)}", "not bold dim")


def key_figures(profile: "Profile") -> list[Figure]:
    """Return what is known of the whole run."""
    runs = format_count(profile.repeat, "run")
    calls = format_count(profile.total.calls, "call")
    figures = [
        ("One run", _time(profile.run_microseconds), f"median of {runs}, measured without a hook"),
        ("Kernels", _time(profile.kernel_microseconds), f"{calls}; the hook adds time to each"),
    ]
    if profile.host_steps:
        steps = format_count(len(profile.host_steps), "step")
        host = sum(step.microseconds for step in profile.host_steps)
        figures.append(("On the host", _time(host), f"{steps}, measured"))
    figures += [_estimate(profile), _arithmetic(profile), _memory(profile)]
    figures.append(("Peaks", profile.peaks_source, ""))
    return figures


def _time(microseconds: float) -> str:
    return format_seconds(1e-6 * microseconds)


def _estimate(profile: "Profile") -> Figure:
    modelled = profile.total.modelled_microseconds
    if modelled is None:
        return "Estimated latency", NOT_KNOWN, not_known(profile)
    return "Estimated latency", _time(modelled), MODELLED


def not_known(profile: "Profile") -> str:
    """Return why the work of a run is not known."""
    if not profile.total.calls:
        return "no kernel ran"
    return f"the run decides the sizes of {format_count(profile.unknown_calls, 'call')}"


def _arithmetic(profile: "Profile") -> Figure:
    total, peaks = profile.total, profile.peaks
    rate = _flops(1e9 * total.gflops) if total.gflops is not None else NOT_KNOWN
    peak = f"{_flops(peaks.flops)} in float32" if peaks is not None else ""
    return "Arithmetic", rate, _of_peak(total.flops_share, peak)


def _memory(profile: "Profile") -> Figure:
    total, peaks = profile.total, profile.peaks
    rate = f"{total.gbs:,.1f} GB/s" if total.gbs is not None else NOT_KNOWN
    peak = f"{1e-9 * peaks.bytes:,.1f} GB/s outside of caches" if peaks is not None else ""
    return "Memory", rate, _of_peak(total.bytes_share, peak)


def _flops(rate: float) -> str:
    return f"{flops_scale(rate)(rate)}/s"


def _of_peak(share: float | None, peak: str) -> str:
    return f"{format_percent(share)} of the peak, {peak}" if share is not None else ""


def _kernels(profile: "Profile", shown: int, verbose: bool) -> Table:
    """One line a kernel; of wide terminals also schedules, and rates beside their shares."""
    title = "Kernels by measured time of one run"
    names = ["~Kernel"] if verbose else []
    names += ["~Computes", "Schedule@100"]
    numbers = [">Calls", ">Time", ">Share"]
    if any(kernel.cost is not None for kernel in profile.kernels):
        title += "; FLOP/s and bytes/s as shares of the peaks"
        numbers += [">Modelled@66", ">GFLOP/s@115", ">FLOP/s@75", ">GB/s@115", ">Bytes/s@75"]
    table = FlexibleTable(title, *names, *numbers)
    everything = timed_together(profile.calls)
    times = seconds_scale(1e-6 * profile.kernels[0].microseconds)

    def add(cells: list[str], time: Timed) -> None:
        words = [*cells, *[""] * (len(names) - len(cells))]
        figures = _figures(time, everything.microseconds, times)[: len(numbers)]
        table.add_row(*(ShortName(word) for word in words), *figures)

    for kernel in profile.kernels[:shown]:
        mangled = [kernel.kernel] if verbose else []
        add([*mangled, computes(kernel), kernel.schedule], kernel)
    rest = profile.kernels[shown:]
    if rest:
        add([f"{len(rest):,} more"], timed_together(rest))
    table.add_section()
    add(["Total"], everything)
    return table


def _versions(kernels: list["KernelTime"]) -> Table:
    """Which versions ran, of kernels whose code has several."""
    table = FlexibleTable("Versions that ran, with their calls", "~Computes", "=Versions")
    for kernel in kernels:
        table.add_row(ShortName(computes(kernel)), Text(plain(kernel.versions_figure)))
    return table


def _figures(time: Timed, total_microseconds: float, times: Scale) -> list[str]:
    modelled = time.modelled_microseconds
    return [
        f"{time.calls:,}",
        times(1e-6 * time.microseconds),
        format_percent(time.microseconds / total_microseconds) if total_microseconds else ABSENT,
        times(1e-6 * modelled if modelled is not None else None),
        _number(time.gflops),
        _share(time.flops_share),
        _number(time.gbs),
        _share(time.bytes_share),
    ]


def _number(rate: float | None) -> str:
    return ABSENT if rate is None else f"{rate:,.1f}"


def _share(share: float | None) -> str:
    return ABSENT if share is None else format_percent(share)

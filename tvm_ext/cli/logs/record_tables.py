"""Tables of ``tvm-ext logs``: what a folder of records holds."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from tvm_ext.cli import tables
from tvm_ext.report.units import format_percent, format_seconds
from tvm_ext.tuning.logs.database_files import target_text

if TYPE_CHECKING:
    from tvm_ext.tuning.logs.diff import Difference
    from tvm_ext.tuning.logs.stats import FolderFigures, SpreadFigures
    from tvm_ext.tuning.logs.summary import BestSchedule, KernelSummary
    from tvm_ext.tuning.logs.verify import Verified


def summaries_table(summaries: "list[KernelSummary]") -> Table:
    """What was reached for each kernel on each target."""
    # Eleven columns: no space between them is to spare.
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("Kernel", "Origin", "Target"):
        table.add_column(name, overflow="fold")
    for name in ("Trials", "Failed", "Default", "Best", "Gain"):
        table.add_column(name, justify="right")
    table.add_column("Schedule", overflow="fold")
    table.add_column("Spread", justify="right")
    table.add_column("Confirmed")
    for summary in summaries:
        times, is_modelled = summary.times, summary.is_modelled
        table.add_row(
            tables.text(summary.name),
            tables.text(tables.origin_cell(summary.origins)),
            tables.text(target_text(summary.target)),
            str(summary.trials),
            tables.counts_cell(summary.failed),
            tables.seconds_cell(times.default_seconds, is_modelled),
            tables.seconds_cell(times.best_seconds, is_modelled),
            tables.gain_cell(times.gain, is_modelled),
            tables.text(times.schedule or tables.ABSENT),
            tables.spread_cell(times.spread),
            _confirmed(summary),
        )
    return table


def _confirmed(summary: "KernelSummary") -> str:
    if summary.is_modelled:
        return tables.ABSENT
    return "yes" if summary.measured.is_confirmed else "no"


def best_table(schedules: "list[BestSchedule]") -> Table:
    """The best record of each kernel on each target."""
    table = Table("Kernel", "Hash", "Target", box=box.SIMPLE_HEAD)
    table.add_column("Time", justify="right")
    table.add_column("Schedule", overflow="fold")
    for best in schedules:
        table.add_row(
            tables.text(best.name),
            best.kernel,
            tables.text(target_text(best.target)),
            tables.seconds_cell(best.recorded.seconds, best.is_modelled),
            tables.text(best.recorded.describe()),
        )
    return table


def figures_table(figures: "FolderFigures") -> Table:
    """What a folder holds, in numbers."""
    rate = figures.trials_per_minute
    facts = {
        "Trials": f"{figures.trials} ({tables.counts_cell(figures.statuses)})",
        "For": tables.counts_cell(figures.purposes),
        "Unusable lines": str(figures.unreadable_lines),
        "Time": format_seconds(figures.wall_seconds),
        "Trials a minute": f"{rate:.1f}" if rate is not None else tables.ABSENT,
        "Building": f"{format_seconds(figures.build_seconds)}, added up",
        "Running": f"{format_seconds(figures.run_seconds)}, added up",
        "Spread": _spread(figures.spread) if figures.spread is not None else "",
        "Kernels": f"{figures.kernels} with trials, {figures.workloads} with workloads",
        "Records": f"{figures.records}"
        + f" ({figures.modelled_records} modelled)" * (figures.modelled_records > 0),
        "Targets": _listed(figures.targets),
        "Hosts": _listed(figures.hosts),
        "Devices": _listed(figures.devices),
        "Models": _listed(figures.models),
        "Versions": "\n".join(
            ", ".join(f"{name} {found}" for name, found in one.items()) for one in figures.versions
        ),
    }
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in facts.items():
        lines = [tables.text(line) for line in (value or tables.ABSENT).splitlines()]
        table.add_row(name, lines[0])
        for line in lines[1:]:
            table.add_row("", line)
    return table


def sessions_table(figures: "FolderFigures") -> Table:
    """How much each session tried, and how fast."""
    table = Table("Session", "Begun", box=box.SIMPLE_HEAD)
    for name in ("Trials", "Time", "A minute", "Building", "Running"):
        table.add_column(name, justify="right")
    for session in figures.sessions:
        rate = session.trials_per_minute
        table.add_row(
            tables.text(session.run),
            session.begun or tables.ABSENT,
            str(session.trials),
            format_seconds(session.wall_seconds),
            f"{rate:.1f}" if rate is not None else tables.ABSENT,
            format_seconds(session.build_seconds),
            format_seconds(session.run_seconds),
        )
    return table


def _spread(spread: "SpreadFigures") -> str:
    return (
        f"half below {format_percent(spread.half)}, three quarters below "
        f"{format_percent(spread.three_quarters)}, largest {format_percent(spread.largest)}"
    )


def _listed(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{name} ({count})" for name, count in counts.items())


def differences_table(differences: "list[Difference]") -> Table:
    """Kernels whose best times are compared."""
    table = Table("Kernel", "Target", box=box.SIMPLE_HEAD)
    for name in ("Before", "After", "Change", "Noise"):
        table.add_column(name, justify="right")
    table.add_column("Verdict")
    for difference in differences:
        change = difference.change
        table.add_row(
            tables.text(difference.summary.name),
            tables.text(target_text(difference.summary.target)),
            tables.seconds_cell(difference.before_seconds, difference.is_modelled),
            tables.seconds_cell(difference.after_seconds, difference.is_modelled),
            f"{change:+.1%}" if change is not None else tables.ABSENT,
            tables.spread_cell(difference.noise),
            difference.verdict,
        )
    return table


def verified_table(verified: "list[Verified]") -> Table:
    """Records that were built and timed again."""
    table = Table("Kernel", box=box.SIMPLE_HEAD)
    table.add_column("Schedule", overflow="fold")
    table.add_column("Status")
    for name in ("Default", "Record", "Gain"):
        table.add_column(name, justify="right")
    table.add_column("What happened", overflow="fold")
    for one in verified:
        table.add_row(
            tables.text(one.best.name),
            tables.text(one.best.recorded.describe()),
            one.status,
            tables.seconds_cell(one.default_seconds),
            tables.seconds_cell(one.seconds),
            tables.gain_cell(one.gain),
            tables.text(one.message),
        )
    return table

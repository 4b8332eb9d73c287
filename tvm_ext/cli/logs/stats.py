"""``tvm-ext logs stats``."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tvm_ext.cli import options
from tvm_ext.cli.logs.arguments import Folder
from tvm_ext.cli.logs.problem_lines import print_problems

if TYPE_CHECKING:
    from rich.table import Table

    from tvm_ext.tuning.logs.stats import Figures, SpreadFigures

EXAMPLE = "Example: tvm-ext logs stats records"


def stats_command(folder: Folder, json_output: options.Json = False) -> None:
    """Print how much was tried, how fast, how it ended, and where it ran."""
    from dataclasses import asdict

    from tvm_ext.cli import output as out
    from tvm_ext.tuning.logs.folder import read_folder
    from tvm_ext.tuning.logs.stats import figures_of

    records = read_folder(folder)
    figures = figures_of(records)
    print_problems(records.problems)
    if json_output:
        out.print_json(asdict(figures))
    else:
        out.print_rich(_facts(figures), _sessions(figures))


def _facts(figures: "Figures") -> "Table":
    from rich import box
    from rich.table import Table

    from tvm_ext.cli.logs import cells
    from tvm_ext.report.units import format_seconds

    rate = figures.trials_per_minute
    facts = {
        "Trials": f"{figures.trials} ({cells.counts_cell(figures.statuses)})",
        "For": cells.counts_cell(figures.purposes),
        "Unusable lines": str(figures.unreadable_lines),
        "Time": format_seconds(figures.wall_seconds),
        "Trials a minute": f"{rate:.1f}" if rate is not None else cells.ABSENT,
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
    table = Table(box=None, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in facts.items():
        lines = [cells.text(line) for line in (value or cells.ABSENT).splitlines()]
        table.add_row(name, lines[0])
        for line in lines[1:]:
            table.add_row("", line)
    table.box = box.SIMPLE
    return table


def _sessions(figures: "Figures") -> "Table":
    from rich import box
    from rich.table import Table

    from tvm_ext.cli.logs import cells
    from tvm_ext.report.units import format_seconds

    table = Table("Session", "Begun", box=box.SIMPLE_HEAD)
    for name in ("Trials", "Time", "A minute", "Building", "Running"):
        table.add_column(name, justify="right")
    for session in figures.sessions:
        rate = session.trials_per_minute
        table.add_row(
            cells.text(session.run),
            session.begun or cells.ABSENT,
            str(session.trials),
            format_seconds(session.wall_seconds),
            f"{rate:.1f}" if rate is not None else cells.ABSENT,
            format_seconds(session.build_seconds),
            format_seconds(session.run_seconds),
        )
    return table


def _spread(spread: "SpreadFigures") -> str:
    from tvm_ext.report.units import format_percent

    return (
        f"half below {format_percent(spread.half)}, three quarters below "
        f"{format_percent(spread.three_quarters)}, largest {format_percent(spread.largest)}"
    )


def _listed(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{name} ({count})" for name, count in counts.items())

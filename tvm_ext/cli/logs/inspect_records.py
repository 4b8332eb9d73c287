"""``tvm-ext logs show``, ``best``, ``stats``, ``diff`` and ``verify``: what a folder of records
holds.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_ext.cli import options
from tvm_ext.cli.options import Folder, OneTarget
from tvm_ext.cli.stderr_lines import print_problems

if TYPE_CHECKING:
    from rich.table import Table

    from tvm_ext.tuning.logs.diff import Difference
    from tvm_ext.tuning.logs.stats import SpreadFigures
    from tvm_ext.tuning.logs.summary import BestSchedule, KernelSummary
    from tvm_ext.tuning.logs.verify import Verified


SHOW_EXAMPLE = "Example: tvm-ext logs show records --kernel conv"


def show_command(
    folder: Folder,
    target: OneTarget = None,
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            metavar="TEXT",
            show_default="all",
            help="Only kernels with this in their name, hash or ONNX nodes.",
        ),
    ] = None,
    json_output: options.Json = False,
) -> None:
    """Show what was reached for each kernel on each target.

    Times of a model are marked as modelled, and stand only where nothing was measured.
    """
    from tvm_ext.cli import output as out
    from tvm_ext.tuning.logs.record_folder import read_folder
    from tvm_ext.tuning.logs.summary import chosen_summaries

    records = read_folder(folder)
    found = chosen_summaries(records, target, kernel)
    print_problems(records.problems)
    if json_output:
        out.print_json([summary.to_json() for summary in found])
    elif found:
        out.print_rich(_show_table(found))
    else:
        out.print_text("There are no trials and no records.")


def _show_table(summaries: "list[KernelSummary]") -> "Table":
    from rich import box
    from rich.table import Table

    from tvm_ext.cli import tables
    from tvm_ext.tuning.logs.database_files import target_text

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
    from tvm_ext.cli import tables

    if summary.is_modelled:
        return tables.ABSENT
    return "yes" if summary.measured.is_confirmed else "no"


# ``tvm-ext logs best``.


BEST_EXAMPLE = "Example: tvm-ext logs best records --json"


def best_command(folder: Folder, json_output: options.Json = False) -> None:
    """Show the best record of each kernel on each target; with --json, its trace too."""
    from tvm_ext.cli import output as out
    from tvm_ext.tuning.logs.record_folder import read_folder
    from tvm_ext.tuning.logs.summary import best_schedules

    records = read_folder(folder)
    found = best_schedules(records)
    print_problems(records.problems)
    if json_output:
        out.print_json([_json(best) for best in found])
    elif found:
        out.print_rich(_best_table(found))
    else:
        out.print_text("There are no records.")


def _json(best: "BestSchedule") -> dict[str, Any]:
    from tvm_ext.tuning.logs.database_files import target_text
    from tvm_ext.tuning.logs.summary import plain_target

    return {
        "kernel": best.kernel,
        "name": best.name,
        "origins": best.origins,
        "target": target_text(best.target),
        "target_attributes": plain_target(best.target),
        "seconds": best.recorded.seconds,
        "is_modelled": best.is_modelled,
        "template": best.recorded.template,
        "decisions": dict(best.recorded.decisions),
        "trace": best.record.trace,
    }


def _best_table(schedules: "list[BestSchedule]") -> "Table":
    from rich import box
    from rich.table import Table

    from tvm_ext.cli import tables
    from tvm_ext.tuning.logs.database_files import target_text

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


# ``tvm-ext logs stats``.


if TYPE_CHECKING:
    from rich.table import Table

    from tvm_ext.tuning.logs.stats import FolderFigures, SpreadFigures

STATS_EXAMPLE = "Example: tvm-ext logs stats records"


def stats_command(folder: Folder, json_output: options.Json = False) -> None:
    """Print how much was tried, how fast, how it ended, and where it ran."""
    from dataclasses import asdict

    from tvm_ext.cli import output as out
    from tvm_ext.tuning.logs.record_folder import read_folder
    from tvm_ext.tuning.logs.stats import figures_of

    records = read_folder(folder)
    figures = figures_of(records)
    print_problems(records.problems)
    if json_output:
        out.print_json(asdict(figures))
    else:
        out.print_rich(_facts(figures), _sessions(figures))


def _facts(figures: "FolderFigures") -> "Table":
    from rich import box
    from rich.table import Table

    from tvm_ext.cli import tables
    from tvm_ext.report.units import format_seconds

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
    table = Table(box=None, show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in facts.items():
        lines = [tables.text(line) for line in (value or tables.ABSENT).splitlines()]
        table.add_row(name, lines[0])
        for line in lines[1:]:
            table.add_row("", line)
    table.box = box.SIMPLE
    return table


def _sessions(figures: "FolderFigures") -> "Table":
    from rich import box
    from rich.table import Table

    from tvm_ext.cli import tables
    from tvm_ext.report.units import format_seconds

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
    from tvm_ext.report.units import format_percent

    return (
        f"half below {format_percent(spread.half)}, three quarters below "
        f"{format_percent(spread.three_quarters)}, largest {format_percent(spread.largest)}"
    )


def _listed(counts: Mapping[str, int]) -> str:
    return "; ".join(f"{name} ({count})" for name, count in counts.items())


# ``tvm-ext logs diff``.


DIFF_EXAMPLE = "Example: tvm-ext logs diff last-week today --fail-on-slower"


def diff_command(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Folder of records.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Folder of records.")],
    fail_on_slower: Annotated[
        bool,
        typer.Option("--fail-on-slower", help="Exit with 1 if a kernel is slower beyond noise."),
    ] = False,
    json_output: options.Json = False,
) -> None:
    """Compare the best times of two folders, kernel by kernel and target by target.

    Equal are times that differ by no more than the larger of their two spreads, or 3 %. Measured
    times are never compared with those of a model.
    """
    from tvm_ext.cli import output as out
    from tvm_ext.tuning.logs.diff import VERDICTS, diff_records, difference_json
    from tvm_ext.tuning.logs.record_folder import read_folder

    old, new = read_folder(before), read_folder(after)
    found = diff_records(old, new)
    print_problems([*old.problems, *new.problems])
    if json_output:
        out.print_json([difference_json(difference) for difference in found])
    else:
        counts = Counter(difference.verdict for difference in found)
        listed = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
        out.print_rich(_diff_table(found), listed or "Both are empty.")
    if fail_on_slower and any(difference.verdict == "slower" for difference in found):
        raise typer.Exit(1)


def _diff_table(differences: "list[Difference]") -> "Table":
    from rich import box
    from rich.table import Table

    from tvm_ext.cli import tables
    from tvm_ext.tuning.logs.database_files import target_text

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


# ``tvm-ext logs verify``.


VERIFY_EXAMPLE = "Example: tvm-ext logs verify records"


def verify_command(
    folder: Folder,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            help="What this machine is: 'cpu', a preset, or a .toml file. Its code runs here.",
        ),
    ] = "cpu",
    threads: options.Threads = None,
    json_output: options.Json = False,
) -> None:
    """Build the best records again, check their numbers, and time them beside the defaults.

    The exit code is 1 if a record for this machine does not work.
    """
    from tvm_ext.cli import output as out
    from tvm_ext.cli.options import CompileOptions
    from tvm_ext.passes.pipeline import build_pipeline
    from tvm_ext.tune_model import kernel_finish
    from tvm_ext.tuning.logs.record_folder import read_folder
    from tvm_ext.tuning.logs.verify import verify_records

    machine = CompileOptions.parsed(target, threads=threads).machine()
    records = read_folder(folder)
    finish = kernel_finish(build_pipeline("O3"))
    found = list(verify_records(records, machine, finish))
    print_problems(records.problems)
    if json_output:
        out.print_json([one.to_json() for one in found])
    else:
        counts = Counter(one.status for one in found)
        listed = ", ".join(f"{count} {status}" for status, count in counts.items())
        out.print_rich(_verify_table(found), listed or "There are no records.")
    if any(one.has_failed for one in found):
        raise typer.Exit(1)


def _verify_table(verified: "list[Verified]") -> "Table":
    from rich import box
    from rich.table import Table

    from tvm_ext.cli import tables

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

"""``tvm-ext logs show``."""

from typing import TYPE_CHECKING, Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.logs.arguments import Folder, OneTarget
from tvm_ext.cli.logs.problem_lines import print_problems

if TYPE_CHECKING:
    from rich.table import Table

    from tvm_ext.tuning.logs.summary import KernelSummary

EXAMPLE = "Example: tvm-ext logs show records --kernel conv"


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
    from tvm_ext.tuning.logs.folder import read_folder
    from tvm_ext.tuning.logs.summary import chosen_summaries

    records = read_folder(folder)
    found = chosen_summaries(records, target, kernel)
    print_problems(records.problems)
    if json_output:
        out.print_json([summary.to_json() for summary in found])
    elif found:
        out.print_rich(_table(found))
    else:
        out.print_text("There are no trials and no records.")


def _table(found: "list[KernelSummary]") -> "Table":
    from rich import box
    from rich.table import Table

    from tvm_ext.cli.logs import cells
    from tvm_ext.tuning.target_key import target_text

    # Eleven columns: no space between them is to spare.
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for name in ("Kernel", "Origin", "Target"):
        table.add_column(name, overflow="fold")
    for name in ("Trials", "Failed", "Default", "Best", "Gain"):
        table.add_column(name, justify="right")
    table.add_column("Schedule", overflow="fold")
    table.add_column("Spread", justify="right")
    table.add_column("Confirmed")
    for summary in found:
        times, is_modelled = summary.times, summary.is_modelled
        table.add_row(
            cells.text(summary.name),
            cells.text(cells.origin_cell(summary.origins)),
            cells.text(target_text(summary.target)),
            str(summary.trials),
            cells.counts_cell(summary.failed),
            cells.seconds_cell(times.default_seconds, is_modelled),
            cells.seconds_cell(times.best_seconds, is_modelled),
            cells.gain_cell(times.gain, is_modelled),
            cells.text(times.schedule or cells.ABSENT),
            cells.spread_cell(times.spread),
            _confirmed(summary),
        )
    return table


def _confirmed(summary: "KernelSummary") -> str:
    from tvm_ext.cli.logs import cells

    if summary.is_modelled:
        return cells.ABSENT
    return "yes" if summary.measured.is_confirmed else "no"

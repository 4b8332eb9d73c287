"""``tvm-ext logs verify``."""

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.logs.arguments import Folder
from tvm_ext.cli.logs.problem_lines import print_problems

if TYPE_CHECKING:
    from rich.table import Table

    from tvm_ext.tuning.logs.verify import Verified

EXAMPLE = "Example: tvm-ext logs verify records"


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
    from tvm_ext.cli.compile_options import CompileOptions
    from tvm_ext.passes.pipeline import build_pipeline
    from tvm_ext.tune_model import kernel_finish
    from tvm_ext.tuning.logs.folder import read_folder
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
        out.print_rich(_table(found), listed or "There are no records.")
    if any(one.has_failed for one in found):
        raise typer.Exit(1)


def _table(found: "list[Verified]") -> "Table":
    from rich import box
    from rich.table import Table

    from tvm_ext.cli.logs import cells

    table = Table("Kernel", box=box.SIMPLE_HEAD)
    table.add_column("Schedule", overflow="fold")
    table.add_column("Status")
    for name in ("Default", "Record", "Gain"):
        table.add_column(name, justify="right")
    table.add_column("What happened", overflow="fold")
    for one in found:
        table.add_row(
            cells.text(one.best.name),
            cells.text(one.best.recorded.describe()),
            one.status,
            cells.seconds_cell(one.default_seconds),
            cells.seconds_cell(one.seconds),
            cells.gain_cell(one.gain),
            cells.text(one.message),
        )
    return table

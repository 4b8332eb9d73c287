"""``tvm-ext logs export``."""

from pathlib import Path
from typing import Annotated

import typer

from tvm_ext.cli.logs.arguments import Folder
from tvm_ext.cli.logs.problem_lines import print_problems

EXAMPLE = "Example: tvm-ext logs export records --output trials.csv"


def export_command(
    folder: Folder,
    # A Path would lose the '/' at the end.
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE|FOLDER/",
            help="A .csv or .json file for all trials; a .jsonl file for the best that beat their "
            "defaults; a folder for MetaSchedule's two files with the best records.",
        ),
    ],
) -> None:
    """Write records in a form that other programs read."""
    from tvm_ext.cli import output as out
    from tvm_ext.report.units import format_count
    from tvm_ext.tuning.logs.export import export_records
    from tvm_ext.tuning.logs.folder import read_folder

    records = read_folder(folder)
    is_folder = output.endswith("/") or Path(output).is_dir()
    count = export_records(records, Path(output), is_folder)
    print_problems(records.problems)
    out.print_text(f"{output}: {format_count(count, 'record' if is_folder else 'trial')}")

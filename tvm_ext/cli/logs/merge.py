"""``tvm-ext logs merge``."""

from pathlib import Path
from typing import Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.logs.problem_lines import print_problems

EXAMPLE = "Example: tvm-ext logs merge monday tuesday --output both"


def merge_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Folders of records to join.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="OUT", help="A new folder, or one of those that are joined."
        ),
    ],
    json_output: options.Json = False,
) -> None:
    """Join folders of records: every trial and every record once, equal kernels as one."""
    from tvm_ext.cli import output as out
    from tvm_ext.report.units import format_count
    from tvm_ext.tuning.logs.merge import merge_folders

    merged = merge_folders(folders, output)
    print_problems(merged.problems)
    if json_output:
        out.print_json(
            {
                "output": str(output),
                "trials": merged.trials,
                "kernels": merged.workloads,
                "records": merged.records,
                "repeated_trials": merged.repeated_trials,
                "repeated_records": merged.repeated_records,
                "modelled_records": merged.modelled_records,
                "unusable_lines": len(merged.problems),
            }
        )
        return
    out.print_text(
        f"{output}: {format_count(merged.trials, 'trial')}, "
        f"{format_count(merged.workloads, 'kernel')}, {format_count(merged.records, 'record')}; "
        f"left out as repeated: {format_count(merged.repeated_trials, 'trial')}, "
        f"{format_count(merged.repeated_records, 'record')}"
    )
    if merged.modelled_records:
        out.print_text(
            f"left out because a model's times do not count beside measured ones: "
            f"{format_count(merged.modelled_records, 'record')}"
        )

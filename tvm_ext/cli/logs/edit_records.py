"""``tvm-ext logs merge``, ``prune``, ``repair`` and ``export``: folders of records written anew."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_ext.cli import options
from tvm_ext.cli.options import Folder, OneTarget
from tvm_ext.cli.stderr_lines import print_problems

if TYPE_CHECKING:
    from tvm_ext.tuning.logs.prune import Pruned


MERGE_EXAMPLE = "Example: tvm-ext logs merge monday tuesday --output both"


def merge_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="FOLDER...", help="Folders of records to merge.")
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="A new folder, or one of the folders that are merged.",
        ),
    ],
    json_output: options.Json = False,
) -> None:
    """Merge folders of records. Each trial, record and kernel is written once."""
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
        f"{format_count(merged.workloads, 'kernel')}, {format_count(merged.records, 'record')}\n"
        f"left out as repeated: {format_count(merged.repeated_trials, 'trial')}, "
        f"{format_count(merged.repeated_records, 'record')}"
    )
    if merged.modelled_records:
        out.print_text(
            f"left out because a model's times do not count beside measured ones: "
            f"{format_count(merged.modelled_records, 'record')}"
        )


# ``tvm-ext logs prune``.


PRUNE_EXAMPLE = "Example: tvm-ext logs prune records --keep 3 --drop-failed"


def prune_command(
    folder: Folder,
    keep: Annotated[
        int,
        typer.Option(
            "--keep", min=1, help="Number of best records to keep for each kernel on each target."
        ),
    ] = 1,
    drop_failed: Annotated[
        bool,
        typer.Option(
            "--drop-failed",
            help="Also drop trials that failed. A later session may try those candidates again.",
        ),
    ] = False,
    target: OneTarget = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            show_default="FOLDER itself",
            help="Write what is kept to this new folder, and leave FOLDER as it is.",
        ),
    ] = None,
    json_output: options.Json = False,
) -> None:
    """Drop all records but the best, and print what was dropped.

    A later session in FOLDER may restore dropped records from the trials that are
    still there.
    """
    from tvm_ext.cli import output as out
    from tvm_ext.cli.logs.record_tables import pruned_table
    from tvm_ext.report.units import format_count
    from tvm_ext.tuning.logs.prune import PruneOptions, prune_folder
    from tvm_ext.tuning.logs.summary import target_filter

    pruned = prune_folder(folder, PruneOptions(keep, drop_failed, target_filter(target)), output)
    print_problems(pruned.problems)
    if json_output:
        out.print_json(_json(pruned))
        return
    if pruned.records:
        out.print_rich(pruned_table(_gone(pruned)))
    for status, count in pruned.statuses.items():
        out.print_text(f"trials that ended as '{status}': {count}")
    out.print_text(
        f"{output or folder}: "
        f"{format_count(sum(map(len, pruned.records.values())), 'record')} and "
        f"{format_count(sum(pruned.statuses.values()), 'trial')} went, "
        f"{format_count(pruned.records_kept, 'record')} and "
        f"{format_count(pruned.trials_kept, 'trial')} stay"
    )


def _json(pruned: "Pruned") -> dict[str, Any]:
    return {
        "records_gone": _gone(pruned),
        "trials_gone": pruned.statuses,
        "records_kept": pruned.records_kept,
        "trials_kept": pruned.trials_kept,
        "unusable_lines": len(pruned.problems),
    }


def _gone(pruned: "Pruned") -> list[dict[str, Any]]:
    from tvm_ext.tuning.logs.database_files import target_text

    return [
        {
            "kernel": kernel,
            "name": pruned.names.get(kernel, kernel),
            "target": target_text(records[0].target),
            "records": len(records),
        }
        for (kernel, _), records in pruned.records.items()
    ]


# ``tvm-ext logs repair``.


REPAIR_EXAMPLE = "Example: tvm-ext logs repair records"


def repair_command(folder: Folder, json_output: options.Json = False) -> None:
    """Move lines that cannot be used to side files (NAME.bad), and print each with its reason.

    Plain TVM can then open the folder. 'tvm-ext tune' makes the same repair when
    it starts.
    """
    from tvm_ext.cli import output as out
    from tvm_ext.report.units import format_count, plain
    from tvm_ext.tuning.logs.lines import locked
    from tvm_ext.tuning.logs.record_folder import check_folder, repair_folder, side_file

    check_folder(folder)
    with locked(folder):
        problems = repair_folder(folder)
    if json_output:
        out.print_json(
            [
                {
                    "file": str(problem.file),
                    "line": problem.line,
                    "reason": problem.reason,
                    "moved_to": str(side_file(problem.file)),
                }
                for problem in problems
            ]
        )
        return
    for problem in problems:
        out.print_text(plain(str(problem)))
    sides = ", ".join(sorted({side_file(problem.file).name for problem in problems}))
    moved = f"{format_count(len(problems), 'line')} moved to {sides}"
    out.print_text(f"{folder}: {moved if problems else 'nothing to repair'}")


# ``tvm-ext logs export``.


EXPORT_EXAMPLE = "Example: tvm-ext logs export records --output trials.csv"


def export_command(
    folder: Folder,
    # A Path would lose the '/' at the end.
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE|FOLDER/",
            help="A .csv or .json file gets all trials. A .jsonl file gets the best records that "
            "beat their defaults. A folder gets the best records in MetaSchedule's two files.",
        ),
    ],
) -> None:
    """Write records in a form that other programs read."""
    from tvm_ext.cli import output as out
    from tvm_ext.report.units import format_count
    from tvm_ext.tuning.logs.export import export_records
    from tvm_ext.tuning.logs.record_folder import read_folder

    records = read_folder(folder)
    is_folder = output.endswith("/") or Path(output).is_dir()
    count = export_records(records, Path(output), is_folder)
    print_problems(records.problems)
    out.print_text(f"{output}: {format_count(count, 'record' if is_folder else 'trial')}")

"""``tvm-ext logs prune``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_ext.cli import options
from tvm_ext.cli.logs.arguments import Folder, OneTarget
from tvm_ext.cli.logs.problem_lines import print_problems

if TYPE_CHECKING:
    from tvm_ext.tuning.logs.prune import Pruned

EXAMPLE = "Example: tvm-ext logs prune records --keep 3 --drop-failed"


def prune_command(
    folder: Folder,
    keep: Annotated[
        int, typer.Option("--keep", min=1, help="Best records of a kernel on a target that stay.")
    ] = 1,
    drop_failed: Annotated[
        bool,
        typer.Option(
            "--drop-failed",
            help="Drop trials that failed; a later session may try those candidates again.",
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
            help="Leave FOLDER as it is, and write what stays to this new folder.",
        ),
    ] = None,
    json_output: options.Json = False,
) -> None:
    """Drop all but the best records, and print what went.

    A session that goes on in FOLDER puts records back that its trials speak for.
    """
    from tvm_ext.cli import output as out
    from tvm_ext.report.units import format_count, plain
    from tvm_ext.tuning.logs.prune import PruneOptions, prune_folder
    from tvm_ext.tuning.logs.target_filter import target_filter

    pruned = prune_folder(folder, PruneOptions(keep, drop_failed, target_filter(target)), output)
    print_problems(pruned.problems)
    if json_output:
        out.print_json(_json(pruned))
        return
    for gone in _gone(pruned):
        place = plain(f"{gone['name']} on {gone['target']}")
        out.print_text(f"{place}: {format_count(gone['records'], 'record')} slower than the rest")
    for status, count in pruned.statuses.items():
        out.print_text(f"trials that ended as '{status}': {count}")
    out.print_text(
        f"{output or folder}: "
        f"{format_count(sum(map(len, pruned.records.values())), 'record')} and "
        f"{format_count(sum(pruned.statuses.values()), 'trial')} went; "
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
    from tvm_ext.tuning.target_key import target_text

    return [
        {
            "kernel": kernel,
            "name": pruned.names.get(kernel, kernel),
            "target": target_text(records[0].target),
            "records": len(records),
        }
        for (kernel, _), records in pruned.records.items()
    ]

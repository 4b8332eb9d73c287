"""``tvm-ext logs diff``."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvm_ext.cli import options
from tvm_ext.cli.logs.problem_lines import print_problems

if TYPE_CHECKING:
    from rich.table import Table

    from tvm_ext.tuning.logs.diff import Difference

EXAMPLE = "Example: tvm-ext logs diff last-week today --fail-on-slower"


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
    from tvm_ext.tuning.logs.folder import read_folder

    old, new = read_folder(before), read_folder(after)
    found = diff_records(old, new)
    print_problems([*old.problems, *new.problems])
    if json_output:
        out.print_json([difference_json(difference) for difference in found])
    else:
        counts = Counter(difference.verdict for difference in found)
        listed = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
        out.print_rich(_table(found), listed or "Both are empty.")
    if fail_on_slower and any(difference.verdict == "slower" for difference in found):
        raise typer.Exit(1)


def _table(found: "list[Difference]") -> "Table":
    from rich import box
    from rich.table import Table

    from tvm_ext.cli.logs import cells
    from tvm_ext.tuning.target_key import target_text

    table = Table("Kernel", "Target", box=box.SIMPLE_HEAD)
    for name in ("Before", "After", "Change", "Noise"):
        table.add_column(name, justify="right")
    table.add_column("Verdict")
    for difference in found:
        change = difference.change
        table.add_row(
            cells.text(difference.summary.name),
            cells.text(target_text(difference.summary.target)),
            cells.seconds_cell(difference.before_seconds, difference.is_modelled),
            cells.seconds_cell(difference.after_seconds, difference.is_modelled),
            f"{change:+.1%}" if change is not None else cells.ABSENT,
            cells.spread_cell(difference.noise),
            difference.verdict,
        )
    return table

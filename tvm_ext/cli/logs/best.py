"""``tvm-ext logs best``."""

from typing import TYPE_CHECKING, Any

from tvm_ext.cli import options
from tvm_ext.cli.logs.arguments import Folder
from tvm_ext.cli.logs.problem_lines import print_problems

if TYPE_CHECKING:
    from rich.table import Table

    from tvm_ext.tuning.logs.best import BestSchedule

EXAMPLE = "Example: tvm-ext logs best records --json"


def best_command(folder: Folder, json_output: options.Json = False) -> None:
    """Show the best record of each kernel on each target; with --json, its trace too."""
    from tvm_ext.cli import output as out
    from tvm_ext.tuning.logs.best import best_schedules
    from tvm_ext.tuning.logs.folder import read_folder

    records = read_folder(folder)
    found = best_schedules(records)
    print_problems(records.problems)
    if json_output:
        out.print_json([_json(best) for best in found])
    elif found:
        out.print_rich(_table(found))
    else:
        out.print_text("There are no records.")


def _json(best: "BestSchedule") -> dict[str, Any]:
    from tvm_ext.tuning.logs.summary import plain_target
    from tvm_ext.tuning.target_key import target_text

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


def _table(found: "list[BestSchedule]") -> "Table":
    from rich import box
    from rich.table import Table

    from tvm_ext.cli.logs import cells
    from tvm_ext.tuning.target_key import target_text

    table = Table("Kernel", "Hash", "Target", box=box.SIMPLE_HEAD)
    table.add_column("Time", justify="right")
    table.add_column("Schedule", overflow="fold")
    for best in found:
        table.add_row(
            cells.text(best.name),
            best.kernel,
            cells.text(target_text(best.target)),
            cells.seconds_cell(best.recorded.seconds, best.is_modelled),
            cells.text(best.recorded.describe()),
        )
    return table

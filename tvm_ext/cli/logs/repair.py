"""``tvm-ext logs repair``."""

from tvm_ext.cli import options
from tvm_ext.cli.logs.arguments import Folder

EXAMPLE = "Example: tvm-ext logs repair records"


def repair_command(folder: Folder, json_output: options.Json = False) -> None:
    """Move lines that cannot be used to side files (NAME.bad), and print each with its reason.

    Afterwards plain TVM opens the folder. 'tvm-ext tune' does the same when it starts.
    """
    from tvm_ext.cli import output as out
    from tvm_ext.report.units import format_count, plain
    from tvm_ext.tuning.folder_lock import locked
    from tvm_ext.tuning.logs.folder import check_folder
    from tvm_ext.tuning.logs.repair import repair_folder, side_file

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

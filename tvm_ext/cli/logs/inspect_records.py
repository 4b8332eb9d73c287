"""``tvm-ext logs show``, ``best``, ``stats``, ``diff`` and ``verify``: what a folder of records
holds.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_ext.cli import options
from tvm_ext.cli.options import Folder, OneTarget
from tvm_ext.cli.stderr_lines import print_problems, progress_line

if TYPE_CHECKING:
    from tvm_ext.tuning.logs.summary import BestSchedule


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
            help="Show only kernels with this text in their name, hash or ONNX nodes.",
        ),
    ] = None,
    verbose: options.Verbose = False,
    json_output: options.Json = False,
) -> None:
    """Show the best time of each kernel on each target, and how many trials it took.

    Times from a cost model are marked as modelled. They are shown only where
    nothing was measured.
    """
    from tvm_ext.cli import output as out
    from tvm_ext.cli.logs.record_tables import names_of, summaries_table
    from tvm_ext.tuning.logs.record_folder import read_folder
    from tvm_ext.tuning.logs.summary import chosen_summaries

    records = read_folder(folder)
    found = chosen_summaries(records, target, kernel)
    print_problems(records.problems)
    if json_output:
        out.print_json([summary.to_json() for summary in found])
    elif found:
        names = [(one, one.times.schedule) for one in found]
        out.print_rich(summaries_table(found), *([names_of(names)] if verbose else []))
    else:
        out.print_text("There are no trials and no records.")


# ``tvm-ext logs best``.


BEST_EXAMPLE = "Example: tvm-ext logs best records --json"


def best_command(
    folder: Folder, verbose: options.Verbose = False, json_output: options.Json = False
) -> None:
    """Show the best record of each kernel on each target; with --json, its trace too."""
    from tvm_ext.cli import output as out
    from tvm_ext.cli.logs.record_tables import best_table, names_of
    from tvm_ext.tuning.logs.record_folder import read_folder
    from tvm_ext.tuning.logs.summary import best_schedules

    records = read_folder(folder)
    found = best_schedules(records)
    print_problems(records.problems)
    if json_output:
        out.print_json([_json(best) for best in found])
    elif found:
        names = [(one, one.recorded.describe()) for one in found]
        out.print_rich(best_table(found), *([names_of(names)] if verbose else []))
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


# ``tvm-ext logs stats``.


STATS_EXAMPLE = "Example: tvm-ext logs stats records"


def stats_command(folder: Folder, json_output: options.Json = False) -> None:
    """Print how many trials there were, how long they took, how they ended and where they ran."""
    from dataclasses import asdict

    from rich.text import Text

    from tvm_ext.cli import output as out
    from tvm_ext.cli.logs.record_tables import figures_table, sessions_table
    from tvm_ext.tuning.logs.record_folder import read_folder
    from tvm_ext.tuning.logs.stats import figures_of

    records = read_folder(folder)
    figures = figures_of(records)
    print_problems(records.problems)
    if json_output:
        out.print_json(asdict(figures))
    else:
        out.print_rich(figures_table(figures), Text(), sessions_table(figures))


# ``tvm-ext logs diff``.


DIFF_EXAMPLE = "Example: tvm-ext logs diff last-week today --fail-on-slower"


def diff_command(
    before: Annotated[
        Path, typer.Argument(metavar="BEFORE", help="Folder with the earlier records.")
    ],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Folder with the later records.")],
    fail_on_slower: Annotated[
        bool,
        typer.Option(
            "--fail-on-slower", help="Exit with 1 if a kernel is slower by more than the noise."
        ),
    ] = False,
    verbose: options.Verbose = False,
    json_output: options.Json = False,
) -> None:
    """Compare the best times of two folders, kernel by kernel and target by target.

    Times count as equal when they differ by no more than the larger of their two
    spreads, or by no more than 3 %. Only -v lists equal times. Measured times are
    never compared with modelled ones.
    """
    from tvm_ext.cli import output as out
    from tvm_ext.cli.logs.record_tables import differences_table, names_of
    from tvm_ext.tuning.logs.diff import EQUAL, VERDICTS, diff_records, difference_json
    from tvm_ext.tuning.logs.record_folder import read_folder

    old, new = read_folder(before), read_folder(after)
    found = diff_records(old, new)
    print_problems([*old.problems, *new.problems])
    if json_output:
        out.print_json([difference_json(difference) for difference in found])
    else:
        counts = Counter(difference.verdict for difference in found)
        listed = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
        news = [one for one in found if verbose or one.verdict != EQUAL]
        tables = [differences_table(news)] if news else []
        if verbose:
            tables.append(names_of([(one.summary, one.summary.times.schedule) for one in news]))
        out.print_rich(*tables, listed or "Both are empty.")
    if fail_on_slower and any(difference.verdict == "slower" for difference in found):
        raise typer.Exit(1)


# ``tvm-ext logs verify``.


VERIFY_EXAMPLE = "Example: tvm-ext logs verify records"


def verify_command(
    folder: Folder,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            "-t",
            help="The target that this machine is: 'cpu', a preset, or a .toml file. Code for it "
            "runs here.",
        ),
    ] = "cpu",
    threads: options.Threads = None,
    verbose: options.Verbose = False,
    json_output: options.Json = False,
) -> None:
    """Build the best records again, check their numbers, and time them beside the defaults.

    The exit code is 1 if a record for this machine does not work, or is slower
    than the default.
    """
    from tvm_ext.cli import output as out
    from tvm_ext.cli.logs.record_tables import names_of, verified_parts
    from tvm_ext.cli.options import CompileOptions
    from tvm_ext.passes.pipeline import build_pipeline
    from tvm_ext.tune_model import kernel_finish
    from tvm_ext.tuning.logs.record_folder import read_folder
    from tvm_ext.tuning.logs.verify import verify_records

    machine = CompileOptions.parsed(target, threads=threads).machine()
    records = read_folder(folder)
    finish = kernel_finish(build_pipeline("O3"))
    with progress_line(is_measuring=True):
        found = list(verify_records(records, machine, finish))
    print_problems(records.problems)
    if json_output:
        out.print_json([one.to_json() for one in found])
    else:
        counts = Counter(one.status for one in found)
        listed = ", ".join(f"{count} {status}" for status, count in counts.items())
        names = [(one.best, one.best.recorded.describe()) for one in found]
        parts = [*verified_parts(found), *([names_of(names)] if verbose else [])]
        out.print_rich(*parts, listed or "There are no records.")
    if any(one.has_failed for one in found):
        raise typer.Exit(1)

"""How small the memory planner gets arenas, and how fast: for MiniMalloc's instances, or files.

A file is in MiniMalloc's form: CSV with the columns lower, upper, size, and perhaps instance; a
buffer is alive from lower on, before upper. The gap is how far the arena is above the bound, which
is the largest sum of live sizes. CPU seconds are those of the whole process. Exit code 1 when a
plan does not fit into the capacity, 2 for bad usage.

With --limits, files are ONNX models, each compiled with memory limits of these percentages of its
own peak: whether they are met, and what that costs.

With ``--peaks`` the files are ONNX models: the planned memory of each beside the largest sum of
what is alive at a time and beside TVM's planner. Exit code 1 when fewer than 95 % of plans equal
that sum, when one is above TVM's, or when they are less than 15 % below it in the geometric mean
of the models where values are views or in place of others.

With ``--resident`` the files are ONNX models: how much resident memory each takes when it was
saved, loaded and run, beside what its report says. Exit code 1 when one is more than 5 % off.

    python benchmarks/memory_plans.py                     # MiniMalloc's eleven, in their 1 MiB
    python benchmarks/memory_plans.py --smallest          # the same, as small as they get
    python benchmarks/memory_plans.py a.csv b.csv --seconds 5
    python benchmarks/memory_plans.py --limits 75,50 a.onnx b.onnx
    python benchmarks/memory_plans.py --resident a.onnx b.onnx
    python benchmarks/memory_plans.py --peaks a.onnx b.onnx
"""

import argparse
import csv
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import resident_memory
from rich.console import Console
from rich.table import Table

from tvm_ext.errors import InputError, TvmExtError
from tvm_ext.memory_planner import Buffer, MemoryPlan, check_plan, cp_sat, plan_offsets

_INSTANCES = Path(__file__).parents[1] / "tests/tvm_ext/memory_planner/minimalloc.csv"
# The arena that is enough for each of MiniMalloc's instances, in the units of the file.
_CAPACITY = 1024
_LOG_WIDTH = 140


@dataclass(frozen=True)
class Planned:
    """What came of one instance."""

    name: str
    buffers: int
    plan: MemoryPlan
    seconds: float
    cpu_seconds: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Plans and prints; the module's docstring has the exit codes."""
    console = Console(width=None if sys.stdout.isatty() else _LOG_WIDTH)
    options = _parser().parse_args(arguments)
    if options.resident:
        return _show_resident(options.files, console)
    try:
        if options.peaks:
            return _print_peaks(console, options)
        if options.limits:
            return _print_limits(console, options)
        instances = _instances(options.files or [_INSTANCES])
        capacity = _capacity(options)
        planned = [
            _planned(name, buffers, capacity, options.seconds)
            for name, buffers in instances.items()
            if not options.only or name in options.only.split(",")
        ]
    except TvmExtError as error:
        print(f"memory_plans.py: error: {error}", file=sys.stderr)
        return 2
    console.print(_table(planned))
    if not cp_sat.is_installed():
        console.print("Without CP-SAT, which is not installed.")
    return int(any(capacity is not None and one.plan.size > capacity for one in planned))


def _print_limits(console: Console, options: argparse.Namespace) -> int:
    """Compiles models with limits, and prints what came of it; 1 where results differ."""
    # Only this needs the compiler.
    from memory_limits import limited, limits_table

    shares = [number / 100 for number in options.limits]
    found = []
    for path in options.files:
        try:
            found += limited(path, shares)
        except TvmExtError as error:
            print(f"memory_plans.py: {path.stem} is left out: {error}", file=sys.stderr)
    console.print(limits_table(found))
    return int(any(one.found is not None and not one.is_equal for one in found))


def _print_peaks(console: Console, options: argparse.Namespace) -> int:
    """Plans models, and prints what came of it; 1 where it is not what is asked."""
    # Only this needs the compiler.
    from planned_peaks import peaks_table, planned_peak, verdict

    found = []
    for path in options.files:
        try:
            peak = planned_peak(path)
        except TvmExtError as error:
            print(f"memory_plans.py: {path.stem} is left out: {error}", file=sys.stderr)
            continue
        if peak is None:
            print(f"memory_plans.py: {path.stem} is left out: a run decides sizes", file=sys.stderr)
        else:
            found.append(peak)
    console.print(peaks_table(found))
    lines, is_met = verdict(found)
    console.print("\n".join(lines))
    return int(not is_met)


def _show_resident(models: Sequence[Path], console: Console) -> int:
    """Measures and prints; whether a model is too far off."""
    if not models or not sys.platform.startswith("linux"):
        print(
            f"memory_plans.py: error: --resident was given on {sys.platform} with {len(models)} "
            "models; expected Linux and models: give ONNX files",
            file=sys.stderr,
        )
        return 2
    try:
        found = resident_memory.measured(models)
    except TvmExtError as error:
        print(f"memory_plans.py: error: {error}", file=sys.stderr)
        return 2
    console.print(resident_memory.table_of(found))
    known = [one.off for one in found if one.off is not None]
    return int(any(abs(off) > resident_memory.ALLOWED for off in known))


def _capacity(options: argparse.Namespace) -> int | None:
    """What was given, or what MiniMalloc's instances have; None to look for the smallest arena."""
    given: int | None = options.capacity
    if options.smallest or options.files:
        return given
    return _CAPACITY if given is None else given


def _instances(files: Sequence[Path]) -> dict[str, list[Buffer]]:
    """The buffers of each instance by its name, which is that of the file if it has one."""
    found: dict[str, list[Buffer]] = {}
    for path in files:
        try:
            with path.open(encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    buffers = found.setdefault(row.get("instance", path.stem), [])
                    lower, upper, size = (int(row[key]) for key in ("lower", "upper", "size"))
                    buffers.append(Buffer(str(len(buffers)), size, lower, upper - 1, alignment=1))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{path} cannot be read ({error}); expected CSV with whole numbers in the columns "
                "lower, upper and size: check the path and the file"
            ) from error
    return found


def _planned(name: str, buffers: Sequence[Buffer], capacity: int | None, seconds: float) -> Planned:
    begin, cpu_begin = time.perf_counter(), time.process_time()
    plan = plan_offsets(buffers, capacity=capacity, seconds=seconds)
    taken, cpu_taken = time.perf_counter() - begin, time.process_time() - cpu_begin
    check_plan(buffers, plan)
    return Planned(name, len(buffers), plan, taken, cpu_taken)


def _table(planned: Sequence[Planned]) -> Table:
    table = Table()
    for heading in ("instance", "buffers", "bound", "arena", "gap", "method", "s", "CPU s"):
        table.add_column(heading, justify="left" if heading in ("instance", "method") else "right")
    for one in planned:
        plan = one.plan
        gap = plan.size / plan.lower_bound - 1 if plan.lower_bound else 0.0
        table.add_row(
            one.name,
            str(one.buffers),
            f"{plan.lower_bound:,}",
            f"{plan.size:,}",
            f"{gap:.1%}" + (", proved" if plan.is_optimal and gap else ""),
            plan.method,
            f"{one.seconds:.2f}",
            f"{one.cpu_seconds:.2f}",
        )
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="memory_plans.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", type=Path, help="instances or models")
    parser.add_argument("--resident", action="store_true", help="resident memory of ONNX models")
    parser.add_argument("--peaks", action="store_true", help="planned memory of ONNX models")
    parser.add_argument("--only", default="", help="instances by name, such as A,C")
    parser.add_argument("--capacity", type=int, help="the search ends at a plan that fits into it")
    parser.add_argument(
        "--limits",
        type=lambda text: [float(one) for one in text.split(",")],
        metavar="PERCENT,...",
        help="files are models; limits as percentages of the peak of each",
    )
    parser.add_argument("--smallest", action="store_true", help="search for the smallest arena")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each instance at most")
    return parser


if __name__ == "__main__":
    sys.exit(main())

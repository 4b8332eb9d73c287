"""Tuning for a wafer-scale mesh: default mappings, our search and random search, modelled cycles.

Each kernel gets the same number of trials from both searches. Random search draws points of the
same templates and takes the best. Nothing is measured: all cycles are the cost function's.

    python benchmarks/wafer_tuning.py --trials 64
    python benchmarks/wafer_tuning.py --models models.toml --speed
"""

import argparse
import logging
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from model_list import FILE_FORMAT, entries_of
from rich.console import Console
from rich.table import Table
from tvm import te, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.targets import compiling_for, resolve_target
from tvm_ext.hardware.wafer.description import WaferDescription, WaferLimitError
from tvm_ext.passes.pipeline import build_pipeline
from tvm_ext.tune_model import model_tasks
from tvm_ext.tuning.candidate import KernelTask, kernel_task
from tvm_ext.tuning.search import Point, TemplateSpace
from tvm_ext.tuning.session import TuningSession
from tvm_ext.tuning.session_options import SessionOptions, load_effort
from tvm_ext.tuning.wafer.cost_model import wafer_cost


@dataclass
class Outcome:
    """One kernel: cycles of the default, of our search's best and of random search's best."""

    name: str
    default: float
    ours: float
    random: float
    schedule: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Tunes everything that was asked for and prints the comparison."""
    asked = _parser().parse_args(arguments)
    logging.disable(logging.WARNING)
    mesh = resolve_target(asked.target)
    if not isinstance(mesh, WaferDescription):
        print(f"wafer_tuning: target '{asked.target}' is no mesh; expected one, such as wse2")
        return 2
    console = Console(width=None if sys.stdout.isatty() else 160)
    with compiling_for(mesh):
        if asked.speed:
            _print_speed(mesh, console)
            return 0
        found = []
        for task in _tasks(asked):
            found.append(_compared(task, mesh, asked.trials, asked.seed))
            console.print(f"{found[-1].name}: {found[-1].schedule}", soft_wrap=True)
    console.print(_table(found))
    return 0


def _tasks(asked: argparse.Namespace) -> Iterator[KernelTask]:
    if not asked.models:
        for size in (1024, 2048, 4096, 8192, 16384):
            yield kernel_task(f"GEMM {size} float16", _product(size, size))
        yield kernel_task("GEMV 16384 float16", _product(1, 16384))
        return
    for entry in entries_of([], {}, [asked.models]):
        for task in model_tasks(entry.path, entry.shapes, build_pipeline("O3")).tasks:
            yield KernelTask(f"{entry.name}: {task.name}", task.func, task.workload, task.hash)


def _product(rows: int, size: int) -> tirx.PrimFunc:
    a = te.placeholder((rows, size), "float16", "A")
    b = te.placeholder((size, size), "float16", "B")
    k = te.reduce_axis((0, size), "k")
    return te.create_prim_func(
        [a, b, te.compute((rows, size), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "C")]
    )


def _compared(task: KernelTask, mesh: WaferDescription, trials: int, seed: int) -> Outcome:
    space = TemplateSpace(task, mesh, lambda mod: mod)
    default = _cycles(space.default(space.templates[0]), mesh)
    by_chance = _random_search(space, mesh, trials, seed)
    effort = load_effort("standard").model_copy(update={"patience": 10**6, "confirmed": 1})
    with tempfile.TemporaryDirectory() as folder:
        session = TuningSession(
            "kernel",
            [task],
            mesh,
            Path(folder),
            lambda mod: mod,
            "analytic",
            SessionOptions(effort, trials=trials, seed=seed),
            {task.hash: 1.0},
        )
        (kernel,) = session.run().kernels
    ours = mesh.cycles(kernel.best_seconds) if kernel.best_seconds else default
    return Outcome(task.name, default, ours, min(default, by_chance), kernel.best_schedule)


def _random_search(space: TemplateSpace, mesh: WaferDescription, trials: int, seed: int) -> float:
    """The best of ``trials`` mappings that fit the mesh; those that do not are not counted."""
    generator = random.Random(seed)
    tried: dict[str, float] = {}
    for _ in range(20 * trials):
        point = space.anywhere(generator)
        if point is None or point.candidate.hash in tried:
            continue
        tried[point.candidate.hash] = _cycles(point, mesh)
        if sum(math.isfinite(cycles) for cycles in tried.values()) >= trials:
            break
    return min(tried.values(), default=math.inf)


def _cycles(point: Point | None, mesh: WaferDescription) -> float:
    if point is None:
        return math.inf
    try:
        return wafer_cost(point.candidate.mod, mesh).cycles
    except (NotApplicable, WaferLimitError):
        return math.inf


def _print_speed(mesh: WaferDescription, console: Console) -> None:
    """Candidates a second of the cost function, and of making them, for the matmul template."""
    space = TemplateSpace(kernel_task("GEMM", _product(4096, 4096)), mesh, lambda mod: mod)
    generator = random.Random(0)
    begun = time.perf_counter()
    points = [point for _ in range(60) if (point := space.anywhere(generator)) is not None]
    making = (time.perf_counter() - begun) / max(1, len(points))
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(3):
        for point in points:
            begun = time.perf_counter()
            fits = math.isfinite(_cycles(point, mesh))
            times[fits].append(time.perf_counter() - begun)
    for what, found in (
        ("all candidates", times[True] + times[False]),
        ("those that fit the mesh", times[True]),
    ):
        if found:
            console.print(f"cost function, {what}: {1 / statistics.mean(found):.0f} a second")
    console.print(f"scheduling: {1 / making:.0f} a second ({len(points)} candidates)")


def _table(found: Sequence[Outcome]) -> Table:
    table = Table("Kernel", title="Modelled cycles", show_footer=True)
    for name in ("default", "our search", "random search", "default / ours", "random / ours"):
        table.add_column(name, justify="right")
    for one in found:
        table.add_row(
            one.name,
            *(f"{value:,.0f}" for value in (one.default, one.ours, one.random)),
            f"{one.default / one.ours:.2f}",
            f"{one.random / one.ours:.2f}",
        )
    if found:
        means = [
            statistics.geometric_mean(one.default / one.ours for one in found),
            statistics.geometric_mean(one.random / one.ours for one in found),
        ]
        table.add_row("geometric mean", "", "", "", *(f"{mean:.2f}" for mean in means))
    return table


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="wafer_tuning.py",
        description=__doc__,
        epilog=FILE_FORMAT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", type=Path, help="file that lists models, instead of products")
    parser.add_argument("--target", default="wse2", help="a mesh")
    parser.add_argument("--trials", type=int, default=64, help="of each kernel and search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed", action="store_true", help="time the cost function instead")
    return parser


if __name__ == "__main__":
    sys.exit(main())

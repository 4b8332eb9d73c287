"""Tuning on this CPU: our search over our templates beside MetaSchedule as it comes.

Both get the same kernels, the same machine and the same number of trials, in one run. What either
has found after a number of trials is then measured, one after the other, several times over. A
ratio is the time of what MetaSchedule found by the time of ours: above 1, ours is faster. Kernels
are convolutions and matmuls by name (see cpu.py) and the most expensive kernels of models.
MetaSchedule gets what TVM makes of a convolution; ours is what ``compile`` makes of it, which is
Winograd's algorithm where that is faster, unless --same-algorithm is given.

    python benchmarks/tuning.py --kernels matmul_1024x1024x1024 conv --trials 64
    python benchmarks/tuning.py --models models.toml --per-model 2 --json out.json
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from kernel_models import Scale, kernel_models, select_kernels
from model_list import FILE_FORMAT, entries_of
from rich.console import Console
from rich.table import Table
from tvm.s_tir import meta_schedule as ms

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.targets import compiling_for
from tvm_ext.passes.pipeline import build_pipeline
from tvm_ext.tir_schedules.analysis.buffer_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tune_model import ModelTasks, model_tasks
from tvm_ext.tuning.candidate import (
    Candidate,
    KernelTask,
    candidate_of,
    kernel_task,
    trace_from_json,
)
from tvm_ext.tuning.jobs import TimingPlan
from tvm_ext.tuning.logs.best_records import best, candidate_results
from tvm_ext.tuning.logs.database_files import read_database, trace_of
from tvm_ext.tuning.logs.trial_log import read_trials
from tvm_ext.tuning.measurer import Measurer
from tvm_ext.tuning.search import TemplateSpace
from tvm_ext.tuning.session import TuningSession
from tvm_ext.tuning.session_options import SessionOptions, load_effort

# The two tuners of ``tuning.py``, and the kernels that they are given.


# After how many trials ours and MetaSchedule's best are compared.
_OURS_AFTER = (1, 8, 32, 64)
_STOCK_AFTER = (32, 64)

# Trials between two trainings of MetaSchedule's cost model; with its own 64 there would be none.
_STOCK_BATCH = 16


@dataclass(frozen=True)
class KernelPair:
    """One kernel as either tuner gets it.

    Attributes
    ----------
    task, kernels
        As ``tvm_ext.tune`` extracts it.
    rival_task, rival_kernels
        The same nodes of the model without Winograd's algorithm, which MetaSchedule cannot choose.
    """

    name: str
    task: KernelTask
    kernels: ModelTasks
    rival_task: KernelTask
    rival_kernels: ModelTasks


def kernel_pairs(asked: Namespace) -> Iterator[KernelPair]:
    """The kernels that were asked for, by name and of models."""
    pipeline = build_pipeline("O3", ["WinogradConvolution"] if asked.same_algorithm else [])
    plain = build_pipeline("O3", ["WinogradConvolution"])
    with tempfile.TemporaryDirectory() as folder:
        known = kernel_models(Scale(large_bytes=1 << 26))
        for kernel in select_kernels(known, asked.kernels) if asked.kernels else ():
            path = Path(folder) / f"{kernel.name}.onnx"
            path.write_bytes(kernel.build().SerializeToString())
            ours = model_tasks(path, None, pipeline)
            yield next(_matched(kernel.name, ours, model_tasks(path, None, plain)))
        for entry in entries_of([], {}, [asked.models] if asked.models else []):
            ours = model_tasks(entry.path, entry.shapes, pipeline)
            theirs = model_tasks(entry.path, entry.shapes, plain)
            every = list(_matched(entry.name, ours, theirs))
            for one in every[: asked.per_model]:
                yield replace(one, name=f"{entry.name}: {one.rival_task.name}")


def _matched(name: str, ours: ModelTasks, theirs: ModelTasks) -> Iterator[KernelPair]:
    """Kernels in the order of what they cost without Winograd, with the one that does it here."""
    for rival in theirs.tasks:
        mine = [task for task in ours.tasks if set(task.origins) & set(rival.origins)]
        if mine:
            yield KernelPair(name, mine[0], ours, rival, theirs)


def tuned_by_us(
    pair: KernelPair, machine: CpuDescription, trials: int, seed: int
) -> dict[int, Candidate]:
    """What ``tvm-ext tune`` would leave after each number of trials, by that number.

    A session that ends after the first number, and goes on to the next.
    """
    task, kernels = pair.task, pair.kernels
    effort = load_effort("standard").model_copy(update={"patience": 10**6})
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for after in (n for n in _OURS_AFTER if n <= trials):
            session = TuningSession(
                kernels.model,
                [task],
                machine,
                Path(folder),
                kernels.finish,
                effort.cost_model,
                SessionOptions(effort, trials=after, seed=seed),
                kernels.modelled,
            )
            session.run()
            chosen = best(candidate_results(read_trials(Path(folder)).trials))
            if chosen is None:
                raise RuntimeError(f"nothing was measured of {pair.name}")
            trace = trace_from_json(chosen.trial.trace, task.workload)
            found[after] = _made(candidate_of(task, trace, machine, kernels.finish))
    return found


def tuned_by_stock(
    pair: KernelPair, machine: CpuDescription, trials: int, seed: int
) -> dict[int, Candidate]:
    """The best of MetaSchedule's own measurements after each number of trials."""
    # Without our note of which parameters are constants: MetaSchedule does not know it.
    func = pair.rival_task.func
    if CONSTANTS_ATTRIBUTE in func.attrs:
        func = func.without_attr(CONSTANTS_ATTRIBUTE)
    plain = replace(kernel_task(pair.rival_task.name, func), hash=pair.rival_task.hash)
    with tempfile.TemporaryDirectory() as folder:
        ms.tune_tir(
            plain.workload,
            machine.tvm_target(),
            folder,
            max_trials_global=trials,
            num_trials_per_iter=_STOCK_BATCH,
            seed=seed + 1,
        )
        records = read_database(Path(folder)).records
    found = {}
    for after in (n for n in _STOCK_AFTER if n <= trials):
        timed = [record for record in records[:after] if record.seconds < 1e9]
        if timed:
            trace = trace_of(min(timed, key=lambda record: record.seconds), plain.workload)
            finish = pair.rival_kernels.finish
            found[after] = _made(candidate_of(plain, trace, machine, finish))
    return found


def own_default(pair: KernelPair, machine: CpuDescription, *, rival: bool) -> Candidate:
    """The kernel with our default schedule: what its candidates take turns with."""
    task = pair.rival_task if rival else pair.task
    kernels = pair.rival_kernels if rival else pair.kernels
    found = TemplateSpace(task, machine, kernels.finish).default_candidate()
    if found is None:
        raise RuntimeError(f"{pair.name} has no default schedule")
    return found


def _made(found: Candidate | NotApplicable) -> Candidate:
    if isinstance(found, NotApplicable):
        raise RuntimeError(f"a schedule that was measured does not apply: {found.reason}")
    return found


# How often everything that was found is measured, one after the other.
_ROUNDS = 3

_PLAN = TimingPlan(turn_seconds=0.01, fewest_turns=12, most_turns=60, slow_factor=1e9, spread=0.01)


@dataclass
class Comparison:
    """One kernel: microseconds of the best after a number of trials, by that number."""

    name: str
    ours: dict[int, float] = field(default_factory=dict)
    stock: dict[int, float] = field(default_factory=dict)
    failed: str = ""

    def ratio(self, stock_after: int, ours_after: int) -> float | None:
        """Time of MetaSchedule's best by the time of ours."""
        if stock_after not in self.stock or ours_after not in self.ours:
            return None
        return self.stock[stock_after] / self.ours[ours_after]


def main(arguments: Sequence[str] | None = None) -> int:
    """Tunes everything that was asked for and prints the comparison."""
    asked = _parser().parse_args(arguments)
    logging.disable(logging.WARNING)
    machine = host_description()
    if asked.threads:
        machine = machine.with_cores(asked.threads)
    console = Console(width=None if sys.stdout.isatty() else 200)
    found: list[Comparison] = []
    with compiling_for(machine):
        for pair in kernel_pairs(asked):
            found.append(_compare(pair, machine, asked.trials, asked.seed))
            console.print(_line(found[-1]), soft_wrap=True)
            if asked.json:
                asked.json.write_text(json.dumps([asdict(one) for one in found], indent=2))
    console.print(_table(found))
    return 1 if any(one.failed for one in found) else 0


def _compare(pair: KernelPair, machine: CpuDescription, trials: int, seed: int) -> Comparison:
    ours = tuned_by_us(pair, machine, trials, seed)
    stock = tuned_by_stock(pair, machine, trials, seed)
    result = Comparison(pair.name)
    everyone = [
        *(("ours", after, found) for after, found in ours.items()),
        *(("stock", after, found) for after, found in stock.items()),
    ]
    rounds: dict[tuple[str, int], list[float]] = {}
    with Measurer(machine, plan=_PLAN) as measurer:
        defaults = [own_default(pair, machine, rival=rival) for rival in (False, True)]
        failed = measurer.prepare(defaults)
        if failed:
            result.failed = next(iter(failed.values()))
            return result
        for _ in range(_ROUNDS):
            for who, after, candidate in everyone:
                outcome = next(iter(measurer.measure([candidate])))
                if outcome.status != "ok":
                    result.failed = f"{who} after {after}: {outcome.status} {outcome.message}"
                    return result
                seconds = statistics.median(outcome.timing.seconds)
                rounds.setdefault((who, after), []).append(seconds)
    for (who, after), found in rounds.items():
        getattr(result, who)[after] = 1e6 * statistics.median(found)
    return result


def _line(one: Comparison) -> str:
    return f"{one.name}: ours {_times(one.ours)} us, stock {_times(one.stock)} us {one.failed}"


def _times(by_trials: dict[int, float]) -> str:
    return ", ".join(f"{n}: {value:.1f}" for n, value in by_trials.items())


_PAIRS = ((64, 64), (32, 32), (64, 8), (64, 1))


def _table(found: list[Comparison]) -> Table:
    table = Table("Kernel", title="Time of MetaSchedule's best by the time of ours")
    for stock, ours in _PAIRS:
        table.add_column(f"stock {stock} / ours {ours}", justify="right")
    for one in found:
        table.add_row(one.name, *(_number(one.ratio(*pair)) for pair in _PAIRS))
    means = []
    for pair in _PAIRS:
        ratios = [r for one in found if (r := one.ratio(*pair)) is not None]
        means.append(_number(statistics.geometric_mean(ratios) if ratios else None))
    table.add_row("geometric mean", *means, style="bold")
    return table


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tuning.py",
        description=__doc__,
        epilog=FILE_FORMAT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--kernels", nargs="+", default=[], help="names or groups, see cpu.py")
    parser.add_argument("--models", type=Path, help="file that lists models")
    parser.add_argument("--per-model", type=int, default=2, help="kernels of each model")
    parser.add_argument("--trials", type=int, default=64, help="of each kernel and tuner")
    parser.add_argument("--threads", type=int, help="CPU cores, all of them by default")
    parser.add_argument(
        "--same-algorithm", action="store_true", help="ours may not use Winograd's either"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the times here")
    return parser


if __name__ == "__main__":
    sys.exit(main())

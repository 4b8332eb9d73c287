"""Tuning on this CPU: our search over our templates beside MetaSchedule as it comes.

Both get the same kernels, the same machine and the same number of trials, in one run. What either
has found after a number of trials is then measured side by side, in turns with our default
schedule. A ratio is the time of what MetaSchedule found after all its trials by the time of ours:
above 1, ours is faster. Kernels are convolutions and matrix products by name (see cpu.py) and the
most expensive kernels of models; Winograd is left out, since MetaSchedule cannot choose it.

    python benchmarks/tuning.py --kernels matmul_1024x1024x1024 conv --trials 64
    python benchmarks/tuning.py --models models.toml --per-model 2 --json out.json
"""

import argparse
import json
import logging
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from kernel_models import Scale, kernel_models, select_kernels
from model_list import FILE_FORMAT, entries_of
from rich.console import Console
from rich.table import Table
from tvm.s_tir import meta_schedule as ms

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.hardware.host import host_description
from tvm_ext.hardware.targets import compiling_for
from tvm_ext.passes.pipeline import build_pipeline
from tvm_ext.tir_schedules.block_access import CONSTANTS_ATTRIBUTE
from tvm_ext.tir_schedules.template import NotMine
from tvm_ext.tune_model import ModelKernels, model_kernels
from tvm_ext.tuning.candidate import Candidate, candidate_of
from tvm_ext.tuning.database_files import read_database, trace_of
from tvm_ext.tuning.effort import load_effort
from tvm_ext.tuning.measurer import Measurer
from tvm_ext.tuning.run_job import TimingPlan
from tvm_ext.tuning.search.traces import trace_from_json
from tvm_ext.tuning.session import TuningSession
from tvm_ext.tuning.session_options import SessionOptions
from tvm_ext.tuning.task import KernelTask, kernel_task
from tvm_ext.tuning.trial_log import read_trials

# After how many trials ours and MetaSchedule's best are compared.
_OURS_AFTER = (1, 8, 32, 64)
_STOCK_AFTER = (32, 64)

# Trials between two trainings of MetaSchedule's cost model; with its own 64 there would be none.
_STOCK_BATCH = 16

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
        for name, task, kernels in _tasks(asked):
            found.append(_compare(name, task, kernels, machine, asked.trials, asked.seed))
            console.print(_line(found[-1]), soft_wrap=True)
            if asked.json:
                asked.json.write_text(json.dumps([asdict(one) for one in found], indent=2))
    console.print(_table(found))
    return 1 if any(one.failed for one in found) else 0


def _tasks(asked: argparse.Namespace) -> Iterator[tuple[str, KernelTask, ModelKernels]]:
    pipeline = build_pipeline("O3", ["WinogradConvolution"])
    with tempfile.TemporaryDirectory() as folder:
        known = kernel_models(Scale(large_bytes=1 << 26))
        for kernel in select_kernels(known, asked.kernels) if asked.kernels else ():
            path = Path(folder) / f"{kernel.name}.onnx"
            path.write_bytes(kernel.build().SerializeToString())
            kernels = model_kernels(path, None, pipeline)
            yield kernel.name, kernels.tasks[0], kernels
        for entry in entries_of([], {}, asked.models) if asked.models else ():
            kernels = model_kernels(entry.path, entry.shapes, pipeline)
            for task in kernels.tasks[: asked.per_model]:
                yield f"{entry.name}: {task.name}", task, kernels


def _compare(
    name: str,
    task: KernelTask,
    kernels: ModelKernels,
    machine: CpuDescription,
    trials: int,
    seed: int,
) -> Comparison:
    ours = _tuned_by_us(task, kernels, machine, trials, seed)
    stock = _tuned_by_stock(task, kernels, machine, trials, seed)
    everyone = {
        **{("ours", n): c for n, c in ours.items()},
        **{("stock", n): c for n, c in stock.items()},
    }
    result = Comparison(name)
    units: list[float] = []
    with Measurer(machine, plan=_PLAN) as measurer:
        failed = measurer.prepare([ours[1]])
        if failed:
            result.failed = next(iter(failed.values()))
            return result
        for outcome, (who, after) in zip(
            _in_order(measurer, list(everyone.values())), everyone, strict=True
        ):
            if outcome.status != "ok":
                result.failed = f"{who} after {after}: {outcome.status} {outcome.message}"
                continue
            pairs = zip(outcome.timing.seconds, outcome.timing.reference_seconds, strict=True)
            ratio = statistics.median(a / b for a, b in pairs)
            getattr(result, who)[after] = ratio
            units += outcome.timing.reference_seconds
    unit = statistics.median(units) if units else 0.0
    result.ours = {n: 1e6 * unit * value for n, value in result.ours.items()}
    result.stock = {n: 1e6 * unit * value for n, value in result.stock.items()}
    return result


def _in_order(measurer: Measurer, candidates: list[Candidate]) -> Iterator:
    for candidate in candidates:
        yield next(iter(measurer.measure([candidate])))


def _tuned_by_us(
    task: KernelTask, kernels: ModelKernels, machine: CpuDescription, trials: int, seed: int
) -> dict[int, Candidate]:
    effort = load_effort("standard").model_copy(update={"patience": 10**6, "confirmed": 1})
    with tempfile.TemporaryDirectory() as folder:
        options = SessionOptions(effort, trials=trials, seed=seed)
        session = TuningSession(
            kernels.model,
            [task],
            machine,
            Path(folder),
            kernels.finish,
            effort.cost_model,
            options,
            kernels.modelled,
        )
        session.run()
        tried = [trial for trial in read_trials(Path(folder)).trials if trial.purpose == "search"]
    found = {}
    for after in (n for n in _OURS_AFTER if n <= trials):
        measured = [trial for trial in tried[:after] if trial.is_measured]
        best = min(measured, key=lambda trial: trial.seconds or 0.0)
        trace = trace_from_json(best.trace, task.workload)
        found[after] = _made(candidate_of(task, trace, machine, kernels.finish))
    return found


def _tuned_by_stock(
    task: KernelTask, kernels: ModelKernels, machine: CpuDescription, trials: int, seed: int
) -> dict[int, Candidate]:
    # Without our note of which parameters are constants: MetaSchedule does not know it.
    func = task.func
    if CONSTANTS_ATTRIBUTE in func.attrs:
        func = func.without_attr(CONSTANTS_ATTRIBUTE)
    plain = replace(kernel_task(task.name, func), hash=task.hash)
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
        if not timed:
            continue
        trace = trace_of(min(timed, key=lambda record: record.seconds), plain.workload)
        found[after] = _made(candidate_of(plain, trace, machine, kernels.finish))
    return found


def _made(found: Candidate | NotMine) -> Candidate:
    if isinstance(found, NotMine):
        raise RuntimeError(f"a schedule that was measured does not apply: {found.reason}")
    return found


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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="also write the times here")
    return parser


if __name__ == "__main__":
    sys.exit(main())

"""Tuning on this CPU: our search over our templates beside MetaSchedule as it comes.

Both get the same kernels, the same machine and the same number of trials, in one run. What either
has found after a number of trials is then measured, one after the other, several times over. A
ratio is the time of what MetaSchedule found by the time of ours: above 1, ours is faster. Kernels
are convolutions and matrix products by name (see cpu.py) and the most expensive kernels of models.
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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from model_list import FILE_FORMAT
from rich.console import Console
from rich.table import Table
from tuning_rivals import KernelPair, kernel_pairs, own_default, tuned_by_stock, tuned_by_us

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.hardware.host import host_description
from tvm_ext.hardware.targets import compiling_for
from tvm_ext.tuning.measurer import Measurer
from tvm_ext.tuning.run_job import TimingPlan

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

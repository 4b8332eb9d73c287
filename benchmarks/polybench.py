"""PolyBench's thirty kernels: loops as they are written, and as the polyhedral scheduler has them.

Both are compiled for this machine and run in turn, each on fresh copies of the same arguments. The
least of the times counts. The loops as written have no parallel loop. For one thread the time is
the processor's, which other programs do not change. For all threads there are two: the time that
passes, and the processor's time for the thread that took most of it, which leaves out how long
threads wait for each other and for other programs. The results of all runs are compared: the exit
code is 1 where they differ, or are no numbers.

    python benchmarks/polybench.py
    python benchmarks/polybench.py jacobi-2d lu --json polybench.json
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from polybench_kernels import KERNELS
from polybench_kernels.catalogue import PolybenchKernel
from polybench_kernels.further import FURTHER
from results import geometric_mean, relative_difference
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.cpu.measured_peaks import use_tvm_threads
from tvm_ext.polyhedral.cpu_loop_nest import CpuLoopNest
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels


@dataclass(frozen=True)
class Result:
    """What was found and measured of one kernel; times in milliseconds.

    Attributes
    ----------
    written_ms, one_thread_ms : float
        The processor's time for the loops as written, and for the scheduled ones on one thread.
    busiest_ms : float
        The processor's time for the busiest of all threads.
    threads_ms : float
        The time that passes with all threads.
    difference : float
        The largest difference of results, relative to the largest value; infinite where a result
        is no number.
    """

    kernel: str
    found: str
    written_ms: float
    one_thread_ms: float
    busiest_ms: float
    threads_ms: float
    difference: float
    compile_seconds: float

    @property
    def one_thread_ratio(self) -> float:
        """How many times as fast the scheduled loops are on one thread."""
        return self.written_ms / self.one_thread_ms

    @property
    def busiest_ratio(self) -> float:
        """How many times as fast they are on cores that nobody else uses, without waiting."""
        return self.written_ms / self.busiest_ms

    @property
    def threads_ratio(self) -> float:
        """How many times as fast the scheduled loops are on all threads."""
        return self.written_ms / self.threads_ms


@dataclass(frozen=True)
class _Times:
    """How long a run took, in seconds."""

    passed: float
    processor: float
    busiest: float


def _timed(program: Callable[..., None], threads: int, arrays: Sequence[Any]) -> _Times:
    use_tvm_threads(threads)
    before, processor, start = _seconds_of_threads(), time.process_time(), time.perf_counter()
    program(*arrays)
    passed, processor = time.perf_counter() - start, time.process_time() - processor
    after = _seconds_of_threads()
    return _Times(passed, processor, max(after[one] - before.get(one, 0.0) for one in after))


def _seconds_of_threads() -> dict[str, float]:
    """The processor's time for each thread of this process so far."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        found[task.name] = int((task / "schedstat").read_text().split()[0]) / 1e9
    return found


def measured(kernel: PolybenchKernel, repeats: int) -> Result:
    """Compiles one kernel as written and as scheduled, and runs both in turns."""
    func = kernel.build(*kernel.large)
    machine = host_description()
    start = time.perf_counter()
    scheduled, found = _scheduled(func, machine)
    seconds = time.perf_counter() - start
    written, ours = _program(func), _program(scheduled)
    ways = [(written, 1), (ours, 1), (ours, machine.cores)]
    arguments = kernel.arguments(func)
    results = [_arrays(arguments) for _ in ways]
    times: list[list[_Times]] = [[] for _ in ways]
    for _ in range(repeats):
        for number, (program, threads) in enumerate(ways):
            results[number] = _arrays(arguments)
            times[number].append(_timed(program, threads, results[number]))
    return Result(
        kernel=kernel.name,
        found=found,
        written_ms=1e3 * min(one.processor for one in times[0]),
        one_thread_ms=1e3 * min(one.processor for one in times[1]),
        busiest_ms=1e3 * min(one.busiest for one in times[2]),
        threads_ms=1e3 * min(one.passed for one in times[2]),
        difference=max(difference(one, results[0]) for one in results),
        compile_seconds=seconds,
    )


def _scheduled(func: tirx.PrimFunc, machine: CpuDescription) -> tuple[tirx.PrimFunc, str]:
    """The kernel with other loops and what was found, or as it is and why."""
    try:
        scheduled, found = CpuLoopNest().scheduled(func, machine)
    except NotApplicable as refused:
        return func, f"{_AS_WRITTEN}: {refused.reason}"
    return scheduled, str(found)


_AS_WRITTEN = "as written"


def _program(func: tirx.PrimFunc) -> Callable[..., None]:
    named = func.with_attr("global_symbol", "kernel").with_attr("tirx.noalias", True)
    target = host_description().tvm_target()
    return compile_kernels(tvm.IRModule({"kernel": named}), target)["kernel"]


def _arrays(arguments: Sequence[Any]) -> list[Any]:
    return [tvm.runtime.tensor(array) for array in arguments]


def difference(given: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest relative difference of arrays; infinite where what is wanted is no number."""
    numbers = [[array.numpy() for array in one] for one in (given, wanted)]
    if not all(np.isfinite(array).all() for array in numbers[1]):
        return math.inf
    return relative_difference(*numbers)


def _line(result: Result) -> str:
    times = (result.written_ms, result.one_thread_ms, result.busiest_ms, result.threads_ms)
    ratios = (result.one_thread_ratio, result.busiest_ratio, result.threads_ratio)
    numbers = "".join(f"{one:10.2f}" for one in times) + "".join(f"{one:8.2f}x" for one in ratios)
    return f"{result.kernel:15}{numbers}  {result.difference:.0e}  {result.found}"


def compare(
    kernels: Sequence[PolybenchKernel], repeats: int, written_to: Path | None
) -> list[Result]:
    """Prints a line for each kernel, and the geometric means of the ratios."""
    # Threads that wait take no time from others.
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
    threads = host_description().cores
    print(
        f"{'':15}{'written':>10}{'1 thread':>10}{'busiest':>10}{f'{threads} threads':>10}  ratios"
    )
    results = []
    for one in kernels:
        results.append(measured(one, repeats))
        print(_line(results[-1]), flush=True)
    changed = [one for one in results if not one.found.startswith(_AS_WRITTEN)]
    if changed:
        means = [
            geometric_mean([one.one_thread_ratio for one in changed]),
            geometric_mean([one.busiest_ratio for one in changed]),
            geometric_mean([one.threads_ratio for one in changed]),
        ]
        what = f"geometric means of the {len(changed)} that are not as written"
        print(f"{what:55}" + "".join(f"{one or 1:8.2f}x" for one in means))
    if written_to is not None:
        written_to.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    return results


# Of double precision, where LLVM computes in another way.
_ALIKE = 1e-9


def main() -> int:
    """Parses the options and compares the kernels that they name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", help="names; all without any")
    parser.add_argument("--further", action="store_true", help="nests that are not PolyBench's")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each program")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    known = KERNELS | FURTHER
    names = options.kernels or (FURTHER if options.further else KERNELS)
    kernels = [known[name] for name in names]
    results = compare(kernels, options.repeats, options.json)
    wrong = [one.kernel for one in results if not one.difference <= _ALIKE]
    if wrong:
        print(f"results differ from those of the loops as written: {', '.join(wrong)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

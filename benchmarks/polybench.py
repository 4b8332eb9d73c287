"""PolyBench's thirty kernels: loops as they are written, and as the polyhedral scheduler has them.

Both are compiled for this machine and run in turn, each on fresh copies of the same arguments. The
least of the times counts. On one thread that is the processor's time, which other programs do not
change; on more threads it is the time that passes, which they do. The loops as written have no
parallel loop. The results of all runs are compared.

    python benchmarks/polybench.py
    python benchmarks/polybench.py jacobi-2d lu --json polybench.json
"""

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from polybench_kernels import KERNELS
from polybench_kernels.catalogue import PolybenchKernel
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
    threads_ms : float
        The time that passes with all threads.
    difference : float
        The largest difference of results, relative to the largest value.
    """

    kernel: str
    found: str
    written_ms: float
    one_thread_ms: float
    threads_ms: float
    difference: float
    compile_seconds: float

    @property
    def one_thread_ratio(self) -> float:
        """How many times as fast the scheduled loops are on one thread."""
        return self.written_ms / self.one_thread_ms

    @property
    def threads_ratio(self) -> float:
        """How many times as fast the scheduled loops are on all threads."""
        return self.written_ms / self.threads_ms


@dataclass(frozen=True)
class _Way:
    """A program, on how many threads it runs, and the clock for it."""

    program: Callable[..., None]
    threads: int
    clock: Callable[[], float]

    def seconds(self, arrays: Sequence[Any]) -> float:
        """The time of one run."""
        use_tvm_threads(self.threads)
        start = self.clock()
        self.program(*arrays)
        return self.clock() - start


def measured(kernel: PolybenchKernel, repeats: int) -> Result:
    """Compiles one kernel as written and as scheduled, and runs both in turns."""
    func = kernel.build(*kernel.large)
    machine = host_description()
    start = time.perf_counter()
    scheduled, found = _scheduled(func, machine)
    seconds = time.perf_counter() - start
    written, ours = _program(func), _program(scheduled)
    ways = [
        _Way(written, 1, time.process_time),
        _Way(ours, 1, time.process_time),
        _Way(ours, machine.cores, time.perf_counter),
    ]
    arguments = kernel.arguments(func)
    results = [_arrays(arguments) for _ in ways]
    times = [math.inf for _ in ways]
    for _ in range(repeats):
        for number, way in enumerate(ways):
            results[number] = _arrays(arguments)
            times[number] = min(times[number], way.seconds(results[number]))
    pairs = [
        (a.numpy(), b.numpy()) for one in results for a, b in zip(results[0], one, strict=True)
    ]
    difference = max(_relative_difference(a, b) for a, b in pairs)
    milliseconds = [one * 1e3 for one in times]
    return Result(kernel.name, found, *milliseconds, difference, seconds)


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


def _relative_difference(one: Any, other: Any) -> float:
    scale = max(1.0, float(np.abs(one).max()))
    return float(np.abs(one - other).max()) / scale


def _line(result: Result) -> str:
    times = (result.written_ms, result.one_thread_ms, result.threads_ms)
    ratios = f"{result.one_thread_ratio:7.2f}x {result.threads_ratio:7.2f}x"
    numbers = "".join(f"{one:10.2f}" for one in times)
    return f"{result.kernel:15}{numbers} {ratios}  {result.difference:.0e}  {result.found}"


def _mean(ratios: Sequence[float]) -> float:
    return math.exp(sum(math.log(one) for one in ratios) / len(ratios))


def compare(kernels: Sequence[PolybenchKernel], repeats: int, written_to: Path | None) -> None:
    """Prints a line for each kernel, and the geometric means of the ratios."""
    # Threads that wait take no time from others.
    os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")
    threads = host_description().cores
    print(f"{'':15}{'written':>10}{'1 thread':>10}{f'{threads} threads':>10}{'ratios':>14}")
    results = []
    for one in kernels:
        results.append(measured(one, repeats))
        print(_line(results[-1]), flush=True)
    changed = [one for one in results if not one.found.startswith(_AS_WRITTEN)]
    if changed:
        one_thread = _mean([one.one_thread_ratio for one in changed])
        all_threads = _mean([one.threads_ratio for one in changed])
        print(f"geometric means of the {len(changed)} that are not as written: ", end="")
        print(f"{one_thread:.2f}x on one thread, {all_threads:.2f}x on {threads}")
    if written_to is not None:
        written_to.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")


def main() -> None:
    """Parses the options and compares the kernels that they name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", help="names; all without any")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each program")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    kernels = [KERNELS[name] for name in options.kernels or KERNELS]
    compare(kernels, options.repeats, options.json)


if __name__ == "__main__":
    main()

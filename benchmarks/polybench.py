"""PolyBench's thirty kernels: loops as they are written, and as the polyhedral scheduler has them.

Both are compiled for this machine and run in turn, each on fresh copies of the same arguments;
what stands in the last column is the ratio of their least times. The results of both are compared.

    python benchmarks/polybench.py
    python benchmarks/polybench.py jacobi-2d lu --json polybench.json
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from polybench_kernels import KERNELS
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.polyhedral.cpu_loop_nest import CpuLoopNest
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels


@dataclass(frozen=True)
class Result:
    """What was found and measured of one kernel; times in milliseconds."""

    kernel: str
    found: str
    written_ms: float
    scheduled_ms: float
    difference: float
    compile_seconds: float

    @property
    def ratio(self) -> float:
        """How many times as fast the scheduled loops are."""
        return self.written_ms / self.scheduled_ms


def measured(name: str, repeats: int) -> Result:
    """Compiles and runs one kernel both ways."""
    kernel = KERNELS[name]
    func = kernel.build(*kernel.large)
    machine = host_description()
    start = time.perf_counter()
    scheduled, found = _scheduled(func, machine)
    seconds = time.perf_counter() - start
    programs = [_program(func), _program(scheduled)]
    arguments = kernel.arguments(func)
    results = [_arrays(arguments) for _ in programs]
    times = [math.inf, math.inf]
    for _ in range(repeats):
        for number, program in enumerate(programs):
            results[number] = _arrays(arguments)
            times[number] = min(times[number], _seconds(program, results[number]))
    pairs = [(a.numpy(), b.numpy()) for a, b in zip(*results, strict=True)]
    difference = max(_relative_difference(a, b) for a, b in pairs)
    return Result(name, found, times[0] * 1e3, times[1] * 1e3, difference, seconds)


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


def _seconds(program: Callable[..., None], arrays: Sequence[Any]) -> float:
    start = time.perf_counter()
    program(*arrays)
    return time.perf_counter() - start


def _relative_difference(one: Any, other: Any) -> float:
    scale = max(1.0, float(np.abs(one).max()))
    return float(np.abs(one - other).max()) / scale


def _line(result: Result) -> str:
    times = f"{result.written_ms:9.2f} {result.scheduled_ms:9.2f}"
    return (
        f"{result.kernel:15}{times} {result.ratio:7.2f}x  {result.difference:.0e}  {result.found}"
    )


def main() -> None:
    """Prints a line for each kernel, and the geometric mean of the ratios."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kernels", nargs="*", help="names; all without any")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each program")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    print(f"{'kernel':15}{'written':>9} {'ours, ms':>9} {'ratio':>8}  diff.  found")
    results = []
    for name in options.kernels or KERNELS:
        results.append(measured(name, options.repeats))
        print(_line(results[-1]), flush=True)
    changed = [one for one in results if not one.found.startswith(_AS_WRITTEN)]
    if changed:
        mean = math.exp(sum(math.log(one.ratio) for one in changed) / len(changed))
        print(f"geometric mean of the {len(changed)} that are not as written: {mean:.2f}x")
    if options.json is not None:
        lines = [asdict(one) | {"ratio": one.ratio} for one in results]
        options.json.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()

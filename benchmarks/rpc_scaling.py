"""Trials a minute on one and on two RPC servers of this machine.

Every candidate sleeps instead of computing, so that what a trial costs on a server is fixed and
two cores are enough: the figure is what the session adds to it. Servers are started as users start
them, with 'tvm-ext rpc-server'.

    python benchmarks/rpc_scaling.py --trials 24 --sleep 0.3
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import tvm
from rich.console import Console
from tvm import te, tirx
from tvm.rpc.tracker import Tracker
from tvm.s_tir import meta_schedule as ms

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.targets import compiling_for
from tvm_ext.tir_schedules.recorded_schedule import kernel_hash
from tvm_ext.tuning.candidate import Candidate, kernel_task
from tvm_ext.tuning.jobs import TimingPlan
from tvm_ext.tuning.measurer import Measurer
from tvm_ext.tuning.runner import RunDeviceAddress, alive_servers, rpc_devices
from tvm_ext.tuning.search import KernelSearch

_HOST, _KEY = "127.0.0.1", "rpc-scaling"
_SERVER = "from tvm_ext.cli.main import main; main()"
_PLAN = TimingPlan(turn_seconds=0.001, fewest_turns=4, most_turns=4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints trials a minute for one and two servers, and their ratio."""
    parser = argparse.ArgumentParser(prog="rpc_scaling.py", description=__doc__)
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--sleep", type=float, default=0.3, help="seconds of one call")
    asked = parser.parse_args(arguments)
    machine = host_description()
    rates = []
    with compiling_for(machine):
        for servers in (1, 2):
            rates.append(_rate(machine, servers, asked.trials, asked.sleep))
    console = Console()
    for servers, rate in zip((1, 2), rates, strict=True):
        console.print(f"{servers} server(s): {rate:.1f} trials a minute")
    console.print(f"ratio {rates[1] / rates[0]:.2f}")
    return 0


def _rate(machine: CpuDescription, servers: int, trials: int, sleep: float) -> float:
    with (
        _servers(servers) as tracker,
        Measurer(machine, plan=_PLAN, devices=rpc_devices(tracker, _KEY, 60.0)) as measurer,
    ):
        default = _default(machine)
        measurer.prepare([default])
        candidates = [_sleeping(default, sleep + 1e-6 * i) for i in range(trials + servers)]
        # Processes that have to start first are not what is asked for.
        list(measurer.measure(candidates[trials:]))
        begun = time.perf_counter()
        outcomes = list(measurer.measure(candidates[:trials]))
        seconds = time.perf_counter() - begun
    failed = [outcome.message for outcome in outcomes if outcome.status != "ok"]
    if failed:
        raise RuntimeError(f"{len(failed)} trials failed: {failed[0]}")
    return 60 * trials / seconds


@contextmanager
def _servers(count: int) -> Iterator[str]:
    tracker = Tracker(_HOST, port=9490, port_end=9590, silent=True)
    address = f"{_HOST}:{tracker.port}"
    command = [sys.executable, "-P", "-c", _SERVER, "worker", "--tracker", address, "--key", _KEY]
    nowhere = subprocess.DEVNULL
    processes = [subprocess.Popen(command, stdout=nowhere, stderr=nowhere) for _ in range(count)]
    try:
        while alive_servers(RunDeviceAddress(_HOST, tracker.port, _KEY)) < count:
            time.sleep(0.2)
        yield address
    finally:
        for process in processes:
            process.kill()
            process.wait()
        tracker.terminate()


def _default(machine: CpuDescription) -> Candidate:
    left = te.placeholder((64,), name="left")
    result = te.compute((64,), lambda i: left[i] + 1.0, name="result")
    task = kernel_task("sleeping", te.create_prim_func([left, result]))
    model = ms.cost_model.RandomModel()
    default = KernelSearch(task, machine, model, lambda mod: mod, 1, 0).default
    if default is None:
        raise RuntimeError("no template takes the kernel")
    return default


def _sleeping(candidate: Candidate, seconds: float) -> Candidate:
    func = candidate.mod["main"]
    sleep = tirx.Evaluate(tirx.call_extern("int32", "usleep", int(seconds * 1e6)))
    mod = tvm.IRModule({"main": func.with_body(tirx.SeqStmt([sleep, func.body]))})
    return replace(candidate, mod=mod, hash=kernel_hash(mod))


if __name__ == "__main__":
    sys.exit(main())

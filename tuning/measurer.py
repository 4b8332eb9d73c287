"""Builds and runs candidates on worker processes, and says how each of them ended."""

import os
import queue
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tvm_ext.hardware.description import Description
from tvm_ext.tuning.build_job import build, build_job
from tvm_ext.tuning.candidate import Candidate, plain_json
from tvm_ext.tuning.kernel_data import kernel_arguments, random_arrays
from tvm_ext.tuning.rpc_servers import alive_servers
from tvm_ext.tuning.run_device import RunDeviceAddress
from tvm_ext.tuning.run_job import (
    ExpectedJob,
    RunJob,
    Timing,
    TimingPlan,
    check_and_time,
    compute_expected,
    save_arrays,
)
from tvm_ext.tuning.runner_pool import Runner, RunnerPool
from tvm_ext.tuning.task import KernelTask
from tvm_ext.tuning.trial import Status
from tvm_ext.tuning.worker import Worker, WorkerDied, WorkerFailure, WorkerTimeout, WorkRaised


@dataclass(frozen=True)
class Limits:
    """What one candidate may take.

    Attributes
    ----------
    build_seconds, run_seconds : float
        Time to generate its code, and to check and time it.
    expected_seconds : float
        Time to build and run the unscheduled kernel, once a task.
    memory_bytes : int
        Address space beyond what a worker has after its start.
    """

    build_seconds: float = 30.0
    run_seconds: float = 30.0
    expected_seconds: float = 300.0
    memory_bytes: int = 8 << 30


@dataclass(frozen=True)
class Measurement:
    """How one candidate ended.

    Attributes
    ----------
    status : str
        "ok", "build" (no code), "run" (it failed or died), "timeout" or "wrong" (numbers).
    message : str
        What happened, when the status is not "ok".
    timing : Timing
        Seconds of the candidate and of the reference, turn by turn.
    build_seconds, run_seconds : float
        Wall time of the trial's two parts.
    """

    candidate: Candidate
    status: Status
    message: str = ""
    timing: Timing = field(default_factory=Timing)
    build_seconds: float = 0.0
    run_seconds: float = 0.0


_Outcome = tuple[Status, str, Timing]


@dataclass
class _Prepared:
    """Files of one task: arrays with expected results, and the reference kernel."""

    data: str
    reference: Candidate
    library: str


class Measurer:
    """Measures candidates of any task that was prepared.

    Parameters
    ----------
    machine : Description
        What code is generated for; its cores are the threads of a kernel.
    limits : Limits
        What one candidate may take.
    plan : TimingPlan
        How long to time.
    seed : int
        Seed of the arrays.
    devices : Sequence[RunDeviceAddress]
        Where candidates run, one at a time each. Empty for this machine.
    """

    def __init__(
        self,
        machine: Description,
        limits: Limits | None = None,
        plan: TimingPlan | None = None,
        seed: int = 0,
        devices: Sequence[RunDeviceAddress] = (),
    ) -> None:
        self.machine = machine
        self.limits = limits or Limits()
        self.plan = plan or TimingPlan()
        self._seed = seed
        self._target = plain_json(dict(machine.tvm_target().export()))
        self._folder = Path(tempfile.mkdtemp(prefix="tvm-ext-tune-"))
        self._prepared: dict[str, _Prepared] = {}
        self._counter = 0
        self._closing = False
        self._runners = RunnerPool(
            list(devices) or [RunDeviceAddress()], self.limits.memory_bytes, alive_servers
        )
        builders = max(1, min(4, os.cpu_count() or 1))
        self._builders = _WorkerPool(builders, self.limits.memory_bytes)
        self._run_threads = ThreadPoolExecutor(self._runners.size)

    def __enter__(self) -> "Measurer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes and removes all files."""
        self._closing = True
        self._builders.close()
        self._runners.close()
        self._run_threads.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def prepare(self, candidates: Sequence[Candidate]) -> dict[str, str]:
        """Makes ready the tasks of ``candidates``, which are their references from then on.

        Computes what each kernel's results have to be, from the kernel without a schedule, and
        builds the reference with which other candidates take turns. All in parallel: nothing is
        timed.

        Returns
        -------
        dict[str, str]
            By kernel hash, why a task cannot be tuned.
        """
        new = [one for one in candidates if one.task.hash not in self._prepared]
        failed = zip(new, self._builders.map(self._prepare, new), strict=True)
        return {one.task.hash: reason for one, reason in failed if reason}

    def _prepare(self, candidate: Candidate) -> str:
        task, limits = candidate.task, self.limits
        arguments = kernel_arguments(task.workload["main"])
        inputs, data = str(self._new_file("npz")), str(self._new_file("npz"))
        plain, library = str(self._new_file("so")), str(self._new_file("so"))
        save_arrays(inputs, random_arrays(arguments, self._seed), arguments.results)
        what = "without a schedule"
        try:
            job = build_job(task.workload, self._target, plain)
            self._builders.call(build, job, timeout=limits.expected_seconds)
            expected = ExpectedJob(plain, inputs, arguments.results, data, RunDeviceAddress())
            self._builders.call(compute_expected, expected, timeout=limits.expected_seconds)
            what = "with its default schedule"
            job = build_job(candidate.mod, self._target, library)
            self._builders.call(build, job, timeout=limits.build_seconds)
        except WorkerFailure as error:
            return f"the kernel {what} is of no use: it {_one_line(error)}"
        finally:
            for path in (plain, inputs):
                Path(path).unlink(missing_ok=True)
        self._prepared[task.hash] = _Prepared(data, candidate, library)
        return ""

    def forget(self, task: KernelTask) -> None:
        """Removes the files of a task that is done."""
        prepared = self._prepared.pop(task.hash, None)
        if prepared is not None:
            for path in (prepared.data, prepared.library):
                Path(path).unlink(missing_ok=True)

    def measure(self, candidates: Sequence[Candidate]) -> Iterator[Measurement]:
        """Builds all candidates at once, then runs them; yields each when it has ended.

        Nothing is built while something is timed on this machine.
        """
        built = list(self._builders.map(self._build, candidates))
        futures: list[Future[Measurement]] = []
        waiting = []
        for candidate, library, failed, seconds in built:
            if failed is not None:
                yield failed
            else:
                waiting.append((candidate, library, seconds))
        for candidate, library, seconds in waiting:
            futures.append(self._run_threads.submit(self._run, candidate, library, seconds))
        done: queue.SimpleQueue[Future[Measurement]] = queue.SimpleQueue()
        for future in futures:
            future.add_done_callback(done.put)
        try:
            for _ in futures:
                yield done.get().result()
        finally:
            for future in futures:
                future.cancel()

    def _build(self, candidate: Candidate) -> tuple[Candidate, str, Measurement | None, float]:
        library = str(self._new_file("so"))
        begun = time.perf_counter()
        failed = None
        try:
            job = build_job(candidate.mod, self._target, library)
            self._builders.call(build, job, timeout=self.limits.build_seconds)
        except WorkerTimeout as error:
            failed = Measurement(candidate, "timeout", f"code generation {error}")
        except WorkerFailure as error:
            failed = Measurement(candidate, "build", _one_line(error))
        return candidate, library, failed, time.perf_counter() - begun

    def _run(self, candidate: Candidate, library: str, build_seconds: float) -> Measurement:
        begun = time.perf_counter()
        try:
            status, message, timing = self._run_somewhere(candidate, library)
        finally:
            Path(library).unlink(missing_ok=True)
        seconds = time.perf_counter() - begun
        return Measurement(candidate, status, message, timing, build_seconds, seconds)

    def _run_somewhere(self, candidate: Candidate, library: str) -> _Outcome:
        """Where servers can be lost, a candidate gets a second chance on another one."""
        chances = 2 if self._runners.is_remote else 1
        while True:
            chances -= 1
            with self._runners.lent() as runner:
                try:
                    return self._run_on(runner, candidate, library)
                except WorkerTimeout as error:
                    outcome: _Outcome = ("timeout", f"running {error}", Timing())
                except (WorkerDied, WorkRaised) as error:
                    outcome = ("run", _one_line(error), Timing())
            lost = not self._closing and self._runners.lost_server()
            if (chances < 1 and not lost) or self._closing:
                return outcome

    def _run_on(self, runner: Runner, candidate: Candidate, library: str) -> _Outcome:
        prepared = self._prepared[candidate.task.hash]
        job = RunJob(
            library=library,
            packed=candidate.packed,
            reference=prepared.library,
            reference_packed=prepared.reference.packed,
            data=prepared.data,
            threads=getattr(self.machine, "cores", 1),
            plan=self.plan,
            device=runner.address,
        )
        timing: Timing = runner.worker.call(check_and_time, job, timeout=self.limits.run_seconds)
        if timing.wrong:
            return "wrong", timing.wrong, Timing()
        return "ok", "", timing

    def _new_file(self, ending: str) -> Path:
        self._counter += 1
        return self._folder / f"kernel{self._counter}.{ending}"


class _WorkerPool:
    """Workers that any thread may borrow."""

    def __init__(self, count: int, memory_bytes: int) -> None:
        self._workers = [Worker(memory_bytes) for _ in range(count)]
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(count)

    def call(self, function: Any, *arguments: Any, timeout: float) -> Any:
        worker = self._free.get()
        try:
            return worker.call(function, *arguments, timeout=timeout)
        finally:
            self._free.put(worker)

    def map(self, function: Any, items: Sequence[Any]) -> Iterator[Any]:
        return self._threads.map(function, items)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.stop()


def _one_line(error: BaseException) -> str:
    """The end of an error's text, where TVM says what is wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__)[:300]

"""Builds and runs candidates on worker processes, and says how each of them ended."""

import itertools
import os
import queue
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from tvm_ext.hardware.description import Description
from tvm_ext.tuning.build_job import build, build_job
from tvm_ext.tuning.candidate import Candidate, plain_json
from tvm_ext.tuning.kernel_data import kernel_arguments, random_arrays
from tvm_ext.tuning.lines import last_line
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
from tvm_ext.tuning.worker import WorkerDied, WorkerFailure, WorkerTimeout, WorkRaised
from tvm_ext.tuning.worker_pool import WorkerPool

# How long a candidate may wait for a server, beside the time that it may run there.
_QUEUE_SECONDS = 120.0


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

_NOT_RUN: _Outcome = ("run", "it was not run", Timing())


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
    scratch : Path, optional
        Where libraries and arrays are kept meanwhile; the system's folder for such files if left
        out.
    """

    def __init__(
        self,
        machine: Description,
        limits: Limits | None = None,
        plan: TimingPlan | None = None,
        seed: int = 0,
        devices: Sequence[RunDeviceAddress] = (),
        scratch: Path | None = None,
    ) -> None:
        self.machine = machine
        self.limits = limits or Limits()
        self.plan = plan or TimingPlan()
        self._seed = seed
        self._target = plain_json(dict(machine.tvm_target().export()))
        self._folder = Path(tempfile.mkdtemp(prefix="candidates-", dir=scratch))
        self._prepared: dict[str, _Prepared] = {}
        self._numbers = itertools.count()
        self._futures: list[Future[Measurement]] = []
        self._closing = False
        self._runners = RunnerPool(
            list(devices) or [RunDeviceAddress()], self.limits.memory_bytes, alive_servers
        )
        builders = max(1, min(4, os.cpu_count() or 1))
        self._builders = WorkerPool(builders, self.limits.memory_bytes)
        self._run_threads = ThreadPoolExecutor(self._runners.size)

    def __enter__(self) -> "Measurer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes and removes all files."""
        self._closing = True
        self.skip_waiting()
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
        if self._closing:
            return "the session was interrupted"
        task, limits = candidate.task, self.limits
        arguments = kernel_arguments(task.workload["main"])
        if not arguments.results:
            return "it writes no tensor that could be compared"
        data, plain, library = (str(self._new_file(end)) for end in ("npz", "so", "so"))
        inputs = []
        for one in (arguments, arguments.positive()):
            inputs.append(str(self._new_file("npz")))
            save_arrays(inputs[-1], random_arrays(one, self._seed), arguments.results)
        what = "without a schedule"
        try:
            job = build_job(task.workload, self._target, plain)
            self._builders.call(build, job, timeout=limits.expected_seconds)
            self._compute(ExpectedJob(plain, tuple(inputs), data, RunDeviceAddress()))
            what = "with its default schedule"
            job = build_job(candidate.mod, self._target, library)
            self._builders.call(build, job, timeout=limits.build_seconds)
        except WorkerFailure as error:
            return f"the kernel {what} is of no use: {last_line(error)}"
        finally:
            for path in (plain, *inputs):
                Path(path).unlink(missing_ok=True)
        self._prepared[task.hash] = _Prepared(data, candidate, library)
        return ""

    def _compute(self, job: ExpectedJob) -> None:
        """Runs an unscheduled kernel: on a server if candidates do, whose code it is."""
        timeout = self.limits.expected_seconds
        if not self._runners.is_remote:
            self._builders.call(compute_expected, job, timeout=timeout)
            return
        with self._runners.lent() as runner:
            there = replace(job, device=replace(runner.address, session_seconds=timeout))
            runner.worker.call(compute_expected, there, timeout=timeout + _QUEUE_SECONDS)

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
        waiting = []
        for candidate, library, failed, seconds in built:
            if failed is None:
                waiting.append((candidate, library, seconds))
            elif not self._closing:
                yield failed
        self._futures = [self._run_threads.submit(self._run, *one) for one in waiting]
        done: queue.SimpleQueue[Future[Measurement]] = queue.SimpleQueue()
        for future in self._futures:
            future.add_done_callback(done.put)
        for _ in waiting:
            future = done.get()
            if not future.cancelled() and not self._closing:
                yield future.result()

    def skip_waiting(self) -> None:
        """Has ``measure`` end with the candidates that run now."""
        for future in self._futures:
            future.cancel()

    def interrupt(self) -> None:
        """Ends all processes; what they were at counts for nothing. Safe in signal handlers."""
        self._closing = True
        self._builders.kill()
        self._runners.kill()

    def _build(self, candidate: Candidate) -> tuple[Candidate, str, Measurement | None, float]:
        library = str(self._new_file("so"))
        begun = time.perf_counter()
        failed = None
        try:
            if self._closing:
                raise WorkerDied("the session was interrupted")
            job = build_job(candidate.mod, self._target, library)
            self._builders.call(build, job, timeout=self.limits.build_seconds)
        except WorkerTimeout as error:
            failed = Measurement(candidate, "timeout", f"code generation {error}")
        except WorkerFailure as error:
            failed = Measurement(candidate, "build", last_line(error))
        return candidate, library, failed, time.perf_counter() - begun

    def _run(self, candidate: Candidate, library: str, build_seconds: float) -> Measurement:
        begun = time.perf_counter()
        status, message, timing = _NOT_RUN
        try:
            if not self._closing:
                status, message, timing = self._run_somewhere(candidate, library)
        finally:
            Path(library).unlink(missing_ok=True)
        seconds = time.perf_counter() - begun
        return Measurement(candidate, status, message, timing, build_seconds, seconds)

    def _run_somewhere(self, candidate: Candidate, library: str) -> _Outcome:
        """A process that dies, or a server that is lost, may not be the candidate's fault.

        It gets a second chance, in a new process or on another server.
        """
        outcome = _NOT_RUN
        for _ in range(2):
            with self._runners.lent() as runner:
                try:
                    return self._run_on(runner, candidate, library)
                except WorkerTimeout as error:
                    return "timeout", f"running {error}", Timing()
                except (WorkerDied, WorkRaised) as error:
                    outcome = ("run", last_line(error), Timing())
                    # What it did to the memory of its process is not to be the next one's fault.
                    runner.worker.stop()
            if self._closing:
                break
            self._runners.check_servers()
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
        timeout = self.limits.run_seconds
        if self._runners.is_remote:
            # The server itself ends what takes too long; waiting for one is no fault.
            timeout += _QUEUE_SECONDS
        timing: Timing = runner.worker.call(check_and_time, job, timeout=timeout)
        if timing.wrong:
            return "wrong", timing.wrong, Timing()
        return "ok", "", timing

    def _new_file(self, ending: str) -> Path:
        return self._folder / f"kernel{next(self._numbers)}.{ending}"

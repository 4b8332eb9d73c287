"""Builds and runs candidates on worker processes, and says how each of them ended."""

import itertools
import os
import queue
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tvm_ext.configs.errors import last_line
from tvm_ext.hardware.cuda.resources import ResourceLimitError
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.tuning.backend import tuning_of
from tvm_ext.tuning.candidate import Candidate, KernelTask, plain_json
from tvm_ext.tuning.jobs import RunJob, Timing, TimingPlan, build, build_job, check_and_time
from tvm_ext.tuning.logs.trial_log import Status
from tvm_ext.tuning.references import References
from tvm_ext.tuning.runner import (
    QUEUE_SECONDS,
    RunDeviceAddress,
    Runner,
    RunnerPool,
    alive_servers,
    device_kind,
)
from tvm_ext.tuning.session_options import Limits
from tvm_ext.tuning.worker import (
    NO_DEADLINE,
    Deadline,
    OutOfTime,
    WorkerDied,
    WorkerFailure,
    WorkerPool,
    WorkerTimeout,
    WorkRaised,
)


@dataclass(frozen=True)
class Measurement:
    """How one candidate ended.

    Attributes
    ----------
    status : str
        "ok", "resources" (it takes more than a GPU has), "build" (no code), "run" (it failed or
        died), "timeout" or "wrong" (numbers); "modelled" where the time is a model's answer.
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


# Turns of a candidate that is about to be chosen, as a multiple of those of a trial, and the
# relative spread that ends them.
_CONFIRMING_TURNS = 3
_CONFIRMING_SPREAD = 0.01

_Outcome = tuple[Status, str, Timing]

_NOT_RUN: _Outcome = ("run", "it was not run", Timing())


@dataclass(frozen=True)
class _Built:
    """A candidate with its library, and the seconds that it took to build it."""

    candidate: Candidate
    library: str
    seconds: float


class Measurer:
    """Measures candidates of any task that was prepared.

    Parameters
    ----------
    machine : MachineDescription
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
        machine: MachineDescription,
        limits: Limits | None = None,
        plan: TimingPlan | None = None,
        seed: int = 0,
        devices: Sequence[RunDeviceAddress] = (),
        scratch: Path | None = None,
    ) -> None:
        self.machine = machine
        self.limits = limits or Limits()
        self.plan = plan or TimingPlan()
        self._target = plain_json(dict(machine.tvm_target().export()))
        self._folder = Path(tempfile.mkdtemp(prefix="candidates-", dir=scratch))
        self._numbers = itertools.count()
        self._futures: list[Future[Measurement]] = []
        self._closing = False
        kind = device_kind(machine)
        arch = getattr(machine, "arch", "")
        addresses = [replace(one, kind=kind, arch=arch) for one in devices or [RunDeviceAddress()]]
        memory = self.limits.memory_bytes
        if kind != "cpu" and not devices:
            # CUDA reserves more address space than any limit that would be of use.
            memory = 0
        self._runners = RunnerPool(addresses, memory, alive_servers)
        builders = max(1, min(4, os.cpu_count() or 1))
        self._builders = WorkerPool(builders, memory)
        self._run_threads = ThreadPoolExecutor(self._runners.size)
        self._references = References(
            machine,
            self._target,
            self.limits,
            seed,
            self._builders,
            self._runners,
            self._new_file,
        )

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

    def prepare(
        self, candidates: Sequence[Candidate], deadline: Deadline = NO_DEADLINE
    ) -> dict[str, str]:
        """Makes ready the tasks of ``candidates``, which are their references from then on.

        Computes what each kernel's results have to be, from the kernel without a schedule, and
        builds the reference with which other candidates take turns. All in parallel: nothing is
        timed.

        Returns
        -------
        dict[str, str]
            By kernel hash, why a task cannot be tuned. One that was not ready by the deadline is
            not among them; ``is_prepared`` tells.
        """
        new = [one for one in candidates if one.task not in self._references]

        def prepared(candidate: Candidate) -> str:
            if self._closing:
                return "the session was interrupted"
            with suppress(OutOfTime):
                return self._references.make(candidate, deadline)
            return ""

        failed = zip(new, self._builders.map(prepared, new), strict=True)
        return {one.task.hash: reason for one, reason in failed if reason}

    def is_prepared(self, task: KernelTask) -> bool:
        """Whether candidates of a task can be measured."""
        return task in self._references

    def forget(self, task: KernelTask) -> None:
        """Removes the files of a task that is done."""
        self._references.forget(task)

    def measure(
        self, candidates: Sequence[Candidate], deadline: Deadline = NO_DEADLINE
    ) -> Iterator[Measurement]:
        """Builds all candidates at once, then runs them; yields each when it has ended.

        Nothing is built while something is timed on this machine. A candidate that is not built by
        the deadline is left out.
        """
        waiting = []
        for built in list(self._builders.map(partial(self._build, deadline=deadline), candidates)):
            if isinstance(built, _Built):
                waiting.append(built)
            elif built is not None and not self._closing:
                yield built
        self._futures = [self._run_threads.submit(self._run, one) for one in waiting]
        done: queue.SimpleQueue[Future[Measurement]] = queue.SimpleQueue()
        for future in self._futures:
            future.add_done_callback(done.put)
        for _ in waiting:
            future = done.get()
            if not future.cancelled() and not self._closing:
                yield future.result()

    @contextmanager
    def confirming(self) -> Iterator[None]:
        """Trials in the block take more turns, however slow the candidate is."""
        plan = self.plan
        self.plan = replace(
            plan,
            most_turns=plan.most_turns * _CONFIRMING_TURNS,
            slow_factor=float("inf"),
            spread=_CONFIRMING_SPREAD,
        )
        try:
            yield
        finally:
            self.plan = plan

    def skip_waiting(self) -> None:
        """Has ``measure`` end with the candidates that run now."""
        for future in self._futures:
            future.cancel()

    def interrupt(self) -> None:
        """Ends all processes; what they were at counts for nothing. Safe in signal handlers."""
        self._closing = True
        self._builders.kill()
        self._runners.kill()

    def _build(self, candidate: Candidate, deadline: Deadline) -> _Built | Measurement | None:
        """The candidate's code, how it failed, or None when the time was over before."""
        library = str(self._new_file("so"))
        begun = time.perf_counter()
        try:
            if self._closing:
                raise WorkerDied("the session was interrupted")
            is_reference = self._references[candidate.task].candidate.hash == candidate.hash
            check = tuning_of(self.machine).build_check(self.machine, is_reference)
            job = build_job(candidate.mod, self._target, library, check)
            with deadline.limited(self.limits.build_seconds) as seconds:
                self._builders.call(build, job, timeout=seconds)
        except OutOfTime:
            return None
        except WorkerTimeout as error:
            return Measurement(candidate, "timeout", f"code generation {error}")
        except WorkerFailure as error:
            kind = error.kind if isinstance(error, WorkRaised) else ""
            status: Status = "resources" if kind == ResourceLimitError.__name__ else "build"
            return Measurement(candidate, status, last_line(error))
        return _Built(candidate, library, time.perf_counter() - begun)

    def _run(self, built: _Built) -> Measurement:
        begun = time.perf_counter()
        status, message, timing = _NOT_RUN
        try:
            if not self._closing:
                status, message, timing = self._run_somewhere(built.candidate, built.library)
        finally:
            Path(built.library).unlink(missing_ok=True)
        seconds = time.perf_counter() - begun
        return Measurement(built.candidate, status, message, timing, built.seconds, seconds)

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
        reference = self._references[candidate.task]
        job = RunJob(
            library=library,
            packed=candidate.packed,
            reference=reference.library,
            reference_packed=reference.candidate.packed,
            data=reference.data,
            threads=getattr(self.machine, "cores", 1),
            plan=self.plan,
            device=runner.address,
        )
        timeout = self.limits.run_seconds
        if self._runners.is_remote:
            # The server itself ends what takes too long; waiting for one is no fault.
            timeout += QUEUE_SECONDS
        timing: Timing = runner.worker.call(check_and_time, job, timeout=timeout)
        if timing.wrong:
            return "wrong", timing.wrong, Timing()
        return "ok", "", timing

    def _new_file(self, ending: str) -> Path:
        return self._folder / f"kernel{next(self._numbers)}.{ending}"

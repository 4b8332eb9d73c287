"""Runs cases in processes of their own, which are replaced when one dies or takes too long.

For tests in which a crash or a hang of the process is a result and not the end of the tests.
"""

import contextlib
import multiprocessing
import os
import resource
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from time import monotonic
from typing import Generic, TypeVar

# Each model is compiled, whatever an earlier run left.
os.environ["TVM_EXT_CACHE"] = "off"

CRASH, TIMEOUT = "crash", "timeout"

# A child starts with everything imported and all cases made, so that replacing one is cheap. The
# parent never runs anything of TVM's: its threads would be missing in the child.
_fork = multiprocessing.get_context("fork")

Case = TypeVar("Case")
Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class Job(Generic[Case, Outcome]):
    """What is done with cases.

    Attributes
    ----------
    cases : sequence
        Any objects.
    run : callable
        The outcome of a case, computed in a worker; it comes back pickled.
    lost : callable
        The outcome of a case that a worker did not survive, from the case, ``CRASH`` or
        ``TIMEOUT``, and one line about it.
    seconds : float
        How long a case may take.
    gibibytes : int
        Address space of a worker, not memory in use: the libraries alone are mapped into about
        three.
    cases_per_process : int, optional
        After that many a worker is replaced by a new one.
    """

    cases: Sequence[Case]
    run: Callable[[Case], Outcome]
    lost: Callable[[Case, str, str], Outcome]
    seconds: float = 60.0
    gibibytes: int = 10
    cases_per_process: int | None = None


class _Worker(Generic[Case, Outcome]):
    """One process, and the case that it is at."""

    def __init__(self, job: Job[Case, Outcome], index: int) -> None:
        self.job = job
        self.pipe, other = _fork.Pipe()
        self.process = _fork.Process(target=_serve, args=(other, job), daemon=True)
        self.process.start()
        other.close()
        self.given = 0
        self.give(index)

    def give(self, index: int) -> None:
        self.case, self.deadline = self.job.cases[index], monotonic() + self.job.seconds
        self.given += 1
        self.pipe.send(index)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()

    def result(self) -> tuple[Outcome, bool]:
        """The outcome of its case, and whether it can be given another one."""
        if not self.pipe.poll():
            return self.job.lost(self.case, TIMEOUT, f"over {self.job.seconds:.0f} s"), False
        try:
            return self.pipe.recv(), self.given != self.job.cases_per_process
        except EOFError:
            self.process.join()
            reason = f"exit code {self.process.exitcode}"
            return self.job.lost(self.case, CRASH, reason), False


def run_cases(job: Job[Case, Outcome], processes: int = 1) -> Iterator[Outcome]:
    """The outcome of every case, in the order in which they end."""
    left = iter(range(len(job.cases)))
    busy: list[_Worker[Case, Outcome]] = []
    try:
        for index in left:
            busy.append(_Worker(job, index))
            if len(busy) == processes:
                break
        while busy:
            for worker in _ready(busy):
                outcome, alive = worker.result()
                yield outcome
                index = next(left, -1)
                if alive and index >= 0:
                    worker.give(index)
                    continue
                busy.remove(worker)
                worker.end()
                if index >= 0:
                    busy.append(_Worker(job, index))
    finally:
        for worker in busy:
            worker.end()


def _ready(busy: list[_Worker[Case, Outcome]]) -> list[_Worker[Case, Outcome]]:
    """Those with an answer, dead, or beyond their time."""
    soonest = min(worker.deadline for worker in busy)
    ready = connection.wait([w.pipe for w in busy], max(soonest - monotonic(), 0.0))
    return [w for w in busy if w.pipe in ready or w.deadline <= monotonic()]


def _serve(pipe: connection.Connection, job: Job[Case, Outcome]) -> None:
    """Answers case after case; what libraries print in between is dropped."""
    size = job.gibibytes << 30
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sink = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(sink, stream.fileno())
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(job.run(job.cases[pipe.recv()]))

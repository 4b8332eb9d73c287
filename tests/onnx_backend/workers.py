"""Runs cases in processes of their own, which are replaced when one dies or takes too long."""

import contextlib
import multiprocessing
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import connection
from time import monotonic

from cases import Case
from run_case import CRASH, TIMEOUT, Outcome, run_case

SECONDS = 60.0
# Address space, not memory in use: the libraries alone are mapped into about three.
GIBIBYTES = 10

# A child starts with everything imported and all cases made, so that replacing one is cheap. The
# parent never runs anything of TVM's: its threads would be missing in the child.
_fork = multiprocessing.get_context("fork")


class _Worker:
    """One process, and the case that it is at."""

    def __init__(self, cases: Sequence[Case]) -> None:
        self.pipe, other = _fork.Pipe()
        self.process = _fork.Process(target=_serve, args=(other, cases), daemon=True)
        self.process.start()
        other.close()
        self.index = -1
        self.deadline = 0.0

    def give(self, index: int) -> None:
        self.index, self.deadline = index, monotonic() + SECONDS
        self.pipe.send(index)

    def end(self) -> int | None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        return self.process.exitcode


def run_cases(cases: Sequence[Case], jobs: int = 1) -> Iterator[Outcome]:
    """The outcome of every case, in the order in which they end."""
    left = iter(range(len(cases)))
    busy: list[_Worker] = []
    try:
        for index in left:
            busy.append(_started(cases, index))
            if len(busy) == jobs:
                break
        while busy:
            for worker in _ready(busy):
                outcome, alive = _result(worker, cases[worker.index])
                yield outcome
                index = next(left, -1)
                if alive and index >= 0:
                    worker.give(index)
                    continue
                busy.remove(worker)
                worker.end()
                if index >= 0:
                    busy.append(_started(cases, index))
    finally:
        for worker in busy:
            worker.end()


def _started(cases: Sequence[Case], index: int) -> _Worker:
    worker = _Worker(cases)
    worker.give(index)
    return worker


def _ready(busy: list[_Worker]) -> list[_Worker]:
    """Those with an answer, dead, or beyond their time."""
    soonest = min(worker.deadline for worker in busy)
    ready = connection.wait([w.pipe for w in busy], max(soonest - monotonic(), 0.0))
    return [w for w in busy if w.pipe in ready or w.deadline <= monotonic()]


def _result(worker: _Worker, case: Case) -> tuple[Outcome, bool]:
    if not worker.pipe.poll():
        return Outcome(case.name, case.operator, TIMEOUT, f"over {SECONDS:.0f} s"), False
    try:
        return worker.pipe.recv(), True
    except EOFError:
        worker.process.join()
        reason = f"exit code {worker.process.exitcode}"
        return Outcome(case.name, case.operator, CRASH, reason), False


def _serve(pipe: connection.Connection, cases: Sequence[Case]) -> None:
    """Answers case after case; what libraries print in between is dropped."""
    size = GIBIBYTES << 30
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sink = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(sink, stream.fileno())
    with contextlib.suppress(EOFError):
        while True:
            pipe.send(run_case(cases[pipe.recv()]))

"""A process that does risky work: it can be timed out, limited in memory, and replaced."""

import contextlib
import errno
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeVar

from tvm_ext.configs.atomic_file import OutputPathError
from tvm_ext.tuning.worker_process import serve_in_fork

# A new process imports TVM before it can work.
_START_SECONDS = 120.0

# As the linker says it as well.
_FULL_DISK = os.strerror(errno.ENOSPC)


class WorkerFailure(Exception):
    """The work was not done; the text says why."""


class WorkerTimeout(WorkerFailure):
    """It took longer than its time limit."""


class WorkerDied(WorkerFailure):
    """The process ended while it worked."""


class WorkRaised(WorkerFailure):
    """The work itself raised an error.

    Attributes
    ----------
    kind : str
        Name of the error's class.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


class _Process(Protocol):
    """What a worker needs to know of its process, as ``subprocess.Popen`` has it."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class Worker:
    """Runs functions one at a time in a process of its own, which is started when needed.

    The process ignores Ctrl-C, which belongs to the session, and ends with it, however that ends.

    Parameters
    ----------
    memory_bytes : int or None
        Address space that the work may take beyond what the process has after its start.
    """

    def __init__(self, memory_bytes: int | None = None) -> None:
        self._memory_bytes = memory_bytes
        self._process: _Process | None = None
        self._pipe: Connection | None = None

    @property
    def process_id(self) -> int | None:
        """The process that waits for work; None before the first call."""
        return self._process.pid if self._process is not None else None

    def call(self, function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:
        """What ``function(*arguments)`` returns; both are pickled, ``function`` by its name.

        Raises
        ------
        WorkerTimeout, WorkerDied, WorkRaised
            See there. After the first two the next call gets a new process.
        OutputPathError
            The disk is full: no other candidate would do better.
        """
        pipe = self._started()
        try:
            pipe.send((function.__module__, function.__qualname__, arguments))
            if not self._answered(pipe, timeout):
                self.stop()
                raise WorkerTimeout(f"took longer than {timeout:g} s")
            done, *answer = pipe.recv()
        except (EOFError, OSError) as error:
            raise WorkerDied(self._cause_of_death()) from error
        except BaseException:
            # Interrupted: what the process still sends answers no later question.
            self.stop()
            raise
        if not done:
            if _FULL_DISK in answer[-1]:
                raise OutputPathError(
                    f"cannot write the program of a trial: {_FULL_DISK}; expected folders of "
                    "records and of temporary files with free space: make room, or choose another "
                    "with --output"
                )
            raise WorkRaised(*answer)
        return answer[0]

    def stop(self) -> None:
        """Ends the process, whatever it does."""
        process, pipe = self._process, self._pipe
        self._process = self._pipe = None
        if pipe is not None:
            pipe.close()
        if process is not None:
            # The group: the work may have started processes (a linker) of its own.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def kill(self) -> None:
        """Ends the process and leaves the rest to whoever waits for it: safe in signal handlers."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def start(self) -> None:
        """Starts the process, and returns when it is ready."""
        self._started()

    def _started(self) -> Connection:
        if self._process is not None and self._process.poll() is not None:
            self.stop()
        return self._pipe if self._pipe is not None else self._launched()

    def _launched(self) -> Connection:
        ours, theirs = Pipe()
        self._process = self._new_process(ours, theirs)
        theirs.close()
        self._pipe = ours
        try:
            if not self._answered(ours, _START_SECONDS):
                raise WorkerTimeout(f"the process was not ready after {_START_SECONDS:g} s")
            ours.recv()
        except (EOFError, OSError) as error:
            raise WorkerDied(self._cause_of_death()) from error
        except BaseException:
            # Interrupted: the next call would take "ready" for its answer.
            self.stop()
            raise
        return ours

    def _new_process(self, ours: Connection, theirs: Connection) -> _Process:
        """A process, in a session of its own, that serves ``theirs``."""
        command = [sys.executable, "-P", "-m", "tvm_ext.tuning.worker_process"]
        return subprocess.Popen(
            [*command, str(theirs.fileno()), str(self._memory_bytes or 0), str(os.getpid())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _answered(self, pipe: Connection, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            # In short steps, so that Ctrl-C is seen on every system.
            if pipe.poll(min(left, 0.2)):
                return True
        return False

    def _cause_of_death(self) -> str:
        process = self._process
        code = None
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout=5)
        self.stop()
        if code is None:
            return "the process stopped answering"
        if code < 0:
            limit = f" (memory limit {self._memory_bytes >> 20} MiB)" if self._memory_bytes else ""
            return f"the process died of {_signal_name(-code)}{limit}"
        return f"the process ended with exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class ForkedWorker(Worker):
    """A worker whose process is a copy of this one, with all that was registered or replaced here.

    It imports nothing anew. Threads of this process are missing in it, and a GPU that was used here
    cannot be used there.
    """

    def _new_process(self, ours: Connection, theirs: Connection) -> _Process:
        process = multiprocessing.get_context("fork").Process(
            target=serve_in_fork,
            args=(ours, theirs, self._memory_bytes or 0, os.getpid()),
            daemon=True,
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of the threads; a process that waits for one meets its time limit.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        return _Fork(process)


class _Fork:
    """A process of ``multiprocessing`` with the methods of ``Popen``."""

    def __init__(self, process: multiprocessing.process.BaseProcess) -> None:
        self._process = process
        self.pid = process.pid or 0

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("fork", timeout or 0.0)
        return code


# Several workers, lent to whoever needs one.


Item = TypeVar("Item")
Result = TypeVar("Result")


class WorkerPool:
    """Workers that any thread may borrow.

    Parameters
    ----------
    count : int
        How many.
    memory_bytes : int
        Memory limit of each.
    """

    def __init__(self, count: int, memory_bytes: int) -> None:
        self._workers = [Worker(memory_bytes) for _ in range(count)]
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)
        self._threads = ThreadPoolExecutor(count)

    def call(self, function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:
        """As ``Worker.call``, on the next worker that is free."""
        worker = self._free.get()
        try:
            return worker.call(function, *arguments, timeout=timeout)
        finally:
            self._free.put(worker)

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """``function`` of each item, as many at a time as there are workers."""
        return self._threads.map(function, items)

    def kill(self) -> None:
        """Ends all processes, as ``Worker.kill`` does."""
        for worker in self._workers:
            worker.kill()

    def close(self) -> None:
        """Ends all processes; calls that are under way fail."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for worker in self._workers:
            worker.stop()


# What has begun in time may take this much longer.
_ALLOWANCE_SECONDS = 1.0


class OutOfTime(Exception):
    """The time was over before the work was done, which says nothing about the work."""


@dataclass(frozen=True)
class Deadline:
    """When the time for building is over, and what a piece of work may take until then.

    Attributes
    ----------
    at : float
        A time of ``time.monotonic()``, in seconds; infinite without a deadline.
    """

    at: float = float("inf")

    def is_over(self) -> bool:
        """Whether nothing is left."""
        return time.monotonic() >= self.at

    @contextmanager
    def limited(self, seconds: float) -> Iterator[float]:
        """The time limit for a worker's call in the block, which may take ``seconds`` at most.

        It is shorter where less than that is left.

        Raises
        ------
        OutOfTime
            Nothing is left, or the call failed with a shorter limit when nothing was left.
        WorkerFailure
            The call failed otherwise.
        """
        left = self.at - time.monotonic()
        if left <= 0:
            raise OutOfTime
        limit = min(seconds, left + _ALLOWANCE_SECONDS)
        try:
            yield limit
        except WorkerFailure as error:
            # Not by its type: a server that ends a kernel in time makes another error of it.
            if limit < seconds and time.monotonic() >= self.at:
                raise OutOfTime from error
            raise


NO_DEADLINE = Deadline()

"""Workers that one session hands on to the next: starting their processes takes longest.

They are copies of the tests' process, as ``ForkedWorker`` makes them: one that begins anew imports
all of TVM. That such a one works as well is shown by the tests of ``Worker``, and of sessions that
are killed.
"""

import gc
import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tvm_ext.tuning import runner as runner_pool
from tvm_ext.tuning import worker as worker_pool
from tvm_ext.tuning.session_options import Limits
from tvm_ext.tuning.worker import ForkedWorker, Worker, WorkRaised

# Those of a session that build, and one that runs what they built.
_WORKERS = 1 + min(4, os.cpu_count() or 1)

# By their limit of memory, how many there are when the tests of a file begin. Those of
# ``tests/tuning/sessions.py`` are interrupted now and then, which ends processes. Where none is
# left, or for another limit, one begins anew.
_COPIES = {Limits().memory_bytes: _WORKERS, 2 << 30: 3 * _WORKERS}


class WorkerStock:
    """Processes of sessions that have ended, for those that begin."""

    def __init__(self) -> None:
        self._made: list[_Kept] = []
        self._idle: dict[int | None, list[_Kept]] = defaultdict(list)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Sessions in the block take over the processes of those before them."""
        self._copy_this_process()
        with pytest.MonkeyPatch.context() as patch:
            for module in (worker_pool, runner_pool):
                patch.setattr(module, "Worker", self._worker)
            yield

    def stop(self) -> None:
        """Ends all processes."""
        for one in self._made:
            one.worker.stop()

    def _copy_this_process(self) -> None:
        """Before a test replaces anything: a copy would know that for ever."""
        # Copies need not look through what is there by now, nor get pages of their own for it.
        gc.freeze()
        for memory_bytes, count in _COPIES.items():
            idle = self._idle[memory_bytes]
            while len(idle) < count:
                idle.append(self._started(ForkedWorker(memory_bytes), memory_bytes))

    def _worker(self, memory_bytes: int | None = None) -> "_Kept":
        idle = self._idle[memory_bytes]
        return idle.pop() if idle else self._started(Worker(memory_bytes), memory_bytes)

    def _started(self, worker: Worker, memory_bytes: int | None) -> "_Kept":
        # Here, not by a thread of the session: a process ends with the thread that started it.
        worker.start()
        self._made.append(_Kept(worker, memory_bytes, self._idle[memory_bytes]))
        return self._made[-1]


class _Kept:
    def __init__(self, worker: Worker, memory_bytes: int | None, idle: "list[_Kept]") -> None:
        self.worker = worker
        self._memory_bytes = memory_bytes
        self._idle = idle
        self._busy = self._ended = False

    def call(self, *arguments: Any, **keywords: Any) -> Any:
        self._busy = True
        try:
            return self.worker.call(*arguments, **keywords)
        except WorkRaised:
            raise
        except BaseException:
            # The process has ended. No copy is made in the middle of a test, and what the session
            # starts from here on ends with its threads.
            self.worker, self._ended = Worker(self._memory_bytes), True
            raise
        finally:
            self._busy = False

    def kill(self) -> None:
        self._ended = True
        self.worker.kill()

    def stop(self) -> None:
        if self._busy or self._ended:
            self.worker.stop()
        elif self not in self._idle:
            self._idle.append(self)

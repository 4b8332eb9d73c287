"""Workers that one session hands on to the next: starting their processes takes longest."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tvm_ext.tuning import runner as runner_pool
from tvm_ext.tuning import worker as worker_pool
from tvm_ext.tuning.worker import Worker


class WorkerStock:
    """Processes of sessions that have ended, for those that begin."""

    def __init__(self) -> None:
        self._made: list[_Kept] = []
        self._idle: dict[int | None, list[_Kept]] = defaultdict(list)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Sessions in the block take over the processes of those before them."""
        with pytest.MonkeyPatch.context() as patch:
            for module in (worker_pool, runner_pool):
                patch.setattr(module, "Worker", self._worker)
            yield

    def stop(self) -> None:
        """Ends all processes."""
        for one in self._made:
            one.worker.stop()

    def _worker(self, memory_bytes: int | None = None) -> "_Kept":
        idle = self._idle[memory_bytes]
        if idle:
            return idle.pop()
        self._made.append(_Kept(Worker(memory_bytes), idle))
        # Here, not by a thread of the session: a process ends with the thread that started it.
        self._made[-1].worker.start()
        return self._made[-1]


class _Kept:
    def __init__(self, worker: Worker, idle: "list[_Kept]") -> None:
        self.worker = worker
        self._idle = idle
        self._busy = False

    def call(self, *arguments: Any, **keywords: Any) -> Any:
        self._busy = True
        try:
            return self.worker.call(*arguments, **keywords)
        finally:
            self._busy = False

    def kill(self) -> None:
        self.worker.kill()

    def stop(self) -> None:
        if self._busy:
            self.worker.stop()
        elif self not in self._idle:
            self._idle.append(self)

"""Workers that one session hands on to the next: starting their processes takes longest."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tvm_ext.tuning import runner_pool, worker_pool
from tvm_ext.tuning.worker import Worker


@contextmanager
def kept_workers() -> Iterator[None]:
    """Sessions in the block take over the processes of those before them."""
    idle: list[_Kept] = []
    made: list[_Kept] = []

    def worker(memory_bytes: int | None = None) -> _Kept:
        if not idle:
            made.append(_Kept(Worker(memory_bytes), idle))
            # Here, not by a thread of the session: a process ends with the thread that started it.
            made[-1].worker.start()
            return made[-1]
        return idle.pop()

    with pytest.MonkeyPatch.context() as patch:
        for module in (worker_pool, runner_pool):
            patch.setattr(module, "Worker", worker)
        yield
    for one in made:
        one.worker.stop()


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

"""Several workers, lent to whoever needs one."""

import queue
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tvm_ext.tuning.worker import Worker

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

"""The threads that run the parallel loops of programs on this CPU; thread_pool.c is the pool.

Every program is linked with the pool. Those of one process share the one of the first.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tvm_ffi


class ThreadPool:
    """The pool of one process, this one or that of an RPC server, once a program has brought one.

    Programs that an older version of this package linked bring none, and use TVM's.
    """

    def __init__(self) -> None:
        self._launcher = 0
        self._use: Callable[[int], Any] | None = None
        self._lock = threading.Lock()

    def share_with(self, module: tvm_ffi.Module) -> None:
        """Has a program that was just loaded run its parallel loops on this pool."""
        try:
            launcher = module.get_function("tvm_ext_thread_pool", query_imports=True)
        except AttributeError:
            return
        with self._lock:
            if self._use is None:
                self._launcher = launcher()
                # Keeps the library where it is.
                self._use = module.get_function("tvm_ext_use_threads", query_imports=True)
                return
        module.get_function("tvm_ext_share_thread_pool", query_imports=True)(self._launcher)

    def count_for(self, count: int) -> int:
        """How many threads a run of the calling thread has, of a program for ``count``."""
        return _asked.count or count

    def use_threads(self, count: int) -> None:
        """How many threads run the loops that the calling thread launches; every run says it."""
        if self._use is not None:
            self._use(self.count_for(count))


class _Asked(threading.local):
    """What a caller asked for, in the place of a program's own number of threads."""

    count: int | None = None


_asked = _Asked()


thread_pool = ThreadPool()


@contextmanager
def running_on(threads: int) -> Iterator[None]:
    """So many threads for the runs of the calling thread inside of the block."""
    before, _asked.count = _asked.count, threads
    try:
        yield
    finally:
        _asked.count = before

"""Gives TVM's thread pool as many threads as the target has cores, and each a CPU to run on.

Left alone, TVM halves the number of logical CPUs on x86, taking them for hyper-threads; where they
are whole cores, as in most virtual machines, half of the machine would idle.

TVM's threads wait by yielding, so none of them ever sleeps and is placed anew. A worker that shares
a CPU with the thread that called the program can stay there for good: both halves of the work then
run one after the other while another CPU idles (seen: 133 instead of 78 microseconds). So workers
are kept off the caller's CPU, wherever that is.
"""

import ctypes
import os
import pathlib
import threading
from collections.abc import Callable

import tvm

# Threads share the given CPUs; pinning one thread a CPU is bad on a machine with other work.
_SHARE_ALL_CPUS = -3

_TASKS = pathlib.Path("/proc/self/task")


class _Pool(threading.local):
    """The pool of the calling thread: TVM keeps one a thread."""

    def __init__(self) -> None:
        self.count = 0
        self.cpus: list[int] = []
        self.workers: set[int] = set()
        self.callers_cpu = -1


_pool = _Pool()


def use_threads(count: int) -> None:
    """Sizes and places the calling thread's pool; every run asks for it."""
    if _pool.count != count:
        _configure(count)
    if _pool.workers and _current_cpu is not None:
        cpu = _current_cpu()
        if cpu != _pool.callers_cpu:
            _keep_off(cpu)


def _configure(count: int) -> None:
    if hasattr(os, "sched_getaffinity"):
        cpus = sorted(os.sched_getaffinity(0))
    else:
        cpus = list(range(os.cpu_count() or 1))
    before = _tasks()
    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(_SHARE_ALL_CPUS, min(count, len(cpus)), [str(cpu) for cpu in cpus])
    _pool.count, _pool.cpus, _pool.callers_cpu = count, cpus, -1
    # TVM keeps the workers that it has when it needs fewer, and sets all their CPUs anew.
    _pool.workers |= _tasks() - before


def _keep_off(cpu: int) -> None:
    others = [other for other in _pool.cpus if other != cpu]
    _pool.callers_cpu = cpu
    if not others:
        return
    try:
        for worker in _pool.workers:
            os.sched_setaffinity(worker, others)
    except OSError:
        # Gone, or not allowed here: they run where the system puts them.
        _pool.workers = set()


def _tasks() -> set[int]:
    """The threads of this process; empty where the system does not list or place them."""
    if not _TASKS.is_dir() or not hasattr(os, "sched_setaffinity"):
        return set()
    return {int(task.name) for task in _TASKS.iterdir()}


def _find_current_cpu() -> Callable[[], int] | None:
    """The C library's ``sched_getcpu``; None where it has none."""
    function: Callable[[], int] | None = getattr(ctypes.CDLL(None), "sched_getcpu", None)
    return function


_current_cpu = _find_current_cpu() if os.name == "posix" else None

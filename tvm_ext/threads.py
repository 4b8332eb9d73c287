"""Gives TVM's thread pool as many threads as the target has cores.

Left alone, TVM halves the number of logical CPUs on x86, taking them for hyper-threads; where they
are whole cores, as in most virtual machines, half of the machine would idle.
"""

import os
import threading

import tvm

# Threads share the given CPUs; pinning one thread a CPU is bad on a machine with other work.
_SHARE_ALL_CPUS = -3

_configured = threading.local()


def use_threads(count: int) -> None:
    """Sizes the calling thread's pool: TVM keeps one a thread, so every run asks for it."""
    if getattr(_configured, "count", None) == count:
        return
    if hasattr(os, "sched_getaffinity"):
        cpus = sorted(os.sched_getaffinity(0))
    else:
        cpus = list(range(os.cpu_count() or 1))
    configure = tvm.get_global_func("runtime.config_threadpool")
    configure(_SHARE_ALL_CPUS, min(count, len(cpus)), [str(cpu) for cpu in cpus])
    _configured.count = count

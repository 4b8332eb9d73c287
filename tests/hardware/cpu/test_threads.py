"""Where TVM's workers run: off the caller's CPU, and wherever the system wants if it refuses."""

import os
import threading

import pytest

from tvm_ext.hardware.cpu import threads

placeable = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs two CPUs on Linux",
)


def in_new_thread(work):
    """A pool of its own: TVM keeps one a thread."""
    found = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    thread.join()
    return found[0]


@placeable
def test_workers_keep_off_the_callers_cpu(monkeypatch):
    cpus = sorted(os.sched_getaffinity(0))

    def work():
        places = []
        for cpu in (cpus[0], cpus[1]):
            monkeypatch.setattr(threads, "_current_cpu", lambda cpu=cpu: cpu)
            threads.use_threads(2)
            workers = threads._pool.workers
            places.append((cpu, [os.sched_getaffinity(worker) for worker in workers]))
        return places

    for cpu, allowed in in_new_thread(work):
        assert allowed
        assert all(cpu not in one and one <= set(cpus) for one in allowed)


@placeable
def test_refused_placement_leaves_workers_alone(monkeypatch):
    def refuse(*_):
        raise PermissionError

    def work():
        monkeypatch.setattr(os, "sched_setaffinity", refuse)
        threads.use_threads(2)
        return threads._pool.workers

    assert in_new_thread(work) == set()

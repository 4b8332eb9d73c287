"""A worker's process: what it does, how it fails, and that none is left behind."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tvm_ext.configs.atomic_file import OutputPathError
from tvm_ext.configs.progress import listening, tell
from tvm_ext.tuning.worker import ForkedWorker, Worker, WorkerDied, WorkerTimeout, WorkRaised

# By their module, which the worker's process finds here.
HERE = str(Path(__file__).parent)
LIMIT = 1 << 30


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """What workers do. None of it needs TVM, which takes a process a second to import."""
    stand_in = tmp_path_factory.mktemp("stand_in")
    (stand_in / "tvm.py").touch()
    with pytest.MonkeyPatch.context() as patch:
        before = os.environ.get("PYTHONPATH", "")
        paths = filter(None, [str(stand_in), HERE, before])
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        import worker_jobs

        yield worker_jobs


@pytest.fixture(scope="module", params=[Worker, ForkedWorker])
def worker(request, jobs):
    """One for all tests: it has to work again after whatever happened to it."""
    found = request.param(LIMIT)
    yield found
    found.stop()


@pytest.fixture(autouse=True)
def works_again(request):
    yield
    if "worker" in request.fixturenames:
        found, jobs = request.getfixturevalue("worker"), request.getfixturevalue("jobs")
        assert found.call(jobs.product, "ab", 2, timeout=600) == "abab"


def is_gone(process_id: int) -> bool:
    """Whether it ends, on a busy machine too."""
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        try:
            if psutil.Process(process_id).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_values_come_back_from_one_other_process(worker, jobs):
    assert worker.call(jobs.product, [1, None], 2, timeout=600) == [1, None, 1, None]
    first, second = (worker.call(jobs.process_id, timeout=600) for _ in range(2))
    assert first == second == worker.process_id != os.getpid()


def test_large_values(worker, jobs):
    assert len(worker.call(jobs.product, b"x" * (1 << 20), 8, timeout=600)) == 8 << 20


def test_a_full_disk_is_no_fault_of_the_candidate(worker, jobs):
    full = f"ld: final link failed: {os.strerror(errno.ENOSPC)}"
    with pytest.raises(OutputPathError, match="expected folders of records and of temporary files"):
        worker.call(jobs.refuse, full, timeout=600)


def test_an_error_of_the_work_keeps_the_process(worker, jobs):
    before = worker.call(jobs.process_id, timeout=600)
    with pytest.raises(WorkRaised, match="nothing there") as caught:
        worker.call(jobs.refuse, "nothing there", timeout=600)
    assert caught.value.kind == "LookupError"
    assert worker.process_id == before


def test_too_much_memory(worker, jobs):
    with pytest.raises(WorkRaised) as caught:
        worker.call(jobs.take, 4 * LIMIT, timeout=600)
    assert caught.value.kind == "MemoryError"
    assert worker.call(jobs.take, LIMIT // 8, timeout=600) == LIMIT // 8


@pytest.mark.extended
def test_too_late(worker, jobs):
    worker.start()
    before = worker.process_id
    with pytest.raises(WorkerTimeout, match=r"took longer than 0.3 s"):
        worker.call(jobs.sleep, 600, timeout=0.3)
    assert worker.process_id is None
    assert is_gone(before)


@pytest.mark.extended
@pytest.mark.parametrize(("job", "name"), [("crash", "SIGSEGV"), ("abort", "SIGABRT")])
def test_death_by_a_signal(worker, jobs, job, name):
    with pytest.raises(WorkerDied, match=rf"died of {name} \(memory limit 1024 MiB\)"):
        worker.call(getattr(jobs, job), timeout=600)


def test_end_with_an_exit_code(worker, jobs):
    with pytest.raises(WorkerDied, match="ended with exit code 3"):
        worker.call(jobs.leave, 3, timeout=600)


def test_killed_between_two_calls(worker, jobs):
    worker.start()
    before = worker.process_id
    os.kill(before, signal.SIGKILL)
    # Until it has ended, which leaves it to the worker to ask how.
    os.waitid(os.P_PID, before, os.WEXITED | os.WNOWAIT)
    assert worker.call(jobs.product, 3, 4, timeout=600) == 12
    assert worker.process_id != before


@pytest.mark.extended
def test_arguments_that_cannot_be_sent(worker, jobs):
    with pytest.raises(Exception, match="pickle"):
        worker.call(jobs.product, lambda: 1, 2, timeout=600)


@pytest.mark.extended
def test_an_interrupted_call_leaves_no_answer_for_the_next(worker, jobs, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    worker.start()
    with monkeypatch.context() as patch:
        patch.setattr(worker, "_answered", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.call(jobs.product, 1, 1, timeout=600)
    assert worker.call(jobs.product, 5, 5, timeout=600) == 25


@pytest.mark.extended
def test_a_start_that_is_interrupted_leaves_no_answer_for_the_next(worker, jobs, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    worker.stop()
    with monkeypatch.context() as patch:
        patch.setattr(worker, "_answered", interrupted)
        with pytest.raises(KeyboardInterrupt):
            worker.start()
    assert worker.call(jobs.product, 5, 5, timeout=600) == 25


def test_ctrl_c_is_not_for_the_worker(worker, jobs):
    assert worker.call(jobs.interrupt_itself, timeout=600) == "still here"


@pytest.mark.extended
def test_stop_leaves_no_process(worker, jobs, tmp_path):
    """Neither the worker's own nor what its work started."""
    note = tmp_path / "child"
    # A busy machine may need longer to start what the work is to leave behind.
    for seconds in (1.0, 10.0, 100.0):
        with pytest.raises(WorkerTimeout):
            worker.call(jobs.start_and_sleep, str(note), timeout=seconds)
        if note.exists() and note.read_text():
            break
    assert is_gone(int(note.read_text()))
    worker.start()
    before = worker.process_id
    worker.stop()
    worker.stop()
    assert is_gone(before)


def test_a_fork_knows_what_was_replaced_here_and_prints_nothing(jobs, monkeypatch, capfd):
    def loud_product(left, right):
        print("to stdout", flush=True)
        print("to stderr", file=sys.stderr, flush=True)
        return left * right + 1

    loud_product.__module__, loud_product.__qualname__ = jobs.__name__, "product"
    monkeypatch.setattr(jobs, "product", loud_product)

    def overheard(what):
        raise LookupError(what)

    worker = ForkedWorker()
    with listening(overheard):
        assert worker.call(jobs.product, 2, 3, timeout=600) == 7
        assert worker.call(tell, "to nobody", timeout=600) is None
    worker.stop()
    assert capfd.readouterr() == ("", "")


def test_a_worker_that_was_never_used_has_no_process():
    found = Worker()
    assert found.process_id is None
    found.stop()


PARENT = """
import sys, time
from tvm_ext.tuning.worker import {kind} as Worker
worker = Worker()
worker.start()
print(worker.process_id, flush=True)
{then}
"""


IDLE = "time.sleep(600)"
AT_WORK = "import worker_jobs\nworker.call(worker_jobs.sleep, 600, timeout=600)"


@pytest.mark.extended
@pytest.mark.parametrize("kind", ["Worker", "ForkedWorker"])
@pytest.mark.parametrize("then", [IDLE, AT_WORK], ids=["idle", "at work"])
def test_it_ends_when_its_parent_is_killed(jobs, kind, then):
    command = [sys.executable, "-P", "-c", PARENT.format(kind=kind, then=then)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        process_id = int(parent.stdout.readline())
        assert psutil.pid_exists(process_id)
        parent.send_signal(signal.SIGKILL)
    assert is_gone(process_id)

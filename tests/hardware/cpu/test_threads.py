"""The pool that runs parallel loops: every iteration once, whoever else is at work."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T

from tvm_ext.hardware.cpu.linker import Linker, find_compiler
from tvm_ext.hardware.cpu.system import usable_cores, usable_cpus
from tvm_ext.hardware.cpu.threads import ThreadPool, running_on

ITERATIONS = 5000


@T.prim_func
def count_up(counts: T.Buffer((ITERATIONS,), "int32"), sums: T.Buffer((ITERATIONS,), "float32")):
    for i in T.parallel(ITERATIONS):
        counts[i] = counts[i] + 1
        sums[i] = T.float32(0)
        for j in T.serial(200):
            sums[i] = sums[i] + T.Cast("float32", i % 7 + j)


def loaded(folder: Path, name: str) -> tvm.runtime.Module:
    """A library of its own for each name, linked as programs are."""
    built = tvm.compile(count_up, target="llvm")
    path = folder / f"{name}.so"
    built.export_library(str(path), fcompile=Linker(find_compiler()))
    return tvm.runtime.load_module(str(path))


@pytest.fixture(scope="module")
def modules(tmp_path_factory) -> list[tvm.runtime.Module]:
    folder = tmp_path_factory.mktemp("libraries")
    return [loaded(folder, name) for name in ("first", "second")]


@pytest.fixture
def pool(modules) -> ThreadPool:
    pool = ThreadPool()
    for module in modules:
        pool.share_with(module)
    return pool


def counted(module: tvm.runtime.Module, calls: int) -> None:
    """Calls the kernel, and fails if an iteration ran another number of times."""
    counts = tvm.runtime.tensor(np.zeros(ITERATIONS, np.int32))
    sums = tvm.runtime.tensor(np.zeros(ITERATIONS, np.float32))
    for _ in range(calls):
        module["count_up"](counts, sums)
    np.testing.assert_array_equal(counts.numpy(), calls)
    terms = np.arange(ITERATIONS)[:, None] % 7 + np.arange(200)
    np.testing.assert_array_equal(sums.numpy(), terms.sum(1))


def threads_of_process() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_every_iteration_runs_once(modules, pool, threads):
    pool.use_threads(threads)
    for module in modules:
        counted(module, 20)


def test_threads_asked_for_a_block_take_the_place_of_the_programs(modules, pool):
    used = []

    class Seen(ThreadPool):
        def __init__(self) -> None:
            super().__init__()
            self._use = used.append

    with running_on(3):
        Seen().use_threads(2)
    Seen().use_threads(2)
    assert used == [3, 2]


@pytest.mark.parametrize(
    ("variables", "most"),
    [
        ({}, 1 << 16),
        ({"TVM_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "1,2"}, 1),
        ({"TVM_NUM_THREADS": "none", "OMP_NUM_THREADS": "1"}, 1),
        ({"TVM_NUM_THREADS": "60000", "OMP_NUM_THREADS": "1"}, 1 << 16),
    ],
)
def test_programs_know_how_many_threads_to_use(modules, monkeypatch, variables, most):
    for name in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    # Python knows the control groups around the process, too.
    assert modules[0]["tvm_ext_usable_cores"]() >= min(most, usable_cores())
    assert modules[0]["tvm_ext_usable_cores"]() <= min(most, len(usable_cpus()))


def test_callers_in_several_threads_share_the_pool(modules, pool):
    """Eight callers and two libraries: no caller gets another's iterations, or too few."""
    failures = []

    def call(module: tvm.runtime.Module) -> None:
        pool.use_threads(3)
        try:
            counted(module, 30)
        except AssertionError as error:
            failures.append(error)

    callers = [threading.Thread(target=call, args=(modules[i % 2],)) for i in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_libraries_share_one_pool(modules, pool):
    pool.use_threads(16)
    counted(modules[0], 1)
    before = threads_of_process()
    counted(modules[1], 1)
    # A pool of its own would be 15 more; others' threads come and go.
    assert threads_of_process() < before + 8


FORKED = """
import os, sys
import numpy as np, tvm
from tvm_ext.hardware.cpu.threads import ThreadPool
module = tvm.runtime.load_module(sys.argv[1])
pool = ThreadPool()
pool.share_with(module)
def count():
    pool.use_threads(3)
    counts = tvm.runtime.tensor(np.zeros(5000, np.int32))
    sums = tvm.runtime.tensor(np.zeros(5000, np.float32))
    for _ in range(5):
        module["count_up"](counts, sums)
    return (counts.numpy() == 5).all(), len(os.listdir("/proc/self/task"))
right, threads = count()
child = os.fork()
if not child:
    alone = len(os.listdir("/proc/self/task"))
    again, inside = count()
    os._exit(0 if again and alone == 1 and inside == 3 else 1)
assert right
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert count()[0]
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_a_child_of_fork_makes_threads_of_its_own(tmp_path):
    """TVM's own pool waits for ever there, for threads that only the parent has."""
    loaded(tmp_path, "forked")
    command = [sys.executable, "-c", FORKED, str(tmp_path / "forked.so")]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr


@T.prim_func
def fails(counts: T.Buffer((ITERATIONS,), "int32")):
    for i in T.parallel(ITERATIONS):
        T.evaluate(T.call_packed("tests.fails_at", i))
        counts[i] = 1


def test_an_error_in_a_thread_reaches_the_caller(tmp_path):
    @tvm.register_global_func("tests.fails_at", override=True)
    def fail_at(iteration: int) -> None:
        if iteration == ITERATIONS - 1:
            raise ValueError("the last one")

    built = tvm.compile(fails, target="llvm")
    path = tmp_path / "fails.so"
    built.export_library(str(path), fcompile=Linker(find_compiler()))
    module = tvm.runtime.load_module(str(path))
    pool = ThreadPool()
    pool.share_with(module)
    pool.use_threads(2)
    with pytest.raises(ValueError, match="the last one"):
        module["fails"](tvm.runtime.tensor(np.zeros(ITERATIONS, np.int32)))

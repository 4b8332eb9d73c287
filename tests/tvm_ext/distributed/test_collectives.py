"""Collectives over shared memory, by threads in the place of processes."""

import ctypes
import errno
import threading
import time
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tvm_ext.distributed import shared_memory
from tvm_ext.distributed.communicator import Communicator
from tvm_ext.distributed.group_memory import GroupMemory
from tvm_ext.distributed.shared_memory import SharedCounters
from tvm_ext.distributed.shared_memory_communicator import SLOT_BYTES
from tvm_ext.errors import RunError

NUMBERS = np.random.default_rng(0)


def together(devices: int, action: Callable[[Communicator], None]) -> list[Communicator]:
    memory = GroupMemory(devices)
    communicators = [memory.communicator(rank, lambda: None) for rank in range(devices)]
    threads = [threading.Thread(target=action, args=(one,)) for one in communicators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    return list(communicators)


# More than a slot, and no multiple of it.
LARGE = SLOT_BYTES // 2 + 3


@pytest.mark.extended
@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("count", [0, 1, LARGE])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.int64])
def test_all_reduce(devices: int, count: int, dtype: type) -> None:
    arrays = NUMBERS.integers(-9, 9, (devices, count)).astype(dtype)
    found = np.empty_like(arrays)
    exchanged = together(devices, lambda own: own.all_reduce(arrays[own.rank], found[own.rank], 0))
    expected = arrays.astype(np.float64).sum(axis=0).astype(dtype)
    assert all(np.array_equal(row, expected) for row in found)
    assert exchanged[0].exchanged == {"all-reduce": arrays[0].nbytes}


@pytest.mark.parametrize(("kind", "reduce"), [(2, np.minimum), (3, np.maximum), (1, np.multiply)])
def test_other_reductions_in_place(kind: int, reduce: np.ufunc) -> None:
    arrays = NUMBERS.standard_normal((2, 5, 7))
    expected = reduce(*arrays)
    together(2, lambda own: own.all_reduce(arrays[own.rank], arrays[own.rank], kind))
    assert all(np.array_equal(one, expected) for one in arrays)


@pytest.mark.extended
@pytest.mark.parametrize("devices", [2, 3])
@pytest.mark.parametrize("count", [1, LARGE])
def test_gather_scatter_and_broadcast(devices: int, count: int) -> None:
    arrays = NUMBERS.standard_normal((devices, devices * count)).astype(np.float32)
    gathered = np.empty((devices, *arrays.shape), np.float32)
    scattered = np.empty((devices, count), np.float32)
    sent = np.empty_like(arrays)

    def all_of_them(own: Communicator) -> None:
        own.all_gather(arrays[own.rank], gathered[own.rank])
        own.reduce_scatter(arrays[own.rank], scattered[own.rank], 3)
        own.broadcast(arrays[own.rank], sent[own.rank])

    together(devices, all_of_them)
    assert all(np.array_equal(one, arrays) for one in gathered)
    np.testing.assert_array_equal(scattered.reshape(-1), arrays.max(axis=0))
    assert all(np.array_equal(one, arrays[0]) for one in sent)


def test_what_was_started_is_done_in_order_and_ahead_of_other_collectives() -> None:
    arrays = NUMBERS.standard_normal((2, 3, LARGE)).astype(np.float32)
    sums, largest = np.zeros_like(arrays), np.zeros_like(arrays[:, 0])

    def all_of_them(own: Communicator) -> None:
        for send, receive in zip(arrays[own.rank], sums[own.rank], strict=True):
            own.start_all_reduce(send, receive, 0)
        own.finish_all_reduce(sums[own.rank, 1])
        assert np.array_equal(sums[own.rank, 1], arrays[:, 1].sum(axis=0))
        own.all_reduce(arrays[own.rank, 0], largest[own.rank], 3)
        own.finish_all_reduce(sums[own.rank, 2])
        own.finish_all_reduce(sums[own.rank, 0])

    exchanged = together(2, all_of_them)
    assert all(np.array_equal(one, arrays.sum(axis=0)) for one in sums)
    assert all(np.array_equal(one, arrays[:, 0].max(axis=0)) for one in largest)
    assert exchanged[0].exchanged == {"all-reduce": 4 * arrays[0, 0].nbytes}


def test_a_partner_that_ends_meanwhile_is_not_waited_for() -> None:
    def look() -> None:
        raise RunError("it has ended")

    alone = GroupMemory(2).communicator(0, look)
    receive = np.zeros(3)
    alone.start_all_reduce(np.zeros(3), receive, 0)
    with pytest.raises(RunError, match="it has ended"):
        alone.finish_all_reduce(receive)


def test_a_partner_that_does_not_come_is_not_waited_for() -> None:
    memory = GroupMemory(2)

    def look() -> None:
        raise RunError("it has ended")

    alone = memory.communicator(0, look)
    with pytest.raises(RunError, match="it has ended"):
        alone.all_reduce(np.zeros(3), np.zeros(3), 0)


def test_answers_and_arrays_of_a_group() -> None:
    memory = GroupMemory(2)
    other = GroupMemory(2, memory.descriptors)
    arrays = {"a": np.arange(6.0).reshape(2, 3), "b": np.zeros((0, 4), np.int8)}
    arrays["c"] = np.ones(1 << 20, np.float32)
    places = memory.inputs.write(arrays)
    for name, array in other.inputs.arrays(places).items():
        np.testing.assert_array_equal(array, arrays[name])
    other.answer(1, 5, '{"a": [1, 2]}')
    assert memory.has_answered(1, 5)
    assert not memory.has_answered(1, 6)
    assert memory.wait_for(1, 5, lambda: None) == {"a": [1, 2]}


def test_counters_go_on_above_32_bits() -> None:
    counters = SharedCounters(np.zeros(SharedCounters.nbytes(3), np.uint8))
    start = (1 << 32) - 2
    counters.set(1, start)
    seen = []

    def wait() -> None:
        for value in range(start + 1, start + 5):
            counters.wait(1, value, lambda: None)
            seen.append(value)
            counters.set(2, value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    for value in range(start + 1, start + 5):
        time.sleep(0.01)
        counters.set(1, value)
        counters.wait(2, value, lambda: None)
    waiting.join(30)
    assert seen == list(range(start + 1, start + 5))
    assert counters.value(0) == 0


def test_a_fence_is_made_by_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    if shared_memory._MEMBARRIER is None:
        pytest.skip("the number of the system call is not known here")
    shared_memory.memory_fence()
    found = shared_memory._libc.syscall(shared_memory._MEMBARRIER, shared_memory._EXPEDITED, 0, 0)
    if found and ctypes.get_errno() == errno.ENOSYS:
        pytest.skip("the system has no membarrier")
    assert found == 0
    # With them, as on processors that reorder, the counters are the same.
    monkeypatch.setattr(shared_memory, "_IS_ORDERED", False)
    counters = SharedCounters(np.zeros(SharedCounters.nbytes(1), np.uint8))
    counters.set(0, 7)
    counters.wait(0, 7, lambda: None)
    assert counters.value(0) == 7

"""Memory that processes of one host share, and waiting for words in it.

The memory has no name (``memfd_create``): it goes with the last process that has it open, however
that ends.
"""

import ctypes
import mmap
import os
import platform
import time
from collections.abc import Callable

import numpy as np

# Numbers of the system calls, by architecture.
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_MEMBARRIER = {"x86_64": 324, "aarch64": 283}.get(platform.machine())
# Of membarrier: its caller orders all that it reads and writes around the call.
_REGISTER, _EXPEDITED = 1 << 4, 1 << 3
# There stores are seen in their order, and loads are made in theirs.
_IS_ORDERED = platform.machine() == "x86_64"
_WAIT, _WAKE, _EVERYBODY = 0, 1, (1 << 31) - 1

# To look at a word again before the process sleeps: a partner that computes the same is as fast.
_SPIN_SECONDS = 100e-6
# How often a process that sleeps looks whether the others are alive.
_LOOK_SECONDS = 0.05

_libc = ctypes.CDLL(None, use_errno=True)


def memory_fence() -> None:
    """Orders what this thread read and wrote of shared memory before it ahead of what comes.

    Python has no fences; the system call has one, once the process has registered for it.
    """
    if _MEMBARRIER is None or _libc.syscall(_MEMBARRIER, _EXPEDITED, 0, 0) == 0:
        return
    _libc.syscall(_MEMBARRIER, _REGISTER, 0, 0)
    _libc.syscall(_MEMBARRIER, _EXPEDITED, 0, 0)


def _ordered() -> None:
    if not _IS_ORDERED:
        memory_fence()


class SharedSegment:
    """A piece of memory that grows when more of it is asked for.

    Parameters
    ----------
    descriptor : int, optional
        Of the memory that another process made; a new one without it.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        self.descriptor = os.memfd_create("tvm-ext") if descriptor is None else descriptor
        self._mapped = np.empty(0, np.uint8)

    def bytes(self, count: int) -> np.ndarray:
        """The first ``count`` bytes."""
        if count > self._mapped.size:
            if os.fstat(self.descriptor).st_size < count:
                os.ftruncate(self.descriptor, count)
            size = os.fstat(self.descriptor).st_size
            # What is mapped already stays so as long as an array looks at it.
            self._mapped = np.frombuffer(mmap.mmap(self.descriptor, size), np.uint8)
        return self._mapped[:count]

    def close(self) -> None:
        """Closes the descriptor; arrays that look at the memory keep it."""
        self._mapped = np.empty(0, np.uint8)
        os.close(self.descriptor)
        self.descriptor = -1


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class SharedCounters:
    """Counters in shared memory that only grow, each written by one process.

    What a process wrote before it set a counter is there for one that has seen the value. A counter
    has 64 bits, of which the system looks at the lower half to let a process sleep.

    Parameters
    ----------
    memory : numpy.ndarray
        Bytes for them, 64 for each: no two processes write to one cache line.
    """

    _STRIDE = 8

    def __init__(self, memory: np.ndarray) -> None:
        self._words = memory.view(np.int64)
        self._address = memory.ctypes.data

    @classmethod
    def nbytes(cls, count: int) -> int:
        """The memory that so many counters take."""
        return 8 * cls._STRIDE * count

    def value(self, index: int) -> int:
        """What the counter is now."""
        found = int(self._words[index * self._STRIDE])
        _ordered()
        return found

    def set(self, index: int, value: int) -> None:
        """Sets a counter, and wakes who waits for it."""
        _ordered()
        self._words[index * self._STRIDE] = value
        self._futex(index, _WAKE, _EVERYBODY, None)

    def wait(self, index: int, value: int, look: Callable[[], None]) -> None:
        """Waits until a counter is at least ``value``; ``look``, called meanwhile, may raise."""
        end = time.perf_counter() + _SPIN_SECONDS
        pause = _Timespec(0, int(1e9 * _LOOK_SECONDS))
        place = index * self._STRIDE
        words = self._words
        while words[place] < value:
            if time.perf_counter() < end:
                # Another thread of this process may be what the counter waits for. The call lets go
                # of Python's lock, and takes a microsecond; a sleep of no time takes sixty.
                _libc.sched_yield()
                continue
            known = int(words[place])
            if known >= value:
                break
            # What it compares with is the lower half, as a C int: ctypes cuts the rest off.
            self._futex(index, _WAIT, known, ctypes.byref(pause))
            if words[place] < value:
                look()
        _ordered()

    def _futex(self, index: int, operation: int, value: int, pause: object) -> None:
        if _FUTEX is None:
            if operation == _WAIT:
                time.sleep(_SPIN_SECONDS)
            return
        address = ctypes.c_void_p(self._address + self.nbytes(index))
        _libc.syscall(_FUTEX, address, operation, ctypes.c_int(value), pause, None, 0)

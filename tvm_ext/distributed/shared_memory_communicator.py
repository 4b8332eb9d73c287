"""Collectives of processes of one host over memory that they share."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from tvm_ext.distributed.communicator import Communicator
from tvm_ext.distributed.shared_memory import SharedCounters

# Of a tensor that is exchanged at a time: what a core's L2 holds along with what is read of others.
SLOT_BYTES = 1 << 18


class SharedMemoryCommunicator(Communicator):
    """Each process writes a piece of its array to a slot of its own and reads those of the others.

    A process has two slots in turns. It writes to one of them again only after all others have
    come to the piece between, and so have read the former one: one meeting a piece is enough.

    What is started goes on in a thread of its own, one after the other.

    Parameters
    ----------
    rank, size : int
        Which process this is, and how many there are.
    arrivals : SharedCounters
        One counter for each process.
    slots : numpy.ndarray
        ``slots_nbytes(size)`` bytes.
    look : callable
        Called while this process waits; raises where another one has ended.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        arrivals: SharedCounters,
        slots: np.ndarray,
        look: Callable[[], None],
    ) -> None:
        super().__init__(rank, size)
        self._arrivals, self._look = arrivals, look
        self._slots = slots.reshape(2, size, SLOT_BYTES)
        self._pieces = 0
        quiet = partial(np.seterr, all="ignore")
        self._thread = ThreadPoolExecutor(1, "tvm-ext-all-reduce", quiet)

    @staticmethod
    def slots_nbytes(size: int) -> int:
        """Bytes of the slots of all processes."""
        return 2 * size * SLOT_BYTES

    def _meet(self, own: np.ndarray) -> np.ndarray:
        """Writes this process's slot, and returns all once the others have written theirs."""
        slots = self._slots[self._pieces % 2]
        _as(slots[self.rank], own.dtype, own.size)[...] = own
        self._pieces += 1
        self._arrivals.set(self.rank, self._pieces)
        for other in range(self.size):
            if other != self.rank:
                self._arrivals.wait(other, self._pieces, self._look)
        return slots

    def _all_reduce(self, send: np.ndarray, receive: np.ndarray, reduce: np.ufunc) -> None:
        for part in _pieces(send.size, SLOT_BYTES // send.itemsize):
            own, result = send[part], receive[part]
            slots = self._meet(own)
            rows = [_as(slot, own.dtype, own.size) for slot in slots]
            # In the order of the processes: each gets the same bits.
            reduce(rows[0], rows[1], out=result)
            for row in rows[2:]:
                reduce(result, row, out=result)

    def _start_all_reduce(
        self, send: np.ndarray, receive: np.ndarray, reduce: np.ufunc
    ) -> Callable[[], object]:
        return self._thread.submit(self._all_reduce, send, receive, reduce).result

    def _all_gather(self, send: np.ndarray, receive: np.ndarray) -> None:
        for part in _pieces(send.size, SLOT_BYTES // send.itemsize):
            own = send[part]
            slots = self._meet(own)
            for row, slot in zip(receive, slots, strict=True):
                row[part] = _as(slot, own.dtype, own.size)

    def _reduce_scatter(self, send: np.ndarray, receive: np.ndarray, reduce: np.ufunc) -> None:
        for part in _pieces(receive.size, SLOT_BYTES // send.itemsize // self.size):
            own, result = np.ascontiguousarray(send[:, part]), receive[part]
            slots = self._meet(own.reshape(-1))
            rows = [_as(slot, own.dtype, own.size).reshape(own.shape)[self.rank] for slot in slots]
            reduce(rows[0], rows[1], out=result)
            for row in rows[2:]:
                reduce(result, row, out=result)

    def _broadcast(self, send: np.ndarray, receive: np.ndarray) -> None:
        for part in _pieces(receive.size, SLOT_BYTES // receive.itemsize):
            own, result = send[part], receive[part]
            slots = self._meet(own)
            result[...] = _as(slots[0], result.dtype, result.size)


def _pieces(count: int, most: int) -> Iterator[slice]:
    for begin in range(0, count, most):
        yield slice(begin, min(begin + most, count))


def _as(slot: np.ndarray, dtype: np.dtype, count: int) -> np.ndarray:
    return slot[: count * dtype.itemsize].view(dtype)

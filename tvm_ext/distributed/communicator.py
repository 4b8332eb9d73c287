"""What the devices of a program exchange values with."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable

import numpy as np

from tvm_ext.configs.sharding_record import REDUCE_KINDS

# By TVM's numbers.
REDUCTIONS: dict[int, np.ufunc] = {
    REDUCE_KINDS["sum"]: np.add,
    REDUCE_KINDS["prod"]: np.multiply,
    REDUCE_KINDS["min"]: np.minimum,
    REDUCE_KINDS["max"]: np.maximum,
}


class Communicator(ABC):
    """Collectives of one process with the others. All call the same ones in the same order.

    Attributes
    ----------
    rank, size : int
        Which process this is, and how many there are.
    exchanged : Counter
        By collective, the bytes of the whole tensors that went through it.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.exchanged: Counter[str] = Counter()
        # What waits for an all-reduce that was started, by the address that it writes to.
        self._started: dict[int, Callable[[], object]] = {}

    def begin_run(self) -> None:
        """Counts from nothing."""
        self.exchanged.clear()
        self._started.clear()

    def all_reduce(self, send: np.ndarray, receive: np.ndarray, kind: int) -> None:
        """Writes the reduction of all processes' arrays to ``receive``.

        In shared memory all get the same bits; of MPI's own reductions that is not promised.
        """
        self._finish()
        self.exchanged["all-reduce"] += send.nbytes
        with np.errstate(all="ignore"):
            self._all_reduce(_flat(send), _flat(receive), REDUCTIONS[kind])

    def start_all_reduce(self, send: np.ndarray, receive: np.ndarray, kind: int) -> None:
        """As ``all_reduce``, whose result is there behind ``finish_all_reduce``.

        Until then nobody may write to ``send``.
        """
        self.exchanged["all-reduce"] += send.nbytes
        started = self._start_all_reduce(_flat(send), _flat(receive), REDUCTIONS[kind])
        self._started[receive.ctypes.data] = started

    def finish_all_reduce(self, receive: np.ndarray) -> None:
        """Waits for what was started with this array to write to."""
        with np.errstate(all="ignore"):
            self._started.pop(receive.ctypes.data)()

    def _finish(self) -> None:
        """Waits for all that was started: processes meet in one order."""
        with np.errstate(all="ignore"):
            for wait in self._started.values():
                wait()

    def all_gather(self, send: np.ndarray, receive: np.ndarray) -> None:
        """Writes the arrays of all processes one after the other."""
        self._finish()
        self.exchanged["all-gather"] += receive.nbytes
        self._all_gather(_flat(send), _flat(receive).reshape(self.size, -1))

    def reduce_scatter(self, send: np.ndarray, receive: np.ndarray, kind: int) -> None:
        """As ``all_reduce``, of which each process gets a part: those come one after the other."""
        self._finish()
        self.exchanged["reduce-scatter"] += send.nbytes
        parts = _flat(send).reshape(self.size, -1)
        with np.errstate(all="ignore"):
            self._reduce_scatter(parts, _flat(receive), REDUCTIONS[kind])

    def broadcast(self, send: np.ndarray, receive: np.ndarray) -> None:
        """Writes the array of the first process."""
        self._finish()
        self.exchanged["broadcast"] += receive.nbytes
        self._broadcast(_flat(send), _flat(receive))

    @abstractmethod
    def _all_reduce(self, send: np.ndarray, receive: np.ndarray, reduce: np.ufunc) -> None: ...

    @abstractmethod
    def _start_all_reduce(
        self, send: np.ndarray, receive: np.ndarray, reduce: np.ufunc
    ) -> Callable[[], object]:
        """Begins an all-reduce; returns what waits for it, however often that is called."""

    @abstractmethod
    def _all_gather(self, send: np.ndarray, receive: np.ndarray) -> None: ...

    @abstractmethod
    def _reduce_scatter(self, send: np.ndarray, receive: np.ndarray, reduce: np.ufunc) -> None: ...

    @abstractmethod
    def _broadcast(self, send: np.ndarray, receive: np.ndarray) -> None: ...


def _flat(array: np.ndarray) -> np.ndarray:
    """The elements in their order; a view, as kernels' results have no gaps."""
    return array.reshape(-1)

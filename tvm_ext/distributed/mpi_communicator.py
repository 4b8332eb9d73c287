"""Collectives of processes that ``mpiexec`` started, by MPI.

MPI waits without end for a process that has left Python, which stays in ``MPI_Finalize``. So a
process that leaves tells the others, and those look for that while they wait in a collective. One
that fails ends them, whatever they do. What is killed is noticed by ``mpiexec``.
"""

import atexit
import contextlib
import functools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tvm_ext.distributed.communicator import Communicator
from tvm_ext.errors import RunError, TargetError

# Of the message of a process that leaves.
_LEFT = 27180


@functools.cache
def mpi_communicator() -> "MpiCommunicator":
    """That of this process. The others are told when it leaves from here on."""
    return MpiCommunicator()


class MpiCommunicator(Communicator):
    """The collectives of MPI, on its communicator of all processes.

    Raises
    ------
    TargetError
        ``mpi4py`` or a library of MPI is missing.
    """

    def __init__(self) -> None:
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as error:
            raise TargetError(
                "the process was started by mpiexec, and mpi4py cannot be loaded; expected it and "
                'a library of MPI: pip install "tvm-ext[mpi]"'
            ) from error
        self._mpi: Any = MPI
        self.world: Any = MPI.COMM_WORLD
        super().__init__(self.world.Get_rank(), self.world.Get_size())
        # How many collectives this process has been in, and those that have left.
        self._ended = np.zeros(1, np.int64)
        self._left: dict[int, int] = {}
        # Ahead of MPI's own end, which is registered with Python's.
        atexit.register(self._leave)
        self._shown = sys.excepthook
        sys.excepthook = self._fail

    def _leave(self) -> None:
        """Tells the other processes that this one takes part in no further collective."""
        with contextlib.suppress(self._mpi.Exception):
            for other in range(self.size):
                if other != self.rank:
                    self.world.Isend(self._ended, other, _LEFT).Free()

    def _fail(self, kind: Any, error: BaseException, trace: Any) -> None:
        """Shows the error that ends this process, and ends the others.

        They may be about to compile for minutes, ahead of a collective in which they would wait.
        """
        self._shown(kind, error, trace)
        print(f"error: {self._has_ended(self.rank)}", file=sys.stderr, flush=True)
        self.world.Abort(1)

    def _has_ended(self, rank: int) -> str:
        return (
            f"the process of device {rank} of {self.size} has ended; "
            "expected it to run: see what it printed, and start mpiexec again"
        )

    def _wait(self, request: Any) -> None:
        """Waits for a collective; raises where a process has left that it waits for.

        A process that has been in this collective may leave while others still pass its values on.
        """
        while not request.Test():
            self._look_for_left()
            missing = (one for one, ended in self._left.items() if ended <= self._ended[0])
            if (left := next(missing, None)) is not None:
                raise RunError(self._has_ended(left))
        self._ended += 1

    def _look_for_left(self) -> None:
        status, ended = self._mpi.Status(), np.empty(1, np.int64)
        if self.world.Iprobe(tag=_LEFT, status=status):
            self.world.Recv(ended, status.Get_source(), _LEFT)
            self._left[status.Get_source()] = int(ended[0])

    def _operation(self, reduce: np.ufunc) -> Any:
        mpi = self._mpi
        known = {"add": mpi.SUM, "multiply": mpi.PROD, "minimum": mpi.MIN, "maximum": mpi.MAX}
        return known[reduce.__name__]

    def _all_reduce(self, send: np.ndarray, receive: np.ndarray, reduce: np.ufunc) -> None:
        self._start_all_reduce(send, receive, reduce)()

    def _start_all_reduce(
        self, send: np.ndarray, receive: np.ndarray, reduce: np.ufunc
    ) -> Callable[[], object]:
        """What MPI does of it before the wait is up to MPI."""
        if send.dtype.char in self._mpi._typedict:
            request = self.world.Iallreduce(send, receive, op=self._operation(reduce))
            return lambda: self._wait(request)
        # MPI does not know the type, float16 among them.
        parts = np.empty((self.size, send.size), send.dtype)
        gathered = self.world.Iallgather(_bytes(send), _bytes(parts))

        def reduced() -> None:
            self._wait(gathered)
            reduce.reduce(parts, axis=0, out=receive)

        return reduced

    def _all_gather(self, send: np.ndarray, receive: np.ndarray) -> None:
        self._wait(self.world.Iallgather(_bytes(send), _bytes(receive)))

    def _reduce_scatter(self, send: np.ndarray, receive: np.ndarray, reduce: np.ufunc) -> None:
        whole = np.empty_like(send)
        self._all_reduce(send.reshape(-1), whole.reshape(-1), reduce)
        receive[...] = whole[self.rank]

    def _broadcast(self, send: np.ndarray, receive: np.ndarray) -> None:
        receive[...] = send
        self._wait(self.world.Ibcast(_bytes(receive), root=0))


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)

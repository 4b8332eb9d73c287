"""Collectives of processes that ``mpiexec`` started, by MPI."""

from typing import Any

import numpy as np

from tvm_ext.distributed.communicator import Communicator
from tvm_ext.errors import TargetError


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

    def _operation(self, reduce: np.ufunc) -> Any:
        mpi = self._mpi
        known = {"add": mpi.SUM, "multiply": mpi.PROD, "minimum": mpi.MIN, "maximum": mpi.MAX}
        return known[reduce.__name__]

    def _all_reduce(self, send: np.ndarray, receive: np.ndarray, reduce: np.ufunc) -> None:
        if send.dtype.char in self._mpi._typedict:
            self.world.Allreduce(send, receive, op=self._operation(reduce))
            return
        # MPI does not know the type, float16 among them.
        parts = np.empty((self.size, send.size), send.dtype)
        self._all_gather(send, parts)
        reduce.reduce(parts, axis=0, out=receive)

    def _all_gather(self, send: np.ndarray, receive: np.ndarray) -> None:
        self.world.Allgather(_bytes(send), _bytes(receive))

    def _reduce_scatter(self, send: np.ndarray, receive: np.ndarray, reduce: np.ufunc) -> None:
        whole = np.empty_like(send)
        self._all_reduce(send.reshape(-1), whole.reshape(-1), reduce)
        receive[...] = whole[self.rank]

    def _broadcast(self, send: np.ndarray, receive: np.ndarray) -> None:
        receive[...] = send
        self.world.Bcast(_bytes(receive), root=0)


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)

"""Whether ``mpiexec`` started this process, which its environment tells without MPI."""

import contextlib
import os

# By launcher, the variables with a process's number and with how many there are.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def mpi_rank() -> int | None:
    """Which process of several this is; None for one that is alone."""
    for rank, size in _LAUNCHERS:
        if int(os.environ.get(size, "1")) > 1:
            return int(os.environ.get(rank, "0"))
    return None


def mpi_size() -> int:
    """How many processes ``mpiexec`` started; 1 for one that is alone."""
    return max(int(os.environ.get(size, "1")) for _, size in _LAUNCHERS)


def end_all(code: int) -> None:
    """Ends the other processes as well, which would wait for one that has failed without end."""
    if mpi_rank() is None:
        return
    with contextlib.suppress(ImportError, RuntimeError):
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(code)

"""Runs CUDA code that was written by hand: what the emulator itself is tested with."""

import ctypes
import re
from collections.abc import Sequence

import numpy as np
import tvm_ffi

import cuda_emulation.errors  # noqa: F401, known to TVM from here on
from cuda_emulation.libraries import announce, kernel_library

_TAGS = [f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz"]


def run_source(
    source: str,
    kernel: str,
    arrays: Sequence[np.ndarray | int],
    threads: Sequence[int] = (32, 1, 1),
    grid: Sequence[int] = (1, 1, 1),
    shared_bytes: int = 0,
    cluster: int = 1,
) -> None:
    """Runs a kernel of CUDA code on arrays, in place; integers are passed as they are.

    Parameters
    ----------
    source : str
        One or more ``extern "C" __global__`` functions, in the form that TVM writes them.
    threads, grid : three numbers
        Sizes of a block and of the grid.
    shared_bytes : int
        Of dynamic shared memory.
    cluster : int
        Blocks of a cluster, along x.

    Raises
    ------
    CudaEmulationError
        The kernel breaks a rule.
    """
    tags = [*_TAGS, "clusterCtaIdx.x", "tirx.use_dyn_shared_memory"]
    names = re.findall(r'extern "C" __global__ void (?:__\w+\([^)]*\) )?(\w+)\(', source)
    module = tvm_ffi.load_module(str(kernel_library(source, dict.fromkeys(names, tags))))
    arguments: list[object] = []
    for array in arrays:
        if isinstance(array, np.ndarray):
            announce(array.ctypes.data, array.nbytes)
            arguments.append(ctypes.c_void_p(array.ctypes.data))
        else:
            arguments.append(array)
    module[kernel](*arguments, *grid, *threads, cluster, shared_bytes)

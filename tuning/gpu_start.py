"""A process made ready to run kernels on a GPU: here, or in a server's session."""

from contextlib import AbstractContextManager
from typing import Any

import tvm

from tvm_ext.hardware.cuda.device_code import making_device_code
from tvm_ext.hardware.cuda.references import keep_for_ever
from tvm_ext.hardware.cuda.runtime_library import runtime_problem

BEGIN_GPU = "tvm_ext.begin_gpu"
"""Name of ``begin_gpu`` for clients of a server."""

# Entered for the rest of the process.
_begun: dict[str, AbstractContextManager[Any]] = {}


class GpuProblem(RuntimeError):
    """A GPU cannot be used; the text says why, and what to do."""


def begin_gpu(arch: str) -> str:
    """Loads CUDA, and has code that comes as source compiled for ``arch`` from now on.

    Returns why that is not possible, in one line; empty where it is. The process must not fork
    after it.
    """
    problem = runtime_problem()
    if not problem and arch and arch not in _begun:
        _begun[arch] = making_device_code(arch)
        _begun[arch].__enter__()
        # It cannot be left at the end of the process, when its thread is gone.
        keep_for_ever(_begun[arch])
    return problem


def offer_begin_gpu() -> None:
    """Lets clients of a server call ``begin_gpu`` in the process of their session."""
    tvm.register_global_func(BEGIN_GPU, begin_gpu, override=True)

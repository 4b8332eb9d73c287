"""The compilers of CUDA code that are installed: nvcc, else NVIDIA's run-time compiler NVRTC."""

import functools
import os
from typing import Protocol

from tvm_ext.hardware.cuda.architecture import CodeForm
from tvm_ext.hardware.cuda.nvcc import find_nvcc
from tvm_ext.hardware.cuda.nvrtc import find_nvrtc
from tvm_ext.hardware.errors import BuildError

VARIABLE = "TVM_EXT_CUDA_COMPILER"
_CHOICES = ("nvcc", "nvrtc", "none")


class CudaCompiler(Protocol):
    """Makes device code of CUDA C++."""

    @property
    def name(self) -> str:
        """With its version: "nvcc 13.0"."""
        ...

    def form(self, arch: str) -> CodeForm:
        """What ``compile`` returns for this architecture."""
        ...

    def compile(self, code: str, arch: str) -> bytes:
        """Device code for ``arch`` ("sm_90a"); raises BuildError with the compiler's complaint."""
        ...


def find_compiler() -> CudaCompiler | None:
    """The compiler that ``$TVM_EXT_CUDA_COMPILER`` names, else the first that is installed.

    Raises
    ------
    BuildError
        The variable names no compiler, or one that is not installed.
    """
    wanted = os.environ.get(VARIABLE, "").strip().lower()
    if wanted and wanted not in _CHOICES:
        raise BuildError(
            f"{VARIABLE} is '{wanted}'; expected one of {', '.join(_CHOICES)}: set it to one, or "
            "leave it out"
        )
    found = _found(wanted)
    if found is None and wanted not in ("", "none"):
        raise BuildError(
            f"{VARIABLE} is '{wanted}', which is not installed; expected it: install it, or "
            "leave the variable out"
        )
    return found


@functools.cache
def _found(wanted: str) -> CudaCompiler | None:
    if wanted == "none":
        return None
    compiler: CudaCompiler | None = find_nvcc() if wanted in ("", "nvcc") else None
    return compiler or (find_nvrtc() if wanted in ("", "nvrtc") else None)


def missing_compilers() -> str:
    """What to do where there is no compiler, in one line; empty where there is one."""
    if find_compiler() is not None:
        return ""
    if os.environ.get(VARIABLE, "").strip().lower() == "none":
        return f"{VARIABLE} is 'none'; expected a compiler to make device code: leave it out"
    return (
        "neither nvcc nor NVRTC was found; expected one to make device code: put CUDA's bin folder "
        "on the path, or pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl"
    )

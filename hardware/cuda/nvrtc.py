"""NVRTC, the compiler of CUDA code as a library, which PyTorch and NVIDIA's packages bring along.

NVRTC documentation, "Basic Usage". It needs no C++ compiler but the headers of CUDA.
"""

import ctypes
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvm_ext.hardware.cuda.architecture import CodeForm
from tvm_ext.hardware.cuda.runtime_library import cuda_roots, package_folders
from tvm_ext.hardware.errors import BuildError

# The newest first.
_MAJORS = (13, 12)
_HEADER = "cuda_fp16.h"
# What nvcc defines and NVRTC does not.
_PREAMBLE = """#include <cuda/std/limits>
#ifndef INFINITY
#define INFINITY (::cuda::std::numeric_limits<float>::infinity())
#endif
#ifndef NAN
#define NAN (::cuda::std::numeric_limits<float>::quiet_NaN())
#endif
"""
# Size and alignment of a tensor map as cuda.h has them, which NVRTC cannot read.
_TENSOR_MAP = """struct alignas(64) CUtensorMap_st {
  unsigned long long opaque[16];
};
typedef struct CUtensorMap_st CUtensorMap;
"""


@dataclass(frozen=True)
class Nvrtc:
    """One loaded library with the folders of its headers."""

    library: Any
    version: str
    includes: tuple[str, ...]

    @property
    def name(self) -> str:
        """See ``CudaCompiler``."""
        return f"NVRTC {self.version}"

    def form(self, arch: str) -> CodeForm:
        """See ``CudaCompiler``."""
        return "cubin"

    def compile(self, code: str, arch: str) -> bytes:
        """See ``CudaCompiler``."""
        program = ctypes.c_void_p()
        tensor_map = _TENSOR_MAP if "CUtensorMap" in code else ""
        source = (_PREAMBLE + tensor_map + code).encode()
        made = self.library.nvrtcCreateProgram(
            ctypes.byref(program), source, b"kernels.cu", 0, None, None
        )
        if made != 0:
            raise self._refusal(arch, f"error {made}")
        try:
            flags = self._flags(arch)
            options = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
            if self.library.nvrtcCompileProgram(program, len(flags), options) != 0:
                raise self._refusal(arch, _complaint(self._read(program, "ProgramLog").decode()))
            return self._read(program, "CUBIN")
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))

    def _flags(self, arch: str) -> list[str]:
        return [
            f"--gpu-architecture={arch}",
            "--std=c++17",
            "--ftz=true",
            "-w",
            "-default-device",
            "--device-int128",
            *(f"--include-path={folder}" for folder in self.includes),
        ]

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        """What ``nvrtcGet<what>`` has for a program."""
        size = ctypes.c_size_t(0)
        getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        text = ctypes.create_string_buffer(max(size.value, 1))
        getattr(self.library, f"nvrtcGet{what}")(program, text)
        return text.raw[: size.value]

    def _refusal(self, arch: str, reason: str) -> BuildError:
        return BuildError(
            f"NVRTC refuses the code for {arch} ({reason}); expected CUDA {self.version} to know "
            f"{arch} and to find its headers: install nvcc, or another CUDA"
        )


def find_nvrtc() -> Nvrtc | None:
    """The newest NVRTC whose headers are there too; None without one."""
    for major in _MAJORS:
        for path in _libraries(major):
            try:
                library = _opened(path)
            except OSError:
                continue
            includes = _includes(major)
            if includes:
                return Nvrtc(library, _version(library), includes)
    return None


def _opened(path: str) -> ctypes.CDLL:
    """The library, after the one beside it that it looks for by its bare name."""
    for part in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")):
        ctypes.CDLL(str(part), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(path)


def _libraries(major: int) -> Iterator[str]:
    name = f"libnvrtc.so.{major}"
    folders = package_folders("lib") + [os.path.join(root, "lib64") for root in cuda_roots()]
    yield from (str(path) for path in (Path(f, name) for f in folders) if path.is_file())
    # Wherever the loader finds it.
    yield name


def _includes(major: int) -> tuple[str, ...]:
    """Folders of CUDA's headers and of those of CCCL, which are below them or a package apart."""
    toolkits = [os.path.join(root, "include") for root in cuda_roots()]
    folders = [*package_folders("include"), *toolkits]
    if not any(Path(folder, _HEADER).is_file() for folder in folders):
        return ()
    # Headers of another release than the library would not compile.
    own = [f for f in folders if f"cu{major}" in f or f"cuda-{major}" in os.path.realpath(f)]
    chosen = own if any(Path(folder, _HEADER).is_file() for folder in own) else folders
    nested = [os.path.join(folder, "cccl") for folder in chosen]
    return tuple([*chosen, *(folder for folder in nested if os.path.isdir(folder))])


def _version(library: Any) -> str:
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return f"{major.value}.{minor.value}"


def _complaint(log: str) -> str:
    lines = [line.strip() for line in log.rstrip("\0").splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no reason")

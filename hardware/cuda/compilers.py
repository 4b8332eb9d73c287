"""The compilers of CUDA code that are installed: nvcc, else NVIDIA's run-time compiler NVRTC."""

import ctypes
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

from tvm_ext.configs.errors import BuildError
from tvm_ext.hardware.cuda.runtime_library import cuda_roots, package_folders

# Which GPU runs code that was made for which: CUDA C++ Programming Guide, "Compute Capabilities".
#
# Machine code (cubin) of sm_XY runs on devices X.Z with Z of at least Y. PTX and source of sm_XY
# are translated for any later device. What is made for an architecture with a letter (sm_90a)
# runs on exactly that one.


CodeForm = Literal["source", "cubin", "fatbin"]
"""CUDA C++ text; machine code; machine code beside PTX for later GPUs."""

FORMS: tuple[str, ...] = get_args(CodeForm)

_ARCH = re.compile(r"sm_(\d+)(\d)([a-z]?)")


def runs_on(arch: str, form: str, capability: tuple[int, int]) -> bool:
    """Whether code of ``form`` for ``arch`` ("sm_90a") runs on a device of this capability."""
    found = _ARCH.fullmatch(arch)
    if found is None:
        return True
    made_for = (int(found.group(1)), int(found.group(2)))
    if found.group(3):
        return capability == made_for
    if form == "cubin":
        return capability[0] == made_for[0] and capability >= made_for
    return capability >= made_for


def expected_device(arch: str, form: str) -> str:
    """In words, the devices that run such code."""
    found = _ARCH.fullmatch(arch)
    if found is None:
        return f"a GPU of {arch}"
    major, minor = found.group(1), found.group(2)
    if found.group(3):
        return f"a GPU of compute capability {major}.{minor}"
    if form == "cubin":
        return f"a GPU of compute capability {major}.{minor} to {major}.9"
    return f"a GPU of compute capability {major}.{minor} or above"


# NVIDIA's compiler ``nvcc`` as a program.


# CUDA Compiler Driver NVCC, "Options for Altering Compiler/Linker Behavior". Denormal numbers count
# as zero, which costs nothing a model would notice; the other approximations of --use_fast_math
# (tanh with 11 bits, sine of large angles) would.
FLAGS = ("-O3", "-std=c++17", "--ftz=true", "-w", "--expt-relaxed-constexpr")

_VERSION = re.compile(r"release (\d+\.\d+)")


@dataclass(frozen=True)
class Nvcc:
    """One installed nvcc.

    Attributes
    ----------
    program : str
        Its path.
    version : str
        "13.0".
    """

    program: str
    version: str

    @property
    def name(self) -> str:
        """See ``CudaCompiler``."""
        return f"nvcc {self.version}"

    def form(self, arch: str) -> CodeForm:
        """See ``CudaCompiler``; code of an architecture with a letter is of no use to others."""
        return "cubin" if arch[-1].isalpha() else "fatbin"

    def compile(self, code: str, arch: str) -> bytes:
        """See ``CudaCompiler``."""
        return self.compile_with_report(code, arch)[0]

    def compile_with_report(self, code: str, arch: str) -> tuple[bytes, str]:
        """The same, and what the assembler says of the kernels (``ptxas -v``)."""
        form = self.form(arch)
        number = arch.removeprefix("sm_")
        machine_code = f"arch=compute_{number},code={arch}"
        chosen = ["-gencode", machine_code]
        if form == "fatbin":
            chosen += ["-gencode", f"arch=compute_{number},code=compute_{number}"]
        with tempfile.TemporaryDirectory(prefix="tvm-ext-nvcc-") as folder:
            source, result = Path(folder, "kernels.cu"), Path(folder, f"kernels.{form}")
            source.write_text(code, encoding="utf-8")
            arguments = [f"--{form}", *FLAGS, "--ptxas-options=-v", *chosen]
            arguments += ["-o", str(result), str(source)]
            done = _run([self.program, *arguments])
            if done.returncode != 0:
                raise BuildError(
                    f"nvcc refuses the code for {arch} ({_nvcc_complaint(done)}); expected CUDA "
                    f"{self.version} to know {arch} and a C++ compiler that it takes: install "
                    f"another CUDA or g++, or set {_OTHER}"
                )
            return result.read_bytes(), done.stderr + done.stdout


_OTHER = "TVM_EXT_CUDA_COMPILER=nvrtc"


def find_nvcc() -> Nvcc | None:
    """The nvcc on the path, else of an installed toolkit or package; None without one."""
    folders = [os.path.join(root, "bin") for root in cuda_roots()] + package_folders("bin")
    for folder in (None, *folders):
        program = shutil.which("nvcc", path=folder)
        if program is None:
            continue
        try:
            found = _VERSION.search(_run([program, "--version"]).stdout)
        except OSError:
            continue
        if found:
            return Nvcc(program, found.group(1))
    return None


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def _nvcc_complaint(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line or "fatal" in line), None)
    return first or (lines[-1] if lines else f"exit status {done.returncode}")


# NVRTC, the compiler of CUDA code as a library, which PyTorch and NVIDIA's packages bring along.
#
# NVRTC documentation, "Basic Usage". It needs no C++ compiler but the headers of CUDA.


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
                raise self._refusal(
                    arch, _nvrtc_complaint(self._read(program, "ProgramLog").decode())
                )
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


def _nvrtc_complaint(log: str) -> str:
    lines = [line.strip() for line in log.rstrip("\0").splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else "no reason")


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
    found = _installed(wanted)
    if found is None and wanted not in ("", "none"):
        raise BuildError(
            f"{VARIABLE} is '{wanted}', which is not installed; expected it: install it, or "
            "leave the variable out"
        )
    return found


@functools.cache
def _installed(wanted: str) -> CudaCompiler | None:
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

"""NVIDIA's compiler ``nvcc`` as a program."""

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tvm_ext.hardware.cuda.architecture import CodeForm
from tvm_ext.hardware.cuda.runtime_library import cuda_roots, package_folders
from tvm_ext.hardware.errors import BuildError

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
                    f"nvcc refuses the code for {arch} ({_complaint(done)}); expected CUDA "
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


def _complaint(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    first = next((line for line in lines if "error" in line or "fatal" in line), None)
    return first or (lines[-1] if lines else f"exit status {done.returncode}")

"""Compiles the emulator and the kernels with g++; what was compiled once is kept."""

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import tvm_ffi

from cuda_emulation.rewriting import glue, rewritten

FOLDER = Path(__file__).parent
COMPILER = shutil.which("g++")
_COMMON = ["-std=c++17", "-fPIC", "-shared", "-w", "-g1", f"-I{FOLDER / 'include'}"]
_RUNTIME = [*_COMMON, "-O3", f"-I{FOLDER / 'runtime'}"]
_KERNEL = [
    *_COMMON,
    "-O1",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-fwrapv",
    "-fno-tree-sra",  # accesses of a vector stay one: they are counted and checked as such
    "-fsanitize=thread,alignment,bounds,integer-divide-by-zero",
]


_FILLED = "-ftrivial-auto-var-init=pattern"


class CompilationError(Exception):
    """g++ does not take the rewritten code: its first errors are in the message."""


def missing() -> str:
    """Why nothing can be emulated on this machine; empty where it can."""
    machine = f"{sys.platform} {platform.machine()}"
    if machine not in ("linux x86_64", "linux aarch64"):
        return f"CUDA code is emulated on Linux on x86-64 or AArch64, not on {machine}"
    return "" if COMPILER is not None else "g++ is not installed: CUDA code cannot be emulated"


@functools.cache
def _kernel_flags() -> list[str]:
    """With registers that are read before they are written a pattern, where g++ knows how."""
    version = subprocess.run([str(COMPILER), "-dumpversion"], capture_output=True, text=True)
    filled = int(version.stdout.split(".")[0] or 0) >= 12
    return [*_KERNEL, _FILLED] if filled else _KERNEL


def cache_folder() -> Path:
    """Where libraries are kept between runs: CUDA_EMULATION_CACHE, or the temporary folder."""
    named = os.environ.get("CUDA_EMULATION_CACHE")
    folder = Path(named) if named else Path(tempfile.gettempdir()) / f"cuda-emulation-{os.getuid()}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@functools.cache
def runtime_library() -> Path:
    """The emulator itself; once for a process."""
    sources = sorted((FOLDER / "runtime").iterdir()) + sorted((FOLDER / "include").iterdir())
    text = "".join(path.read_text() for path in sources)
    units = [str(path) for path in sources if path.suffix == ".cpp"]
    return _compiled(text, [*_RUNTIME, *units], "emulator", [])


@functools.cache
def _runtime() -> ctypes.CDLL:
    library = ctypes.CDLL(str(runtime_library()))
    library.emu_array.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    library.emu_seed.argtypes = [ctypes.c_uint32]
    library.emu_count_accesses.argtypes = [ctypes.c_size_t, ctypes.c_int]
    library.emu_counted.restype = ctypes.c_char_p
    return library


def announce(address: int, size: int) -> None:
    """Tells the emulator of an array of ``size`` bytes that kernels may use from now on."""
    _runtime().emu_array(address, size)


@tvm_ffi.register_global_func("cuda_emulation.array", override=True)
def _announce(address: object, size: int) -> None:
    announce(_pointer(address), size)


def set_seed(seed: int) -> None:
    """The order of threads and blocks in later runs; 0 is the order of their numbers."""
    _runtime().emu_seed(seed)


def count_accesses(blocks: int, only: bool) -> None:
    """Counts accesses of so many blocks of every later launch: see ``accesses.py``."""
    _runtime().emu_count_accesses(blocks, int(only))


def counted() -> str:
    """What was counted since the last call, one line a fact."""
    return str(_runtime().emu_counted().decode())


def _pointer(at: object) -> int:
    return int(getattr(at, "value", at) or 0)


def kernel_library(source: str, launch_tags: Mapping[str, Sequence[str]]) -> Path:
    """A TVM module with the kernels of CUDA code.

    Parameters
    ----------
    source : str
        CUDA code as TVM generates it.
    launch_tags : mapping of kernel name to tags
        The order of launch parameters after the arguments, as in ``tirx.kernel_launch_params``.

    Raises
    ------
    AssemblyError, CompilationError
        The code has what the emulator does not know.
    """
    runtime = runtime_library()
    text, kernels = rewritten(source)
    known = [kernel for kernel in kernels if kernel.name in launch_tags]
    # Lines of messages are those of the CUDA code.
    text = '#include "device.h"\n#line 1\n' + text + "\n#line 1000000\n" + glue(known, launch_tags)
    link = [str(runtime), f"-Wl,-rpath,{runtime.parent}", tvm_ffi.libinfo.find_libtvm_ffi()]
    return _compiled(text, _kernel_flags(), "kernels", link, original=source)


def _compiled(
    text: str, command: list[str], kind: str, link: list[str], original: str = ""
) -> Path:
    """The library of ``text``; named by a hash of it, its headers and the command."""
    headers = "".join(path.read_text() for path in sorted((FOLDER / "include").iterdir()))
    key = hashlib.sha256(repr((text, command, link, headers)).encode()).hexdigest()[:24]
    folder = cache_folder()
    path = folder / f"{kind}-{key}.so"
    if path.exists():
        return path
    if COMPILER is None:
        raise CompilationError("g++ was not found; expected it on the PATH: install it")
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        built = Path(temporary) / path.name
        if kind == "kernels":
            code, unit = folder / f"{kind}-{key}.cpp", Path(temporary) / "kernels.o"
            code.write_text(text)
            (folder / f"{kind}-{key}.cu").write_text(original)
            flags = [flag for flag in command if flag != "-shared"]
            _run([COMPILER, *flags, "-c", str(code), "-o", str(unit)])
            # Without -fsanitize: the library of its runtime is not wanted, this one replaces it.
            _run([COMPILER, "-shared", str(unit), *link, "-o", str(built)])
        else:
            _run([COMPILER, *command, *link, "-ldl", "-o", str(built)])
        built.replace(path)
    return path


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [
            line for line in done.stderr.splitlines() if "error" in line or "undefined" in line
        ]
        raise CompilationError("\n".join(errors[:8]) or done.stderr[-2000:])

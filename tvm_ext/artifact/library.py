"""Turns a compiled program into the bytes of a shared library, and such bytes into a module.

Linking is TVM's ``export_library`` with our own call of the compiler: TVM's takes ``$CXX`` for the
name of one program ("ccache g++" fails) and ends in a TypeError where there is no compiler.
The weights pass through LLVM as one constant, so linking is quick: about a second for 90 MB.
"""

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from tvm_ext.configs.progress import tell
from tvm_ext.errors import ArtifactError

# Compilers of C first: those of C++ link a library that nothing here needs, in twice the time.
_COMPILERS = ("gcc", "clang", "cc", "g++", "clang++", "c++")


def find_compiler() -> tuple[str, ...]:
    """The command that links a shared library: ``$CXX``, ``$CC``, or a usual name on the path.

    Returns
    -------
    tuple[str, ...]
        Program and leading arguments.

    Raises
    ------
    ArtifactError
        There is no compiler, or the variable does not name a program.
    """
    for variable in ("CXX", "CC"):
        value = os.environ.get(variable, "").strip()
        if value:
            return _compiler_from_variable(variable, value)
    for name in _COMPILERS:
        program = shutil.which(name)
        if program is not None:
            return (program,)
    raise ArtifactError(
        "no C or C++ compiler found to link the model with; expected gcc, clang or g++ on the "
        "path: install one (Debian, Ubuntu: apt install gcc; without root: pip install ziglang and "
        "CXX='python -m ziglang cc'), or set CXX to its path"
    )


def export_library_bytes(executable: Any) -> bytes:
    """Link a compiled program into a shared library.

    Parameters
    ----------
    executable : tvm.relax.VMExecutable
        Result of ``tvm.compile`` or ``relax.build``. Neither network nor GPU is needed.

    Returns
    -------
    bytes
        The library, for ``write_artifact``. In between, about three times as much lies in the
        folder for temporary files. The same program gives the same bytes, but other ones after it
        has run: a virtual machine adds an empty memory scope per constant to its executable, and
        saving that makes TVM print a warning line ("Scope Saving") for each.

    Raises
    ------
    ArtifactError
        There is no compiler, linking failed, or the temporary folder is full.
    """
    tell("linking")
    linker = _Linker(find_compiler())
    try:
        with tempfile.TemporaryDirectory(prefix="tvmx-") as folder:
            output = Path(folder) / "model.so"
            executable.export_library(str(output), fcompile=linker, workspace_dir=folder)
            return output.read_bytes()
    except (OSError, RuntimeError, ValueError) as error:
        raise ArtifactError(
            f"cannot link the model: {_reason(error)}; expected a compiler for the model's "
            "target and room in the temporary folder: set CXX to one (for another architecture a "
            "cross compiler such as aarch64-linux-gnu-g++), TMPDIR to a folder with free space"
        ) from error


def load_library_bytes(library: bytes) -> tvm.runtime.Module:
    """Load a shared library into this process.

    The library is written into a private temporary folder, which goes as soon as it is loaded: the
    process keeps what it has mapped.

    Raises
    ------
    ArtifactError
        The system's loader refuses the library, it cannot be written, or it is not a program.
    """
    with _temporary_library(library) as path:
        try:
            module = tvm.runtime.load_module(str(path))
        except RuntimeError as error:
            raise ArtifactError(
                f"cannot load the model's code: {_reason(error)}; expected a library for this "
                "system, in a temporary folder that allows execution: set TMPDIR to such a "
                "folder, or compile the model again on this machine"
            ) from error
    if not module.implements_function("vm_load_executable", query_imports=True):
        raise ArtifactError(
            "cannot load the model's code: it is not a program of TVM's virtual machine; expected "
            "a library that this package linked: save the model again"
        )
    return module


class _Linker:
    """Calls the compiler in the way that ``export_library`` asks its ``fcompile`` to."""

    def __init__(self, compiler: tuple[str, ...]) -> None:
        self._compiler = compiler

    def __call__(self, output: str, objects: Sequence[str], options: Sequence[str] = ()) -> None:
        undefined = ("-undefined", "dynamic_lookup") if sys.platform == "darwin" else ()
        self._run("-shared", "-fPIC", *undefined, "-o", output, *options, *objects)

    def get_target_triple(self) -> str:
        """LLVM's name for the machine; TVM asks when the program has no kernel of its own."""
        return self._run("-dumpmachine").strip()

    def _run(self, *arguments: str) -> str:
        result = subprocess.run(
            [*self._compiler, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if result.returncode != 0:
            lines = result.stderr.strip().splitlines()
            reason = lines[-1] if lines else f"exit status {result.returncode}"
            raise OSError(f"{self._compiler[0]}: {reason}")
        return result.stdout


def _compiler_from_variable(variable: str, value: str) -> tuple[str, ...]:
    try:
        program, *arguments = shlex.split(value)
    except ValueError:
        program, arguments = value, []
    found = shutil.which(program)
    if found is None:
        raise ArtifactError(
            f"{variable}={value!r} does not name a program; expected a compiler: "
            f"correct {variable}, or unset it to use gcc or clang from the path"
        )
    return (found, *arguments)


@contextlib.contextmanager
def _temporary_library(library: bytes) -> Iterator[Path]:
    try:
        # A system that locks loaded libraries keeps the folder; that must not fail the load.
        folder = tempfile.TemporaryDirectory(prefix="tvmx-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _unwritable(error) from error
    with folder:
        path = Path(folder.name) / "model.so"
        try:
            path.write_bytes(library)
        except OSError as error:
            raise _unwritable(error) from error
        yield path


def _unwritable(error: OSError) -> ArtifactError:
    return ArtifactError(
        f"cannot unpack the model's code: {_reason(error)}; expected a temporary folder with "
        "free space: set TMPDIR to one"
    )


def _reason(error: Exception) -> str:
    """What the system or the compiler says, which is about the machine; TVM's texts are not."""
    own = error.strerror or str(error) if isinstance(error, OSError) else ""
    return (own.strip().splitlines() or ["its code cannot be written or read"])[0].strip()


# A compiled program as a library that can be saved, and as a module that can be run.


class ProgramModule:
    """One program, linked once and loaded once, for all threads.

    What runs is always loaded from the library: a virtual machine writes a memory scope for each
    constant into the executable that it runs, and TVM warns of each when such a one is saved.
    """

    def __init__(self, program: relax.VMExecutable | bytes) -> None:
        self._program = program
        self._lock = threading.Lock()
        self._module: tvm.runtime.Module | None = None

    def library(self) -> bytes:
        """The program as a shared library; raises ArtifactError where it cannot be linked."""
        with self._lock:
            return self._linked()

    def opened(self) -> tvm.runtime.Module:
        """The module; raises ArtifactError where it cannot be linked, or the system refuses it."""
        with self._lock:
            if self._module is None:
                self._module = load_library_bytes(self._linked())
            return self._module

    def _linked(self) -> bytes:
        if not isinstance(self._program, bytes):
            self._program = export_library_bytes(self._program)
        return self._program

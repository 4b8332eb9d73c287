"""Turns a compiled program into the bytes of a shared library, and such bytes into a module.

The weights pass through LLVM as one constant, so linking is quick: about a second for 90 MB.
"""

import contextlib
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from tvm_ext.configs.progress import tell
from tvm_ext.errors import ArtifactError
from tvm_ext.hardware.cpu.linker import Linker, find_compiler
from tvm_ext.hardware.cpu.threads import thread_pool


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
    tell("shared library")
    linker = Linker(find_compiler())
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
    thread_pool.share_with(module)
    return module


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

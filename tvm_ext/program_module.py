"""A compiled program as a library that can be saved, and as a module that can be run."""

import threading

import tvm
from tvm import relax

from tvm_ext.artifact.library import export_library_bytes, load_library_bytes


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

"""A compiled program as a module that can be run: linked or unpacked when it is first needed."""

import threading

import tvm
from tvm import relax

from tvm_ext.artifact import LoadedArtifact, link_and_load


class ProgramModule:
    """The module of one program, made once for all threads."""

    def __init__(self, program: relax.VMExecutable | LoadedArtifact, lock: threading.Lock) -> None:
        self._program = program
        self._lock = lock
        self._module: tvm.runtime.Module | None = None

    def opened(self) -> tvm.runtime.Module:
        """The module; raises ArtifactError where it cannot be linked, or the system refuses it."""
        with self._lock:
            if self._module is None:
                if isinstance(self._program, relax.VMExecutable):
                    self._module = link_and_load(self._program)
                else:
                    self._module = self._program.load_module()
            return self._module

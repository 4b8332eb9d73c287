"""Runs a process with tensors between pages that nobody may touch; see ``guard_pages.c``."""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tvm import relax

# How to compile so that each tensor has memory of its own, and no more than it needs.
UNSHARED_STORAGE: dict[str, Any] = {
    "pass_config": {"ShareStorage": {"reuse": False}, "RoundStorage": {"rounding": False}},
}
# Where TVM's tensors begin: the kernels with which it folds constants rely on it.
TVM_ALIGNMENT = 64
# Address space that a process reserves: see ``guard_pages.c``.
ARENA_GIBIBYTES = 65

_PRELOAD = "LD_PRELOAD"
_SOURCE = Path(__file__).with_suffix(".c")


def restart_with_guard_pages() -> None:
    """Starts this program again, with its arguments; returns in the process with guard pages.

    The library must be there before TVM's runtime is loaded.
    """
    if not is_guarded():
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "guard_pages.so"
            flags = ("-O1", "-shared", "-fPIC", "-o", str(library), str(_SOURCE), "-ldl")
            subprocess.run(["cc", *flags], check=True)
            environment = {**os.environ, _PRELOAD: str(library)}
            sys.exit(
                subprocess.run([sys.executable, *sys.orig_argv[1:]], env=environment).returncode
            )
    # Compilers and linkers that this process starts need none of it.
    del os.environ[_PRELOAD]
    # The other allocator of TVM's virtual machine rounds up to pages, and hands out memory again.
    relax.VirtualMachine.POOLED_ALLOCATOR = relax.VirtualMachine.NAIVE_ALLOCATOR


def is_guarded() -> bool:
    """Whether this process has guard pages."""
    return hasattr(ctypes.CDLL(None), "guard_pages_place")


def place_tensors(alignment: int) -> None:
    """Has new tensors end where a page without access begins.

    With an alignment above 1, as near to it as a multiple of that many bytes allows; with 0 they
    begin where such a page ends.
    """
    ctypes.CDLL(None).guard_pages_place(ctypes.c_size_t(alignment))

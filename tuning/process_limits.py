"""What a process that runs candidates may take, and how long it may live."""

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """Has the system end this process when its parent ends, however that ends; on Linux.

    ``parent`` is the parent's process number: if it is gone already, this process ends now.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def limit_memory(extra_bytes: int) -> None:
    """Limits the address space to what is in use now and ``extra_bytes``; on Linux, 0 for none."""
    if not extra_bytes or sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + extra_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # No memory dumps of candidates that crash.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

"""What a ``Worker``'s process runs: waits for functions, calls them, sends back what they return.

python -m tvm_ext.tuning.worker_process FD MEMORY_BYTES PARENT
"""

import contextlib
import contextvars
import ctypes
import faulthandler
import gc
import importlib
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# What a process that runs candidates may take, and how long it may live.


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


def main() -> None:
    """Serves one connection until it closes."""
    pipe = Connection(int(sys.argv[1]))
    _belong_to(int(sys.argv[3]))
    # What an import makes stays: there is no garbage in it to look for.
    gc.disable()
    import tvm  # noqa: F401

    gc.freeze()
    gc.enable()

    _serve(pipe, int(sys.argv[2]))


def serve_in_fork(ours: Connection, theirs: Connection, memory_bytes: int, parent: int) -> None:
    """As ``main``, in a copy of the process that has the other end, ``ours``, of the pipe.

    What is printed goes nowhere, and nothing is told to those who listened in that process.
    """
    _belong_to(parent)
    ours.close()
    os.setsid()
    faulthandler.disable()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    # Another thread may have held the locks of the streams when the process was copied.
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", errors="replace", closefd=False) for fd in (1, 2))
    contextvars.Context().run(_serve, theirs, memory_bytes)


def _belong_to(parent: int) -> None:
    """Leaves Ctrl-C to the parent, and ends with it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)


def _serve(pipe: Connection, memory_bytes: int) -> None:
    limit_memory(memory_bytes)
    pipe.send("ready")
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            pipe.send(_answer(*pipe.recv()))
    # Modules of candidates may crash while Python tears itself down.
    os._exit(0)


def _answer(module: str, name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        return True, function(*arguments)
    except Exception as error:  # noqa: BLE001
        # Whatever a candidate causes is an answer.
        return False, type(error).__name__, str(error)


if __name__ == "__main__":
    main()

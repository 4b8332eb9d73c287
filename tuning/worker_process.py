"""What a ``Worker``'s process runs: waits for functions, calls them, sends back what they return.

python -m tvm_ext.tuning.worker_process FD MEMORY_BYTES
"""

import contextlib
import importlib
import os
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tvm_ext.tuning.process_end import end_with_parent


def main() -> None:
    """Serves one connection until it closes."""
    pipe = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    import tvm  # noqa: F401

    _limit_memory(int(sys.argv[2]))
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


def _limit_memory(extra_bytes: int) -> None:
    if not extra_bytes or sys.platform != "linux":
        return
    import resource

    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + extra_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # No memory dumps of candidates that crash.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()

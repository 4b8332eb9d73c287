"""What a ``Worker``'s process runs: waits for functions, calls them, sends back what they return.

python -m tvm_ext.tuning.worker_process FD MEMORY_BYTES PARENT
"""

import contextlib
import importlib
import os
import signal
import sys
from multiprocessing.connection import Connection
from typing import Any

from tvm_ext.tuning.process_limits import end_with_parent, limit_memory


def main() -> None:
    """Serves one connection until it closes."""
    pipe = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(int(sys.argv[3]))
    import tvm  # noqa: F401

    limit_memory(int(sys.argv[2]))
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

"""What the workers of the tests are asked to do."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any


def product(left: Any, right: Any) -> Any:
    return left * right


def process_id() -> int:
    return os.getpid()


def refuse(text: str) -> None:
    raise LookupError(text)


def leave(code: int) -> None:
    os._exit(code)


def crash() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def abort() -> None:
    ctypes.CDLL(None).abort()


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def start_and_sleep(note: str) -> None:
    """Starts a process of its own, as a compiler starts a linker, and hangs."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(note, "w", encoding="ascii") as file:
        file.write(str(child.pid))
    time.sleep(600)


def take(size: int) -> int:
    return len(bytearray(size))


def interrupt_itself() -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "still here"

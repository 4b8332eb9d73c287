"""Ctrl-C during a session: noted, whatever TVM makes of a KeyboardInterrupt in its callbacks."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Interrupt:
    """While it is entered, the first Ctrl-C (or SIGTERM) asks the session to end, the next ends it.

    Other threads than the main one cannot handle signals: there it notes nothing.

    Parameters
    ----------
    stop : callable
        Ends what the session waits for; called in the signal's handler.

    Attributes
    ----------
    came : bool
        Whether the session was asked to end.
    """

    def __init__(self, stop: Callable[[], object]) -> None:
        self.came = False
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                # One that the caller chose to ignore stays ignored.
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            raise KeyboardInterrupt
        self.came = True
        self._stop()

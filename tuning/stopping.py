"""What ends a session or the search of a kernel: trials and time used up, Ctrl-C, a failure."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tvm_ext.configs.errors import TvmExtError
from tvm_ext.tuning.kernel_state import KernelState
from tvm_ext.tuning.progress import SessionProgress
from tvm_ext.tuning.session_options import SessionOptions
from tvm_ext.tuning.worker import Deadline

# Of the time budget, kept for measuring the best of a kernel again.
_CONFIRM_SECONDS = 0.7


class Budget:
    """Keeps the account; ``progress`` shows it.

    Parameters
    ----------
    options : SessionOptions
        What the session may do.
    progress : SessionProgress
        What it has done.
    states : Sequence[KernelState]
        Its kernels, with the trials of earlier sessions.
    """

    def __init__(
        self, options: SessionOptions, progress: SessionProgress, states: Sequence[KernelState]
    ) -> None:
        self._options = options
        self._progress = progress
        self._states = states
        self._trials_before = sum(len(state.searched()) for state in states)
        progress.budget_seconds = options.time_budget
        self.plan()

    @property
    def trials_each(self) -> int | None:
        """Trials that each kernel may have; None when they are counted together."""
        return None if self._options.trials is not None else self._options.effort.trials_per_kernel

    def plan(self) -> None:
        """How many trials the session may take: fewer with every search that ends early."""
        if self._options.trials is not None:
            planned = max(0, self._options.trials - self._trials_before)
        else:
            each = self._options.effort.trials_per_kernel
            left = [max(0, each - len(s.searched())) for s in self._states if s.is_open]
            planned = self._progress.trials_done + sum(left)
        self._progress.trials_planned = planned

    def trials_left(self) -> int:
        """Trials that may still be begun."""
        return max(0, self._progress.trials_planned - self._progress.trials_done)

    def is_late(self) -> bool:
        """Whether the time that is left is needed to confirm what was found."""
        return self._left(self._reserve()) < 0

    def is_half_used(self) -> bool:
        """Whether half of the time is over."""
        budget = self._options.time_budget
        return budget is not None and self._progress.seconds > budget / 2

    def is_past(self) -> bool:
        """Whether the time is over, confirmations or not."""
        return self._left() < 0

    def search_deadline(self) -> Deadline:
        """When ``is_late`` will be true."""
        return Deadline(time.monotonic() + self._left(self._reserve()))

    def deadline(self) -> Deadline:
        """When ``is_past`` will be true."""
        return Deadline(time.monotonic() + self._left())

    def _left(self, reserve: float = 0.0) -> float:
        """Seconds that are left but for a reserve; infinite without a budget."""
        budget = self._options.time_budget
        return float("inf") if budget is None else budget - reserve - self._progress.seconds

    def _reserve(self) -> float:
        """Seconds that confirmations of what was found so far will take."""
        budget = self._options.time_budget
        if budget is None:
            return 0.0
        waiting = sum(bool(s.is_open and s.search and s.to_confirm(1)) for s in self._states)
        return min(_CONFIRM_SECONDS * waiting, budget / 4)


# Ctrl-C during a session: noted, whatever TVM makes of a KeyboardInterrupt in its callbacks.


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


class KernelGuard:
    """Skips kernels over which something fails, with a note.

    Parameters
    ----------
    progress : SessionProgress
        Gets the notes.
    interrupt : Interrupt
        After one, errors mean nothing.
    """

    def __init__(self, progress: SessionProgress, interrupt: Interrupt) -> None:
        self._progress = progress
        self._interrupt = interrupt

    @contextmanager
    def guarded(self, state: KernelState) -> Iterator[None]:
        """Only errors that a user can cause, TvmExtError, leave the block."""
        try:
            yield
        except TvmExtError:
            raise
        except Exception:  # noqa: BLE001
            # Interrupts in TVM's callbacks come back as errors.
            if not self._interrupt.came:
                state.end("skipped", "its search failed, a bug in tvm-ext")
                state.search = None
                self._progress.notes.append(
                    f"bug in tvm-ext: the search of {state.task.name} failed, which keeps its "
                    "default schedule; please report it"
                )

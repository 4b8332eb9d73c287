"""Times of several programs, measured in turn so that drift of the machine hits all alike."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeAlias

Timer: TypeAlias = Callable[[], float]
"""Runs a program once and returns the seconds that count."""

_FEWEST_ROWS = 3
# How long threads that another program leaves spinning are waited for: those of ONNX Runtime stop
# after about ten milliseconds, those of TVM after ninety.
_SETTLE_SECONDS = 0.12
# A call longer than this needs no warm-up.
_LONG_CALL = 0.5


def timed(program: Callable[[], object], clock: Timer = time.perf_counter) -> Timer:
    """A timer that returns the wall time of one call of ``program``.

    With ``time.thread_time`` as its clock it returns the processor's time of the calling thread:
    for programs of one thread on a machine that others use too.
    """

    def seconds() -> float:
        begun = clock()
        program()
        return clock() - begun

    return seconds


def interleaved_seconds(
    timers: Sequence[Timer],
    seconds: float = 2.0,
    rounds: int = 10,
    settle: float = _SETTLE_SECONDS,
) -> list[list[float]]:
    """What each timer returned, call by call.

    Each round calls one program several times in a row, then the next, after a pause: threads that
    one leaves spinning would otherwise slow down the calls of another, to 4 ms each where threads
    share a CPU. The first call of a row is a warm-up and does not count. Every other round goes
    backwards, so that no program always follows the same one.

    Parameters
    ----------
    timers : sequence of Timer
        The programs.
    seconds : float
        Time to spend on all of them together, shared evenly. A program too slow for its share
        takes part in fewer rounds, in three at least.
    rounds : int
        Number of turns.
    settle : float
        The pause; none is needed where no program has threads of its own.
    """
    plans = [_Plan(timer, seconds / len(timers), rounds, settle) for timer in timers]
    for turn in range(rounds):
        for plan in plans if turn % 2 == 0 else reversed(plans):
            if plan.takes_part(turn):
                plan.row()
    return [plan.taken for plan in plans]


def interleaved_milliseconds(
    *programs: Callable[[], object], seconds: float = 2.0, rounds: int = 10
) -> tuple[float, ...]:
    """Median milliseconds of one call of each program; see ``interleaved_seconds``."""
    samples = interleaved_seconds([timed(program) for program in programs], seconds, rounds)
    return tuple(1e3 * statistics.median(taken) for taken in samples)


class _Plan:
    """How often one program runs, and what its calls took."""

    def __init__(self, timer: Timer, share: float, rounds: int, settle: float) -> None:
        self.taken: list[float] = []
        self._settle = settle
        self._timer = timer
        self._rounds = rounds
        once = timer()
        if once < share:
            # The first call sets up threads and memory; it says too much of a fast program.
            once = timer()
        once = max(once, 1e-9)
        self._rows = min(rounds, max(_FEWEST_ROWS, int(share / once)))
        self._calls = max(1, int(share / self._rows / once))
        self._warm_up = once < _LONG_CALL

    def takes_part(self, turn: int) -> bool:
        """Whether a turn is one of this program's, which are spread evenly."""
        return (turn + 1) * self._rows // self._rounds > turn * self._rows // self._rounds

    def row(self) -> None:
        """One turn."""
        time.sleep(self._settle)
        if self._warm_up:
            self._timer()
        self.taken.extend(self._timer() for _ in range(self._calls))

"""Latency of two programs, measured in turn so that drift of the machine hits both alike."""

import statistics
import time
from collections.abc import Callable


def interleaved_milliseconds(
    first: Callable[[], object],
    second: Callable[[], object],
    seconds: float = 2.0,
    rounds: int = 20,
) -> tuple[float, float]:
    """Median milliseconds of one call of each.

    Each round calls one program several times in a row, then the other: threads that one leaves
    spinning would otherwise slow down the next call of the other. The first call of a row is a
    warm-up and does not count.
    """
    times: tuple[list[float], list[float]] = ([], [])
    calls = [max(2, int(seconds / rounds / 2 / _once(program))) for program in (first, second)]
    for _ in range(rounds):
        for program, taken, count in zip((first, second), times, calls, strict=True):
            program()
            taken.extend(_once(program) for _ in range(count))
    return 1e3 * statistics.median(times[0]), 1e3 * statistics.median(times[1])


def _once(program: Callable[[], object]) -> float:
    begun = time.perf_counter()
    program()
    return time.perf_counter() - begun

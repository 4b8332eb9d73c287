"""Times of single runs, one program after the other and again, so that a machine whose clock moves
slows down all of them.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from tvm_ext.configs.progress import tell

_ROUNDS = 5
# Threads that another program leaves waiting have ended their pauses by then.
_SETTLE_SECONDS = 0.05


@dataclass
class Latencies:
    """What was seen of one program.

    Attributes
    ----------
    first_seconds : float
        The first run, after whatever loads the model.
    seconds : list[float]
        Each later run that counts.
    wall_seconds : float
        How long these took together: with several streams less than their sum.
    """

    first_seconds: float
    seconds: list[float] = field(default_factory=list)
    wall_seconds: float = 0.0

    def percentile(self, share: float) -> float:
        """The seconds that ``share`` percent of the runs stay below."""
        return float(np.percentile(self.seconds, share))

    @property
    def throughput(self) -> float:
        """Runs a second."""
        return len(self.seconds) / self.wall_seconds


def measure_in_turns(
    calls: Sequence[Sequence[Callable[[], object]]],
    seconds: float = 3.0,
    warmup_seconds: float = 0.5,
    count: int | None = None,
) -> list[Latencies]:
    """Runs programs in five turns each, and clocks every run.

    Parameters
    ----------
    calls : sequence of sequence of callable
        For each program what runs it once, one callable for each of its streams.
    seconds : float
        Time for each program, without its warm-up.
    warmup_seconds : float
        Time for each program, a part of it ahead of every turn, whose runs do not count.
    count : int, optional
        Runs of each program in the place of ``seconds``, over all turns and streams together.
    """
    found = []
    for streams in calls:
        begun = time.perf_counter()
        streams[0]()
        found.append(Latencies(time.perf_counter() - begun))
    for turn in range(_ROUNDS):
        for number, (streams, latencies) in enumerate(zip(calls, found, strict=True), start=1):
            tell(f"turn {turn + 1} of {_ROUNDS}, program {number} of {len(calls)}")
            time.sleep(_SETTLE_SECONDS)
            _turn(streams, warmup_seconds / _ROUNDS, None)
            runs = None if count is None else _part(count, turn, _ROUNDS)
            taken, wall = _turn(streams, seconds / _ROUNDS, runs)
            latencies.seconds += taken
            latencies.wall_seconds += wall
    return found


def _turn(
    streams: Sequence[Callable[[], object]], seconds: float, count: int | None
) -> tuple[list[float], float]:
    """All streams at once: the time of each run, and of the turn."""
    begun = time.perf_counter()
    if len(streams) == 1:
        taken = _runs(streams[0], begun + seconds, count)
        return taken, time.perf_counter() - begun
    together: list[list[float]] = [[] for _ in streams]
    errors: list[Exception] = []

    def work(number: int) -> None:
        runs = None if count is None else _part(count, number, len(streams))
        try:
            together[number] = _runs(streams[number], begun + seconds, runs)
        except Exception as error:  # noqa: BLE001
            # Raised again below, in the thread that can handle it.
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(streams))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [one for taken in together for one in taken], time.perf_counter() - begun


def _runs(call: Callable[[], object], end: float, count: int | None) -> list[float]:
    """Runs until the end, or so often; at least once."""
    taken: list[float] = []
    now = time.perf_counter()
    while (len(taken) < count) if count is not None else (not taken or now < end):
        begun = now
        call()
        now = time.perf_counter()
        taken.append(now - begun)
    return taken


def _part(count: int, number: int, parts: int) -> int:
    return (count + number) // parts

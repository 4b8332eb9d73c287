"""Time on the device, and the peaks that figures are held against; PyTorch is handed in."""

import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

_CALLS = 20
_COPY_BYTES = 1 << 30
_LARGE = 8192
_FIRST_CALLS = 3
_FEWEST_SAMPLES = 3

# Device time after which an idle device has raised its clocks.
_WARM_UP_SECONDS = 0.05


@dataclass(frozen=True)
class Timed:
    """Seconds of one call, and how the calls were started."""

    seconds: float
    started: str


@dataclass(frozen=True)
class Peaks:
    """What this very device reached: bytes a second copied, operations a second of a product."""

    name: str
    copy_bytes: float
    flops: dict[str, float]


@dataclass(frozen=True)
class OnOwnStream:
    """A program that waits for what it queues, on a stream of its own: it cannot be recorded."""

    run: Callable[[], object]

    def __call__(self) -> object:
        return self.run()


class Stopwatch:
    """Measures with events of the device.

    Calls are recorded into a CUDA graph, so that the time to start them does not count; what cannot
    be recorded is started call by call. A call finds in the cache what the call before has left.
    """

    def __init__(self, torch: Any, seconds: float) -> None:
        self._torch = torch
        self._seconds = seconds

    def in_turn(self, programs: Sequence[Callable[[], object]]) -> list[Timed]:
        """Median time of a call of each program, which take turns.

        Raises RuntimeError, as PyTorch and TVM do, where a program fails on the device.
        """
        rows = [self._prepared(program) for program in programs]
        warm = 0.0
        while rows and warm < _WARM_UP_SECONDS:
            warm += sum(self._measured(run) for run, _ in rows)
        samples: list[list[float]] = [[] for _ in rows]
        spent = 0.0
        while rows and (spent < self._seconds * len(rows) or len(samples[0]) < _FEWEST_SAMPLES):
            for (run, _), taken in zip(rows, samples, strict=True):
                seconds = self._measured(run)
                taken.append(seconds / _CALLS)
                spent += seconds
        return [
            Timed(statistics.median(taken), started)
            for (_, started), taken in zip(rows, samples, strict=True)
        ]

    def _prepared(self, program: Callable[[], object]) -> tuple[Callable[[], object], str]:
        """What starts ``_CALLS`` calls of a program, and how."""
        torch = self._torch
        for _ in range(_FIRST_CALLS):
            program()
        torch.cuda.synchronize()
        if isinstance(program, OnOwnStream):
            return _repeated(program), "calls"
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for _ in range(_CALLS):
                    program()
        except RuntimeError:
            torch.cuda.synchronize()
            return _repeated(program), "calls"
        graph.replay()
        return graph.replay, "graph"

    def _measured(self, run: Callable[[], object]) -> float:
        torch = self._torch
        begun = torch.cuda.Event(enable_timing=True)
        ended = torch.cuda.Event(enable_timing=True)
        begun.record()
        run()
        ended.record()
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / 1e3


def measured_peaks(torch: Any, watch: Stopwatch) -> Peaks:
    """Copy bandwidth of 1 GiB, read and written, and cuBLAS's rate on products of 8192."""
    source = torch.empty(_COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    (copied,) = watch.in_turn([lambda: target.copy_(source)])
    flops = {}
    for dtype in ("bfloat16", "float16"):
        kind = getattr(torch, dtype)
        a, b = (torch.randn(_LARGE, _LARGE, device="cuda", dtype=kind) for _ in range(2))
        product = functools.partial(torch.matmul, a, b, out=torch.empty_like(a))
        (taken,) = watch.in_turn([product])
        flops[dtype] = 2 * _LARGE**3 / taken.seconds
    name = torch.cuda.get_device_name()
    return Peaks(name, 2 * _COPY_BYTES / copied.seconds, flops)


def _repeated(program: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        for _ in range(_CALLS):
            program()

    return run

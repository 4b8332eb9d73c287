"""Times every kernel of a run through the virtual machine's instrument hook."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from tvm_ext.report.records import KernelCall

if TYPE_CHECKING:
    from rich.console import JustifyMethod
    from rich.table import Table


@dataclass(frozen=True)
class KernelTime:
    """Measured time of one kernel.

    Attributes
    ----------
    kernel : str
        Name of the kernel.
    origins : tuple[str, ...]
        ONNX nodes of each of its calls.
    calls : int
        Calls in one run.
    microseconds : float
        Time of all its calls in one run: the sum of the medians of the calls.
    """

    kernel: str
    origins: tuple[str, ...]
    calls: int
    microseconds: float


@dataclass(frozen=True)
class Profile:
    """Time per kernel.

    Attributes
    ----------
    kernels : tuple[KernelTime, ...]
        Slowest first.
    run_microseconds : float
        Median time of a whole run without the hook, host work included.
    """

    kernels: tuple[KernelTime, ...]
    run_microseconds: float

    @property
    def kernel_microseconds(self) -> float:
        """Sum over kernels; above a whole run's time by what the hook itself costs per call."""
        return sum(kernel.microseconds for kernel in self.kernels)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "run_microseconds": self.run_microseconds,
            "kernel_microseconds": self.kernel_microseconds,
            "kernels": [asdict(kernel) for kernel in self.kernels],
        }

    def to_table(self, limit: int | None = None) -> "Table":
        """A table for the terminal: kernel, ONNX nodes, calls, time, share."""
        from rich.table import Table

        table = Table(title=f"one run: {self.run_microseconds:.1f} us")
        for column, justify in _COLUMNS:
            table.add_column(column, justify=justify, overflow="fold")
        total = self.kernel_microseconds or 1.0
        for kernel in self.kernels[:limit]:
            table.add_row(
                kernel.kernel,
                "\n".join(_shown(kernel.origins)),
                str(kernel.calls),
                f"{kernel.microseconds:.1f}",
                f"{100 * kernel.microseconds / total:.1f} %",
            )
        return table


# Exporters write names of several hundred characters; JSON has them whole.
_NAME_LENGTH = 72
_NAMES_SHOWN = 3


def _shown(origins: Sequence[str]) -> list[str]:
    cut = [o if len(o) <= _NAME_LENGTH else f"{o[: _NAME_LENGTH - 3]}..." for o in origins]
    more = len(cut) - _NAMES_SHOWN
    return cut[:_NAMES_SHOWN] + ([f"({more} more)"] if more > 0 else [])


_COLUMNS: "tuple[tuple[str, JustifyMethod], ...]" = (
    ("kernel", "left"),
    ("ONNX nodes", "left"),
    ("calls", "right"),
    ("us", "right"),
    ("share", "right"),
)


class _Stopwatch:
    """Before and after each call of the virtual machine; ``sync`` waits for the device's work."""

    def __init__(self, sync: Callable[[], object] | None = None) -> None:
        self.calls: list[tuple[str, float]] = []
        self._begun = 0.0
        self._sync = sync

    def __call__(self, func: Any, name: str, before: bool, result: Any, *args: Any) -> int:
        if self._sync is not None:
            self._sync()
        now = time.perf_counter()
        if before:
            self._begun = time.perf_counter()
        else:
            self.calls.append((str(name), now - self._begun))
        return int(tvm.runtime.vm.VMInstrumentReturnKind.NO_OP)


def profile_run(
    machine: relax.VirtualMachine,
    tensors: Sequence[tvm.runtime.Tensor],
    expected: Sequence[KernelCall],
    repeat: int,
    watched: relax.VirtualMachine | None = None,
    sync: Callable[[], object] | None = None,
) -> Profile:
    """Runs the program without and with the hook, which stays in; takes medians call by call.

    The hook goes into ``watched``, a machine with the same program, where that is given. ``sync``
    waits for a device, whose calls return before their work is done.
    """
    main = machine["main"]
    wait = sync or (lambda: None)
    main(*tensors)
    whole = []
    for _ in range(max(1, repeat)):
        wait()
        begun = time.perf_counter()
        main(*tensors)
        wait()
        whole.append(time.perf_counter() - begun)
    if watched is not None:
        # Its first run sets up memory and code, as that of the other did.
        watched["main"](*tensors)
    hooked = watched or machine
    runs: list[list[tuple[str, float]]] = []
    names = {call.kernel for call in expected}
    for _ in range(max(1, repeat)):
        watch = _Stopwatch(sync)
        hooked.set_instrument(watch)
        hooked["main"](*tensors)
        runs.append([call for call in watch.calls if call[0] in names])
    return Profile(_medians(runs, expected), 1e6 * statistics.median(whole))


def _medians(
    runs: list[list[tuple[str, float]]], expected: Sequence[KernelCall]
) -> tuple[KernelTime, ...]:
    origins: dict[str, list[str]] = {}
    for call in expected:
        origins.setdefault(call.kernel, []).append(call.where)
    # A branch may make runs differ in length; calls are paired within the shortest.
    length = min(len(run) for run in runs)
    seconds: dict[str, float] = {}
    calls: dict[str, int] = {}
    for position in range(length):
        name = runs[0][position][0]
        seconds[name] = seconds.get(name, 0.0) + statistics.median(r[position][1] for r in runs)
        calls[name] = calls.get(name, 0) + 1
    times = [
        KernelTime(name, tuple(origins.get(name, ())), calls[name], 1e6 * seconds[name])
        for name in seconds
    ]
    return tuple(sorted(times, key=lambda kernel: -kernel.microseconds))

"""What a worker's process is asked to do: build a candidate; check and time it.

A candidate takes turns with a reference kernel of the same task, on this machine or over RPC.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from tvm_ext.configs.atomic_file import OutputPathError
from tvm_ext.hardware.cpu.linker import Linker, find_compiler
from tvm_ext.hardware.cuda.device_code import making_device_code
from tvm_ext.tir_schedules.cuda.cublas import library_modules
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels
from tvm_ext.tir_schedules.packing import Packed
from tvm_ext.tuning.cuda.build import CudaBuildCheck, checked_build
from tvm_ext.tuning.kernel_data import (
    before_run,
    difference,
    finite_share,
    numpy_dtype,
)
from tvm_ext.tuning.runner import RunDevice, RunDeviceAddress, open_device

# Share of finite results that makes arrays good enough to compare by.
_MOSTLY = 0.9


@dataclass(frozen=True)
class TimingPlan:
    """How long to measure.

    Attributes
    ----------
    turn_seconds : float
        Time of one turn of one kernel, in which it runs as often as fits.
    fewest_turns, most_turns : int
        Turns of each kernel.
    spread : float
        Relative spread (interquartile range over median) of the ratio that ends the measurement.
    slow_factor : float
        A candidate this much slower than the reference gets the fewest turns.
    limit_seconds : float
        Time after which no new turn begins; slow kernels get fewer turns than the fewest.
    flush_bytes : int
        Size of the cache that is emptied before every call; 0 to leave it as it is.
    """

    turn_seconds: float = 0.006
    fewest_turns: int = 4
    most_turns: int = 16
    spread: float = 0.03
    slow_factor: float = 1.3
    limit_seconds: float = 8.0
    flush_bytes: int = 0


@dataclass(frozen=True)
class RunJob:
    """What to run.

    Attributes
    ----------
    library, reference : str
        Shared libraries with a kernel "main".
    packed, reference_packed : PackedOperand, PaddedOperand or None
        The parameter that each of them expects packed.
    data : tuple[str, ...]
        Files that ``compute_expected`` wrote, one for each call that is measured.
    threads : int
        Threads of the kernels.
    plan : TimingPlan
        How long to measure.
    device : RunDeviceAddress
        Where.
    """

    library: str
    packed: Packed | None
    reference: str
    reference_packed: Packed | None
    data: tuple[str, ...]
    threads: int
    plan: TimingPlan
    device: RunDeviceAddress


@dataclass(frozen=True)
class Timing:
    """What was measured; ``wrong`` says how the numbers differ, and then there are no times.

    Attributes
    ----------
    seconds, reference_seconds : list[float]
        Of one call, turn by turn; the geometric mean of several calls with different arguments.
    """

    seconds: list[float] = field(default_factory=list)
    reference_seconds: list[float] = field(default_factory=list)
    wrong: str = ""


@dataclass(frozen=True)
class ExpectedJob:
    """The unscheduled kernel, and what to run it with.

    Attributes
    ----------
    library : str
        Shared library with the kernel "main".
    inputs : tuple[str, ...]
        Files of arrays, the preferred ones first: the first with mostly finite results is taken.
    data : str
        File to write the arrays to, results included.
    device : RunDeviceAddress
        Where.
    """

    library: str
    inputs: tuple[str, ...]
    data: str
    device: RunDeviceAddress


def compute_expected(job: ExpectedJob) -> None:
    """Runs the unscheduled kernel and writes its arrays, results included, to ``job.data``.

    Raises ValueError if no results are finite: nothing could be compared with them.
    """
    most = -1.0
    best: list[Any] = []
    results = _results(job.inputs[0])
    with open_device(job.device) as device:
        kernel = device.kernel(job.library)
        for path in job.inputs:
            arrays = _load(path)
            tensors = device.tensors(arrays)
            kernel(*tensors)
            for position in results:
                arrays[position] = tensors[position].numpy()
            share = finite_share([arrays[position] for position in results])
            if share > most:
                most, best = share, arrays
            if share >= _MOSTLY:
                break
    if most <= 0:
        raise ValueError("computes no finite numbers from random ones")
    save_arrays(job.data, best, results)


def check_and_time(job: RunJob) -> Timing:
    """Runs the candidate once, compares its results, and times it if they are right."""
    with open_device(job.device) as device:
        device.use_threads(job.threads)
        calls = [_Call(device, job, path) for path in job.data]
        wrong = next(filter(None, (call.wrong() for call in calls)), "")
        if wrong:
            return Timing(wrong=wrong)
        timing = _in_turn([call.timers() for call in calls], job.plan)
        # Threads that race are not wrong every time.
        wrong = next(filter(None, (call.wrong() for call in calls)), "")
        return Timing(wrong=wrong) if wrong else timing


class _Call:
    """A call of the candidate, and of the reference, with the arrays of one file."""

    def __init__(self, device: RunDevice, job: RunJob, path: str) -> None:
        arrays, self._results = _load(path), _results(path)
        self._expected = [arrays[position] for position in self._results]
        for position in self._results:
            arrays[position] = before_run(arrays[position])
        self._device, self._job = device, job
        self._tensors = self._others = device.tensors(_packed(arrays, job.packed))
        if job.packed != job.reference_packed:
            self._others = device.tensors(_packed(arrays, job.reference_packed))

    def wrong(self) -> str:
        """How the candidate's results differ from what is expected; empty if they do not."""
        self._device.kernel(self._job.library)(*self._tensors)
        results = [self._tensors[position].numpy() for position in self._results]
        return difference(results, self._expected)

    def timers(self) -> "tuple[Timer, Timer]":
        """The candidate's and the reference's."""
        flush = self._job.plan.flush_bytes
        return (
            self._device.timer(self._job.library, self._tensors, flush),
            self._device.timer(self._job.reference, self._others, flush),
        )


def spread_of(values: Sequence[float]) -> float:
    """Interquartile range over median; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle if middle else 0.0


def save_arrays(path: str, arrays: Sequence[Any], results: Sequence[int]) -> None:
    """Writes arrays of any element type, numbers, and which of them are results.

    Raises
    ------
    OutputPathError
        The file cannot be written.
    """
    plain = {f"a{i}": np.frombuffer(a.tobytes(), np.uint8) for i, a in enumerate(arrays)}
    shapes = [list(a.shape) if isinstance(a, np.ndarray) else None for a in arrays]
    note = np.array(repr([shapes, [str(a.dtype) for a in arrays], list(results)]))
    try:
        with Path(path).open("wb") as file:
            np.savez(file, allow_pickle=False, note=note, **plain)
    except OSError as error:
        raise OutputPathError(
            f"cannot write the data of a trial to {str(Path(path).parent)!r}: "
            f"{error.strerror or error}; expected a folder with free space: make room or choose "
            "another with --output"
        ) from error


def _load(path: str) -> list[Any]:
    with np.load(path) as file:
        shapes, dtypes, _ = _note(file)
        values = [
            np.frombuffer(file[f"a{i}"].tobytes(), numpy_dtype(dtype))
            for i, dtype in enumerate(dtypes)
        ]
        return [
            flat[0] if shape is None else flat.reshape(shape).copy()
            for flat, shape in zip(values, shapes, strict=True)
        ]


def _results(path: str) -> list[int]:
    with np.load(path) as file:
        return _note(file)[2]


def _note(file: "np.lib.npyio.NpzFile") -> tuple[list[list[int] | None], list[str], list[int]]:
    import ast

    shapes, dtypes, results = ast.literal_eval(str(file["note"]))
    return shapes, dtypes, results


def _packed(arrays: Sequence[Any], packed: Packed | None) -> list[Any]:
    changed = list(arrays)
    if packed is not None:
        changed[packed.parameter] = packed.pack(arrays[packed.parameter])
    return changed


Timer = Callable[[int], float]
"""Seconds of one call, as the mean over a number of calls."""


def _in_turn(timers: Sequence[tuple[Timer, Timer]], plan: TimingPlan) -> Timing:
    """Times candidates and references in turn; each of them with all of its arguments."""
    reference = _together([theirs for _, theirs in timers], plan)
    candidate = _together([own for own, _ in timers], plan)
    ours: list[float] = []
    theirs: list[float] = []
    end = time.perf_counter() + plan.limit_seconds
    while len(ours) < plan.most_turns and (not ours or time.perf_counter() < end):
        # Every other turn the other way round, so that neither always follows the same one.
        if len(ours) % 2:
            ours.append(candidate())
            theirs.append(reference())
        else:
            theirs.append(reference())
            ours.append(candidate())
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        if len(ours) < plan.fewest_turns:
            continue
        if spread_of(ratios) <= plan.spread or statistics.median(ratios) > plan.slow_factor:
            break
    return Timing(ours, theirs)


def _together(timers: Sequence[Timer], plan: TimingPlan) -> Callable[[], float]:
    """One turn of a kernel: the geometric mean of what it takes with each of its arguments."""
    counts = [_calls(timer, plan) for timer in timers]

    def turn() -> float:
        seconds = [timer(calls) for timer, calls in zip(timers, counts, strict=True)]
        return seconds[0] if len(seconds) == 1 else statistics.geometric_mean(seconds)

    return turn


def _calls(timer: Timer, plan: TimingPlan) -> int:
    """How often a kernel runs in a turn; the first call warms up."""
    once = timer(1)
    if once < plan.turn_seconds:
        once = timer(1)
    return max(1, int(plan.turn_seconds / max(once, 1e-9)))


# Code for one scheduled kernel, generated in a worker's process.


@dataclass(frozen=True)
class BuildJob:
    """What to build.

    Attributes
    ----------
    mod_json : str
        The module, as ``tvm.ir.save_json`` writes it.
    target : dict
        The target's attributes.
    library : str
        Path of the shared library to write.
    check : CudaBuildCheck or None
        What the kernel may take of a GPU; None for a CPU.
    """

    mod_json: str
    target: dict[str, Any]
    library: str
    check: CudaBuildCheck | None = None


def build_job(
    mod: tvm.IRModule, target: dict[str, Any], library: str, check: CudaBuildCheck | None = None
) -> BuildJob:
    """The job to build ``mod``, whose kernel is named "main"."""
    return BuildJob(tvm.ir.save_json(mod), target, library, check)


def build(job: BuildJob) -> None:
    """Builds and writes the library.

    Raises ResourceLimitError, before there is a library, if a GPU cannot run the kernel.
    """
    mod = tvm.ir.load_json(job.mod_json)
    target = tvm.target.Target(job.target)
    with _making_code(target, job.check) as instruments:
        built = compile_kernels(mod, target, instruments)
    for module in library_modules(mod):
        built.mod.import_module(module)
    built.export_library(job.library, fcompile=Linker(find_compiler()))


@contextmanager
def _making_code(target: tvm.target.Target, check: CudaBuildCheck | None) -> Iterator[list[Any]]:
    """Has code for a GPU made as ``compile`` makes that of a model; yields instruments."""
    if check is not None:
        with checked_build(check) as instruments:
            yield instruments
    elif target.kind.name == "cuda":
        with making_device_code(str(target.attrs["arch"])):
            yield []
    else:
        yield []

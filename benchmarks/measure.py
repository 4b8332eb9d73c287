"""Measures one model or one kernel."""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from kernel_models import KernelModel
from model_list import ModelEntry
from peers import (
    OURS,
    REFERENCE,
    UNFUSED,
    Job,
    Peer,
    PeerError,
    Program,
    kernel_timer,
    program,
    refusal,
)
from results import OURS_NAME, CaseResult, KernelFigures, Measured, relative_difference
from roofline import model_roofline

import tvm_ext
from tvm_ext.check.inputs import load_inputs, random_inputs
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.measured_peaks import Peak
from tvm_ext.hardware.timing import Timer, interleaved_seconds, timed

# Several programs on one model: prepared, checked against the reference, and timed in turn.


# A program that takes longer for one run is not worth the wait.
SLOWEST_SECONDS = 20.0


class Contest:
    """The programs that take ``job``, ours first.

    Parameters
    ----------
    ours : Program
        Our own; an error of its first run is raised.
    job : Job
        The model.
    peers : iterable of Peer
        The others. Why one does not take part goes into ``result.reasons``.
    tolerance : float
        Largest difference from the reference that counts as rounding.
    result : CaseResult
        Gets the times.
    """

    def __init__(
        self, ours: Program, job: Job, peers: Iterable[Peer], tolerance: float, result: CaseResult
    ) -> None:
        self._result = result
        self._tolerance = tolerance
        self._programs = {OURS_NAME: ours}
        self._wanted = self._reference_outputs(job)
        self._differences = {OURS_NAME: self._difference(ours.outputs())}
        for peer in peers:
            try:
                self._add(peer, job)
            except PeerError as error:
                result.reasons[peer.name] = str(error)

    def run(
        self, seconds: float, others: Mapping[str, Timer] | None = None
    ) -> dict[str, list[float]]:
        """Times all programs, ``seconds`` seconds each, and ``others`` in turn with them.

        Returns the samples in seconds, by the name of the program or of the other timer.
        """
        timers = {name: timed(program.run) for name, program in self._programs.items()}
        timers |= others or {}
        taken = interleaved_seconds(list(timers.values()), seconds * len(timers))
        samples = dict(zip(timers, taken, strict=True))
        for name, difference in self._differences.items():
            self._result.programs[name] = Measured.of(samples[name], difference, self._tolerance)
        return samples

    def _add(self, peer: Peer, job: Job) -> None:
        program = peer.prepare(job)
        begun = time.perf_counter()
        outputs = _run(program)
        elapsed = time.perf_counter() - begun
        if elapsed > SLOWEST_SECONDS:
            raise PeerError(
                f"one run takes {elapsed:.0f} s; expected at most {SLOWEST_SECONDS:.0f} s"
            )
        self._programs[peer.name] = program
        self._differences[peer.name] = self._difference(outputs)

    def _reference_outputs(self, job: Job) -> Sequence[np.ndarray] | None:
        try:
            return _run(REFERENCE.prepare(job))
        except PeerError:
            return None

    def _difference(self, outputs: Sequence[np.ndarray]) -> float | None:
        return None if self._wanted is None else relative_difference(outputs, self._wanted)


def _run(program: Program) -> Sequence[np.ndarray]:
    try:
        return program.outputs()
    except Exception as error:
        raise refusal("fails to run the model", error) from error


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Attributes
    ----------
    peers : sequence of Peer
        The programs beside ours.
    machine : CpuDescription
        This machine, with as many cores as every program may use threads.
    seconds : float
        Time to spend on each program of each model.
    tolerance : float
        Largest difference from the reference, as a share of the largest magnitude.
    roofline : bool
        Whether to hold each kernel of a model against the machine's peaks.
    """

    peers: Sequence[Peer]
    machine: CpuDescription
    seconds: float
    tolerance: float
    roofline: bool


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """So many processes that compute all the time, inside of the block."""
    endless = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(endless) for _ in range(count)]
    try:
        yield
    finally:
        for busy in programs:
            busy.kill()
            busy.wait()


def measure_model(entry: ModelEntry, settings: Settings) -> CaseResult:
    """A network: what a user of each program waits for."""
    result = CaseResult(entry.name, "")
    try:
        model = OURS.compile(entry.path, entry.shapes, settings.machine.cores)
        result.compile_seconds = model.report.total_seconds
        if entry.inputs is not None:
            inputs = load_inputs(entry.inputs, model.inputs)
        else:
            inputs = random_inputs(model.inputs)
        job = Job(entry.path, inputs, settings.machine.cores, is_kernel=False)
        contest = Contest(program(model, job), job, settings.peers, settings.tolerance, result)
        contest.run(settings.seconds)
        if settings.roofline:
            result.roofline = model_roofline(model, inputs, settings.machine)
    except tvm_ext.TvmExtError as error:
        result.reasons[OURS_NAME] = str(error)
    return result


def measure_kernel(kernel: KernelModel, peak: Peak, settings: Settings, folder: Path) -> CaseResult:
    """A single kernel, its tensors in place, in turn with the peak that limits it.

    ``folder`` gets the kernel's ONNX file for a while.
    """
    result = CaseResult(kernel.name, kernel.group)
    path = folder / f"{kernel.name}.onnx"
    onnx.save(kernel.build(), path)
    peers = [*settings.peers, UNFUSED] if kernel.group == "fusion" else settings.peers
    try:
        model = OURS.compile(path, {}, settings.machine.cores)
        result.compile_seconds = model.report.total_seconds
        job = Job(path, random_inputs(model.inputs), settings.machine.cores, is_kernel=True)
        contest = Contest(program(model, job), job, peers, settings.tolerance, result)
        others = {"peak": timed(peak.run), **_own_time(model, job, kernel)}
        samples = contest.run(settings.seconds, others)
    except tvm_ext.TvmExtError as error:
        result.reasons[OURS_NAME] = str(error)
        return result
    finally:
        path.unlink()
    result.kernel = KernelFigures(
        kernel.limit,
        kernel.flops,
        kernel.bytes,
        statistics.median(samples.get("kernel", samples[OURS_NAME])),
        peak.rate(statistics.median(samples["peak"])),
    )
    return result


def _own_time(model: tvm_ext.CompiledModel, job: Job, kernel: KernelModel) -> dict[str, Timer]:
    """A timer of the kernels that compute, where layouts are converted before or after them.

    Only of convolutions: these conversions are due to the layout that ONNX prescribes for a
    model's inputs and outputs, and lie between the kernels of no network. Nothing else is excused.
    """
    names = {record.name for record in model.report.kernels if record.flops}
    if kernel.group != "conv" or len(names) == len(model.report.kernels):
        return {}
    return {"kernel": kernel_timer(model, job, names)}

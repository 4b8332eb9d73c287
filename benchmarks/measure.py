"""Measures one model or one kernel."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from contest import Contest
from kernel_models import KernelModel
from machine_peaks import Peak
from model_list import ModelEntry
from peers import OURS, UNFUSED, Job, Peer
from peers.ours import kernel_timer, program
from results import OURS_NAME, CaseResult, KernelFigures
from roofline import model_roofline

import tvm_ext
from tvm_ext.check.random_inputs import load_inputs, random_inputs
from tvm_ext.hardware.description import CpuDescription
from tvm_ext.hardware.timing import Timer, timed


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

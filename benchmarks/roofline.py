"""What this machine reaches at best, measured, and the kernels of a model against it."""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from results import RooflineRow

import tvm_ext
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.measured_peaks import copy_peak, fma_peak
from tvm_ext.hardware.timing import interleaved_seconds, timed
from tvm_ext.report.profile import KernelTime


@dataclass(frozen=True)
class MachinePeaks:
    """Measured peaks: 1e9 float32 operations, and 1e9 bytes read and written, a second.

    ``core`` is one core while the others rest; the rest is all ``threads`` at once.
    """

    threads: int
    core_gflops: float
    gflops: float
    core_gbs: float
    gbs: float

    def floor_seconds(self, flops: float, nbytes: float) -> float:
        """The least time for so many operations and bytes: the larger of the two limits.

        S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model
        for multicore architectures", Communications of the ACM 52(4), 2009.
        """
        return max(flops / self.gflops, nbytes / self.gbs) / 1e9


def measure_peaks(machine: CpuDescription, seconds: float = 1.0) -> MachinePeaks:
    """All four figures, in turn, in about ``seconds`` seconds."""
    core = machine.with_cores(1)
    peaks = [fma_peak(core), fma_peak(machine), copy_peak(core), copy_peak(machine)]
    samples = interleaved_seconds([timed(peak.run) for peak in peaks], seconds, rounds=10)
    rates = [
        peak.rate(statistics.median(taken)) for peak, taken in zip(peaks, samples, strict=True)
    ]
    return MachinePeaks(machine.cores, *rates)


_REPEAT = 10


def model_roofline(
    model: tvm_ext.CompiledModel, inputs: Mapping[str, np.ndarray], machine: CpuDescription
) -> list[RooflineRow]:
    """One row a kernel, the one with the most time above its floor first.

    The peaks are measured before and after the profile, and their mean taken: clocks move.
    """
    before = measure_peaks(machine)
    profile = model.profile(inputs, repeat=_REPEAT)
    peaks = _mean(before, measure_peaks(machine))
    total = sum(time.microseconds for time in profile.kernels) or 1.0
    rows = [roofline_row(time, peaks, total) for time in profile.kernels]
    return sorted(rows, key=lambda row: -row.above_floor)


def roofline_row(time: KernelTime, peaks: MachinePeaks, total_microseconds: float) -> RooflineRow:
    """What one kernel took and could have taken.

    The floor takes every tensor to be in memory: a kernel whose tensors are in a cache can be below
    it. The operations are those that the kernel executes, not those of the textbook.
    """
    cost = time.cost
    floor = peaks.floor_seconds(cost.flops, cost.bytes) if cost is not None else 0.0
    return RooflineRow(
        kernel=time.kernel,
        schedule=time.schedule,
        origins=time.origins,
        calls=time.calls,
        microseconds=time.microseconds,
        floor_microseconds=1e6 * floor,
        share=time.microseconds / total_microseconds,
        gflops=time.gflops or 0.0,
        gbs=time.gbs or 0.0,
    )


def _mean(first: MachinePeaks, second: MachinePeaks) -> MachinePeaks:
    return MachinePeaks(
        first.threads,
        (first.core_gflops + second.core_gflops) / 2,
        (first.gflops + second.gflops) / 2,
        (first.core_gbs + second.core_gbs) / 2,
        (first.gbs + second.gbs) / 2,
    )

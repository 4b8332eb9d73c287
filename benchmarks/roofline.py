"""The kernels of a model against what the machine could do: which of them lose the most time."""

from collections.abc import Mapping

import numpy as np
from machine_peaks import MachinePeaks, measure_peaks
from results import RooflineRow

import tvm_ext
from tvm_ext.hardware.description import CpuDescription
from tvm_ext.profiling import KernelTime
from tvm_ext.report.records import KernelRecord

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
    records = {record.name: record for record in model.report.kernels}
    total = profile.kernel_microseconds or 1.0
    rows = [roofline_row(time, records[time.kernel], peaks, total) for time in profile.kernels]
    return sorted(rows, key=lambda row: -row.above_floor)


def roofline_row(
    time: KernelTime, record: KernelRecord, peaks: MachinePeaks, total_microseconds: float
) -> RooflineRow:
    """What one kernel took and could have taken.

    The floor takes every tensor to be in memory: a kernel whose tensors are in a cache can be below
    it. The operations are those that the kernel executes, not those of the textbook.
    """
    flops, nbytes = (record.flops or 0.0) * time.calls, (record.bytes or 0.0) * time.calls
    seconds = max(time.microseconds, 1e-3) * 1e-6
    return RooflineRow(
        kernel=time.kernel,
        schedule=record.schedule,
        origins=time.origins,
        calls=time.calls,
        microseconds=time.microseconds,
        floor_microseconds=1e6 * peaks.floor_seconds(flops, nbytes),
        share=time.microseconds / total_microseconds,
        gflops=flops / seconds / 1e9,
        gbs=nbytes / seconds / 1e9,
    )


def _mean(first: MachinePeaks, second: MachinePeaks) -> MachinePeaks:
    return MachinePeaks(
        first.threads,
        (first.core_gflops + second.core_gflops) / 2,
        (first.gflops + second.gflops) / 2,
        (first.core_gbs + second.core_gbs) / 2,
        (first.gbs + second.gbs) / 2,
    )

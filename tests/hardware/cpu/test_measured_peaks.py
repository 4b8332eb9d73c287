"""The peak kernels do what they claim, in the machine code and in memory."""

import re

import pytest

from tvm_ext.hardware.cpu import measured_peaks
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.hardware.cpu.measured_peaks import (
    Peak,
    copy_peak,
    fma_module,
    fma_peak,
    large_bytes,
    read_peak,
)
from tvm_ext.hardware.targets import resolve_target

# Multiply-adds whose operands are all full-width registers.
FULL_WIDTH_FMA = {
    "avx512": r"vfmadd\d+ps\s+%zmm\d+, %zmm\d+, %zmm\d+",
    "avx2": r"vfmadd\d+ps\s+%ymm\d+, %ymm\d+, %ymm\d+",
    "aarch64-neon": r"fmla\s+v\d+\.4s, v\d+\.4s, v\d+\.4s",
}


@pytest.mark.extended
@pytest.mark.parametrize(("preset", "accumulators"), [("avx512", 24), ("avx2", 12)])
def test_peak_is_multiply_adds_on_full_width_registers(preset, accumulators):
    check_loop(resolve_target(preset).with_cores(1), FULL_WIDTH_FMA[preset], accumulators)


def test_peak_on_arm_is_multiply_adds_on_full_width_registers():
    machine = resolve_target("aarch64-neon").with_cores(1)
    check_loop(machine, FULL_WIDTH_FMA["aarch64-neon"], 24)


def check_loop(machine: CpuDescription, pattern: str, accumulators: int) -> None:
    """Every accumulator is updated, and nothing is loaded or stored between."""
    lines = fma_module(machine).inspect_source("asm").splitlines()
    found = [i for i, line in enumerate(lines) if re.search(pattern, line)]
    registers = {re.findall(r"[zyx]mm\d+|v\d+", lines[i])[_result(machine)] for i in found}
    assert len(registers) == accumulators
    assert len(found) % accumulators == 0
    loop = lines[found[0] : found[-1] + 1]
    assert not [line for line in loop if "(%" in line or re.search(r"\b(ld|st)[rp]\b", line)]


def _result(machine: CpuDescription) -> int:
    """AT&T syntax names the result last, Arm's first."""
    return -1 if machine.architecture == "x86_64" else 0


@pytest.mark.extended
def test_all_cores_work_on_the_peak():
    one, two = (host_description().with_cores(cores) for cores in (1, 2))
    assert fma_peak(two).amount == 2 * fma_peak(one).amount
    assert "ParallelLaunch" in fma_module(two).inspect_source("asm")
    assert "ParallelLaunch" not in fma_module(one).inspect_source("asm")


def test_peak_runs_and_counts_two_operations_a_multiply_add():
    machine = host_description().with_cores(1)
    peak = fma_peak(machine)
    peak.run()
    lanes = machine.vector_lanes("float32")
    assert peak.amount % (2 * lanes) == 0
    assert peak.rate(2.0) == peak.amount / 2e9


def test_copy_counts_read_and_written_bytes():
    peak = copy_peak(host_description().with_cores(1), nbytes=1 << 16)
    assert peak.amount == 2 << 16
    peak.run()


def test_large_is_beyond_the_last_cache():
    machine = host_description()
    assert large_bytes(machine) >= 4 * machine.l3_bytes
    assert large_bytes(machine) >= 4 * machine.l2_bytes


def test_measured_rates_take_the_place_of_described_ones(monkeypatch):
    machine = resolve_target("avx2").with_cores(4)
    sizes = []

    def copy(part: CpuDescription, nbytes: int | None = None) -> Peak:
        sizes.append((part.cores, nbytes))
        return Peak(1e9 * len(sizes), lambda: None)

    monkeypatch.setattr(measured_peaks, "copy_peak", copy)
    monkeypatch.setattr(measured_peaks, "fma_peak", lambda part: Peak(100e9, lambda: None))
    monkeypatch.setattr(
        measured_peaks, "interleaved_seconds", lambda timers, *_, **__: [[2.0, 0.5]] * len(timers)
    )
    found = measured_peaks.with_measured_peaks(machine)
    # Arrays that fill half of a cache, with their copies; those of memory are beyond all caches.
    assert sizes == [(4, None), (1, None), (1, machine.l2_bytes // 4), (1, machine.l3_bytes // 4)]
    assert found.peak_flops("float32") == pytest.approx(200e9)
    rates = (found.memory_gbs, found.core_memory_gbs, found.core_l2_gbs, found.core_l3_gbs)
    assert rates == (2.0, 4.0, 6.0, 8.0)
    assert found.bandwidth(1e12) == 2e9
    assert found.cores == machine.cores


@pytest.mark.extended
@pytest.mark.parametrize("cores", [1, 2])
def test_reading_counts_each_byte_once(cores):
    machine = host_description().with_cores(cores)
    peak = read_peak(machine, nbytes=1 << 20)
    peak.run()
    assert 0.9 * (1 << 20) < peak.amount <= 1 << 20

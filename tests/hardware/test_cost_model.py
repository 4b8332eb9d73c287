"""The roofline's answers have the right units and never fall when the work grows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tvm_ext.hardware.cost_model import Roofline, Work, cost_model
from tvm_ext.hardware.targets import resolve_target

MACHINES = ["avx512", "aarch64-neon", "nvidia-a100"]
AMOUNTS = st.floats(min_value=0, max_value=1e13)


def test_arithmetic_bound_is_flops_over_peak():
    machine = resolve_target("nvidia-a100")
    seconds = Roofline(machine).seconds(Work(flops=1e12, bytes=1e3))
    launch = machine.kernel_overhead_us * 1e-6
    assert seconds - launch == pytest.approx(1e12 / machine.peak_flops("float32"))


def test_memory_bound_is_bytes_over_bandwidth():
    machine = resolve_target("nvidia-a100")
    seconds = Roofline(machine).seconds(Work(flops=1.0, bytes=1e10))
    assert seconds == pytest.approx(1e10 / (machine.memory_gbs * 1e9), rel=1e-2)


def test_half_filled_lanes_take_twice_as_long():
    model = cost_model(resolve_target("nvidia-a100"))
    full = model.seconds(Work(flops=1e13, bytes=1.0))
    half = model.seconds(Work(flops=1e13, bytes=1.0, vector_fraction=0.5))
    assert half == pytest.approx(2 * full, rel=1e-3)


def test_no_work_costs_one_start():
    machine = resolve_target("avx512")
    assert cost_model(machine).seconds(Work(0, 0)) == machine.kernel_overhead_us * 1e-6


def test_small_kernels_run_on_one_core_and_large_ones_on_all():
    machine = resolve_target("avx512")
    many, one = cost_model(machine), cost_model(machine.with_cores(1))
    small, large = Work(1e3, 1e3), Work(1e11, 1e3)
    assert many.seconds(small) == one.seconds(small)
    assert one.seconds(large) / many.seconds(large) == pytest.approx(machine.cores, rel=1e-2)


def test_data_in_cache_is_faster_than_data_in_memory():
    machine = resolve_target("avx512")
    rates = [machine.bandwidth(size) for size in (1e5, 2e7, 1e9)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > rates[2]


@pytest.mark.parametrize("name", MACHINES)
def test_conversion_reads_and_writes(name):
    model = cost_model(resolve_target(name))
    assert model.conversion_seconds(1e9) == model.seconds(Work(0, 2e9))
    assert model.conversion_seconds(0) > 0


@pytest.mark.parametrize("name", MACHINES)
@given(flops=AMOUNTS, nbytes=AMOUNTS, more_flops=AMOUNTS, more_bytes=AMOUNTS)
def test_more_work_never_costs_less(name, flops, nbytes, more_flops, more_bytes):
    model = cost_model(resolve_target(name))
    less = model.seconds(Work(flops, nbytes))
    assert model.seconds(Work(flops + more_flops, nbytes + more_bytes)) >= less > 0


@pytest.mark.parametrize(
    "fields",
    [
        {"flops": -1, "bytes": 0},
        {"flops": 0, "bytes": -1},
        {"flops": 0, "bytes": 0, "vector_fraction": 0},
        {"flops": 0, "bytes": 0, "vector_fraction": 1.5},
    ],
)
def test_impossible_work_is_refused(fields):
    with pytest.raises(ValueError, match="expected"):
        Work(**fields)

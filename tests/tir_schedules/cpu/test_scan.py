"""Cumulative sums and products: numbers, structure, and what is left."""

from functools import partial

import numpy as np
import pytest
from cpu_kernels import refusal_of, scheduled
from decision_cases import assert_defaults_give_the_default_schedule, check_random_numbers
from hypothesis import given, settings
from hypothesis import strategies as st
from lowering import f32, kernel_of, loops_of, run
from machines import MACHINE
from thoroughness import DRAWS
from tvm import IRModule, relax, te, tirx, topi
from tvm.relax.op import nn

from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.tir_schedules.cpu.scan import CpuScan
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel
from tvm_ext.tir_schedules.template import FixedDecisions


def scan_kernel(
    shape: tuple[int, ...],
    axis: int | None,
    product: bool = False,
    exclusive: bool = False,
    dtype: str = "float32",
) -> tirx.PrimFunc:
    """As TVM's DispatchSortScan leaves it."""
    x = te.placeholder(shape, dtype, name="x")
    function = topi.cumprod if product else topi.cumsum
    func = te.create_prim_func([x, function(x, axis, exclusive=exclusive)])
    assert isinstance(IRModule({"main": func}), IRModule)
    return func


scanned = partial(scheduled, CpuScan())


@settings(max_examples=5 * DRAWS, deadline=None, derandomize=True)
@given(
    shape=st.lists(st.integers(1, 37), min_size=1, max_size=3),
    axis=st.integers(0, 2),
    product=st.booleans(),
    exclusive=st.booleans(),
    dtype=st.sampled_from(["float32", "int32", "int64"]),
)
def test_any_axis(shape: list[int], axis: int, product: bool, exclusive: bool, dtype: str) -> None:
    axis %= len(shape)
    shape[axis] += 1
    func = scan_kernel(tuple(shape), axis, product, exclusive, dtype)
    x, found = run({"f": scanned(func)})["f"]
    wanted = (np.cumprod if product else np.cumsum)(x, axis)
    if exclusive:
        wanted = np.roll(wanted, 1, axis)
        wanted[tuple(0 if d == axis else slice(None) for d in range(len(shape)))] = int(product)
    np.testing.assert_allclose(found, wanted, rtol=2e-5)


@pytest.mark.extended
@pytest.mark.parametrize(
    ("axis", "together"),
    [(0, (16, 32, 64, 128)), (1, (16, 32, 64)), (2, (1, 2, 4, 8))],
)
def test_every_decision_computes_the_same(axis: int, together: tuple[int, ...]) -> None:
    func = scan_kernel((5, 7, 37), axis)
    knobs = assert_defaults_give_the_default_schedule(CpuScan(), func, MACHINE)
    assert {name: knob.options for name, knob in knobs.items()} == {
        "together": together,
        "threads": (0, 1),
    }
    for width in together:
        found = scanned(func, decisions=FixedDecisions({"together": width, "threads": 1}))
        assert "parallel" in [loop.kind for loop in loops_of(found)]
        x, result = run({"f": found})["f"]
        np.testing.assert_allclose(result, np.cumsum(x, axis), rtol=2e-5)


def test_decisions_at_random() -> None:
    plain = {
        "after, exclusive": scan_kernel((3, 11, 83), 1, exclusive=True),
        "rows, products": scan_kernel((13, 9), 1, product=True),
        "integers": scan_kernel((9, 37), 0, dtype="int64"),
    }
    check_random_numbers(CpuScan(), plain, machine=host_description().with_cores(4))


def test_one_scan_has_nothing_to_decide() -> None:
    knobs = assert_defaults_give_the_default_schedule(CpuScan(), scan_kernel((1000,), 0), MACHINE)
    assert [knob.options for knob in knobs.values()] == [(4,), (0,)]


def test_inner_axes_are_lanes() -> None:
    found = scanned(scan_kernel((5, 9, 128), 1))
    assert ("vectorized", 64) in [(loop.kind, loop.extent) for loop in loops_of(found)]
    assert "parallel" not in [loop.kind for loop in loops_of(found)]


def test_rows_are_unrolled() -> None:
    found = scanned(scan_kernel((9, 128), 1))
    assert ("unrolled", 4) in [(loop.kind, loop.extent) for loop in loops_of(found)]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_large_scans_on_threads(axis: int) -> None:
    func = scan_kernel((64, 64, 512), axis)
    kinds = [loop.kind for loop in loops_of(scanned(func))]
    assert kinds.count("parallel") == 1
    one = [loop.kind for loop in loops_of(scanned(func, MACHINE.with_cores(1)))]
    assert "parallel" not in one


def test_is_chosen_for_scans() -> None:
    _, choice = schedule_kernel(scan_kernel((5, 9, 16), 1), MACHINE)
    assert (choice.schedule, choice.source) == ("scan", "template")


def test_leaves_other_kernels() -> None:
    reason = "the kernel is no scan as TVM writes it, of a known shape"
    for func in (
        kernel_of(relax.op.exp, f32(16)),
        kernel_of(lambda x: nn.softmax(x, 1), f32(5, 7)),
        scan_kernel((5, 1), 1),
        scan_kernel((te.var("n", "int64"), 5), 1),
    ):
        assert refusal_of(CpuScan(), func) == reason

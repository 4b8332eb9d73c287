"""PolyBench's kernels: each is what its reference computes, as it is written and as scheduled."""

import numpy as np
import pytest
import tvm
from polybench import difference
from polybench_kernels import KERNELS
from polybench_kernels.further import FURTHER
from tvm import tirx
from unoptimised import built

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.polyhedral.cpu_loop_nest import CpuLoopNest
from tvm_ext.polyhedral.dependences import dependences_of
from tvm_ext.polyhedral.generate_loops import CodeOptions, generated_kernel
from tvm_ext.polyhedral.kernel_domain import kernel_domain
from tvm_ext.polyhedral.loop_scheduler import SchedulerOptions, schedule_loops
from tvm_ext.tir_schedules.analysis.buffer_access import nodes

# The rest are as long again, and run every night.
QUICK = ("gemm", "gesummv", "trisolv", "jacobi-1d", "floyd-warshall", "smith-waterman", "banded-lu")


def check(name):
    kernel = (KERNELS | FURTHER)[name]
    func = kernel.build(*kernel.small)
    expected = kernel.arguments(func)
    kernel.reference(*expected)
    forms = {"plain": func, "tiled": rescheduled(func), "fused": rescheduled(func, fuses=True)}
    library = built(forms)
    for form in forms:
        arrays = [tvm.runtime.tensor(array) for array in kernel.arguments(func)]
        library[form](*arrays)
        for found, wanted in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9, atol=1e-9)


def rescheduled(func, fuses=False):
    """The kernel in isl's order, whether or not that is worth anything at sizes this small."""
    domain = kernel_domain(func)
    options = SchedulerOptions(tile=8, lanes=4, fuses=fuses)
    found = schedule_loops(domain, dependences_of(domain), options)
    return generated_kernel(domain, found.tree, CodeOptions(threads=2, lanes=4))


def scheduled_large(name):
    kernel = (KERNELS | FURTHER)[name]
    return CpuLoopNest().scheduled(kernel.build(*kernel.large), host_description().with_cores(2))


@pytest.mark.extended
@pytest.mark.parametrize("name", ["floyd-warshall", "automaton", "banded-lu"])
def test_a_kernel_that_gains_nothing_stays_as_it_is(name):
    with pytest.raises(NotApplicable, match="may be tiled"):
        scheduled_large(name)


@pytest.mark.extended
@pytest.mark.parametrize("name", ["lu", "cholesky", "trmm"])
def test_dependences_without_a_bounded_distance_leave_all_loops_to_tiles(name):
    _, found = scheduled_large(name)
    assert found.tiled == [3]


def test_of_two_schedules_the_one_with_vectors_is_taken():
    _, found = scheduled_large("gramschmidt")
    assert not found.wavefront
    assert found.vectors


def innermost(func):
    return [loop for loop in nodes(func.body, tirx.For) if len(nodes(loop, tirx.For)) == 1]


def test_rows_of_tiles_run_for_one_statement_after_the_other():
    scheduled = rescheduled(KERNELS["fdtd-2d"].build(9, 40, 50))
    assert all(len(nodes(loop, tirx.BufferStore)) == 1 for loop in innermost(scheduled))


def test_diagonals_run_where_each_element_waits_for_the_one_before():
    scheduled = rescheduled(KERNELS["seidel-2d"].build(9, 40))
    for loop in innermost(scheduled):
        (store,) = nodes(loop, tirx.BufferStore)
        for index in store.indices:
            assert any(var.same_as(loop.loop_var) for var in nodes(index, tvm.ir.Var))


def test_single_operations_are_no_vectors_of_elements_apart():
    scheduled, found = scheduled_large("prefix-maxima")
    assert found.parallel
    kinds = {loop.kind for loop in nodes(scheduled.body, tirx.For)}
    assert tirx.ForKind.VECTORIZED not in kinds


def test_short_loops_stay_as_they_are_in_an_outer_loop_on_threads():
    kernel = FURTHER["small-choleskys"]
    scheduled, _ = scheduled_large("small-choleskys")
    before, after = (
        [(str(loop.loop_var.name), loop.kind) for loop in nodes(one.body, tirx.For)]
        for one in (kernel.build(*kernel.large), scheduled)
    )
    assert after == [("b", tirx.ForKind.PARALLEL), *before[1:]]


def test_no_number_is_no_small_difference():
    numbers, broken = (tvm.runtime.tensor(np.array([1.0, one])) for one in (2.0, np.nan))
    assert difference([numbers], [numbers]) == 0
    assert difference([broken, numbers], [numbers, numbers]) == np.inf
    assert difference([numbers, broken], [numbers, numbers]) == np.inf
    assert difference([broken], [broken]) == np.inf


def test_there_are_thirty():
    assert len(KERNELS) == 30


@pytest.mark.parametrize("name", QUICK)
def test_kernel(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KERNELS | FURTHER if name not in QUICK])
def test_every_kernel(name):
    check(name)

"""Schedules that isl finds, as loops that compute the same numbers."""

import numpy as np
import pytest
import tvm
from loop_kernels import jacobi, matmul, scratch, shifted, wave
from tvm import tirx
from tvm.script import tirx as T

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.polyhedral.check_schedules import check_schedule
from tvm_ext.polyhedral.cpu_loop_nest import CpuLoopNest
from tvm_ext.polyhedral.dependences import dependences_of
from tvm_ext.polyhedral.generate_loops import CodeOptions, generated_kernel
from tvm_ext.polyhedral.kernel_domain import kernel_domain
from tvm_ext.polyhedral.loop_scheduler import SchedulerOptions, schedule_loops
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.lowering_pipeline import compile_kernels
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel


def transformed(func, **options):
    kernel = kernel_domain(func)
    found = schedule_loops(kernel, dependences_of(kernel), SchedulerOptions(**options))
    code = CodeOptions(threads=2, lanes=options.get("lanes", 1))
    return generated_kernel(kernel, found.tree, code), found


def results(func, arrays):
    named = func.with_attr("global_symbol", "kernel")
    program = compile_kernels(tvm.IRModule({"kernel": named}), tvm.target.Target("llvm"))
    copies = [tvm.runtime.tensor(array) for array in arrays]
    program["kernel"](*copies)
    return [copy.numpy() for copy in copies]


def check(func, shapes, **options):
    scheduled, found = transformed(func, **options)
    generator = np.random.default_rng(0)
    arrays = [generator.random(shape) for shape in shapes]
    for one, other in zip(results(func, arrays), results(scheduled, arrays), strict=True):
        # The order of each sum is kept, so nothing may differ.
        np.testing.assert_array_equal(one, other)
    return scheduled, found


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_stencil_over_time_is_skewed_and_tiled(lanes):
    _, found = check(jacobi(9, 37), [(37, 37)] * 2, tile=4, inner_tile=8, lanes=lanes)
    assert found.skewed
    assert found.tiled == [3]


@pytest.mark.parametrize("options", [{}, {"tile": 1}, {"fuses": True}, {"separates": False}])
def test_a_matmul_whose_tiles_do_not_divide_it(options):
    scheduled, found = check(
        matmul(70, 37, 21), [(70, 21), (21, 37), (70, 37)], lanes=4, **{"tile": 8, **options}
    )
    kinds = [loop.kind for loop in nodes(scheduled.body, tirx.For)]
    assert tirx.ForKind.PARALLEL in kinds
    assert tirx.ForKind.VECTORIZED in kinds
    assert not check_schedule(scheduled).races
    assert found.vectors


def test_rows_and_columns_that_depend_on_each_other():
    check(wave(40), [(40, 41)], tile=8, lanes=4)


def test_scratch_arrays_get_a_copy_for_each_iteration():
    check(scratch(30), [(30, 30), (30,)], tile=8, lanes=4)


def test_kernels_that_would_lose_something_stay_as_they_are():
    @T.prim_func(s_tir=True)
    def conditional(A: T.Buffer((99, 99), "float64")):
        for i in range(99):
            for j in range(99):
                if A[i, j] > T.float64(0):
                    A[i, j] = T.float64(1)

    @T.prim_func(s_tir=True)
    def loaded(A: T.Buffer((99, 99), "float64"), B: T.Buffer((99, 99), "float64")):
        for i in range(99):
            for j in range(99):
                a: T.let = A[i, j]
                A[i, j] = B[i, j]
                B[i, j] = a

    assert "when a statement runs" in refusal(conditional)
    assert "a is loaded before it is used" in refusal(loaded)


def test_a_kernel_without_blocks_gets_the_template():
    machine = host_description().with_cores(2)
    _, choice = schedule_kernel(jacobi(9, 97), machine)
    assert choice.schedule == "as written", "nobody asked for it"
    stated = {"loop nest": {"tile": 32}}
    _, choice = schedule_kernel(jacobi(9, 497), machine, stated=stated)
    assert choice.schedule == "loop nest"
    scheduled, choice = schedule_kernel(shifted, machine, stated=stated)
    assert choice.schedule == "as written"
    assert "loop nest: none of its loops" in choice.refusals[0]
    assert scheduled.same_as(shifted)


def refusal(func):
    with pytest.raises(NotApplicable) as refused:
        CpuLoopNest().scheduled(func, host_description())
    return refused.value.reason

"""Schedules that isl finds, as loops that compute the same numbers."""

import islpy as isl
import numpy as np
import pytest
import tvm
from loop_kernels import jacobi, matmul, scratch, shifted, wave
from tvm import tirx
from tvm.script import tirx as T
from unoptimised import built

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.host import host_description
from tvm_ext.polyhedral.check_schedules import check_schedule
from tvm_ext.polyhedral.cpu_loop_nest import CpuLoopNest
from tvm_ext.polyhedral.dependences import dependences_of
from tvm_ext.polyhedral.generate_loops import CodeOptions, generated_kernel
from tvm_ext.polyhedral.kernel_domain import kernel_domain
from tvm_ext.polyhedral.loop_scheduler import NoSchedule, SchedulerOptions, schedule_loops
from tvm_ext.polyhedral.row_order import RowOrder
from tvm_ext.polyhedral.schedule_legality import broken_by_schedule
from tvm_ext.tir_schedules.analysis.buffer_access import nodes
from tvm_ext.tir_schedules.schedule_kernels import schedule_kernel


def transformed(func, **options):
    kernel = kernel_domain(func)
    found = schedule_loops(kernel, dependences_of(kernel), SchedulerOptions(**options))
    code = CodeOptions(threads=2, lanes=options.get("lanes", 1))
    return generated_kernel(kernel, found.tree, code), found


def results(func, arrays, *sizes):
    program = built({"kernel": func})
    copies = [tvm.runtime.tensor(array) for array in arrays]
    program["kernel"](*copies, *sizes)
    return [copy.numpy() for copy in copies]


def check(func, shapes, **options):
    scheduled, found = transformed(func, **options)
    generator = np.random.default_rng(0)
    arrays = [generator.random(shape) for shape in shapes]
    for one, other in zip(results(func, arrays), results(scheduled, arrays), strict=True):
        # The order of each sum is kept, so nothing may differ.
        np.testing.assert_array_equal(one, other)
    return scheduled, found


@pytest.mark.extended
@pytest.mark.parametrize("lanes", [1, 4])
def test_a_stencil_over_time_is_skewed_and_tiled(lanes):
    _, found = check(jacobi(9, 37), [(37, 37)] * 2, tile=4, inner_tile=8, lanes=lanes)
    assert found.skewed
    assert found.tiled == [3]


@pytest.mark.slow
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


@pytest.mark.extended
def test_rows_and_columns_that_depend_on_each_other():
    check(wave(40), [(40, 41)], tile=8, lanes=4)


@pytest.mark.extended
def test_scratch_arrays_get_a_copy_for_each_iteration():
    check(scratch(30), [(30, 30), (30,)], tile=8, lanes=4)


@pytest.mark.extended
def test_scratch_arrays_that_hold_indices_get_a_copy_as_well():
    @T.prim_func(s_tir=True)
    def scattered(A: T.Buffer((30, 30), "float64"), B: T.Buffer((30,), "float64")):
        for i in range(30):
            place = T.alloc_buffer((2,), "int32")
            place[0] = T.Cast("int32", B[i] * T.float64(9))
            place[1] = place[0] + 1
            for j in range(29):
                A[i, place[place[j % 2] % 2]] = A[i, j] + A[i, place[j % 2]]

    check(scattered, [(30, 30), (30,)], tile=8, lanes=4)


@pytest.mark.extended
def test_sizes_may_have_the_names_that_loops_get():
    @T.prim_func(s_tir=True)
    def kernel(a: T.handle, c0: T.int32, c1: T.int32):
        A = T.match_buffer(a, (c0, c1), "float64")
        for i in range(c0 - 1):
            for j in range(c1):
                A[i + 1, j] = A[i, j] * T.float64(2)

    scheduled, _ = transformed(kernel, tile=1, lanes=4, threads=2)
    parallel = [one for one in nodes(scheduled.body, tirx.For) if one.kind == tirx.ForKind.PARALLEL]
    assert len(parallel) == 1
    generator = np.random.default_rng(0)
    arrays = [generator.random((7, 13))]
    sizes = (7, 13)
    np.testing.assert_array_equal(*(results(one, arrays, *sizes)[0] for one in (kernel, scheduled)))


@T.prim_func(s_tir=True)
def smoothed(A: T.Buffer((40, 40), "float64"), B: T.Buffer((40, 40), "float64")):
    """Loops that may be fused, with statements in three steps that follow each other."""
    for i in range(40):
        for j in range(40):
            A[i, j] = A[i, j] * T.float64(2)
        for j in range(40):
            A[i, j] = A[i, j] + T.float64(1)
            B[i, j] = A[i, j]
    for i in range(40):
        for j in range(40):
            B[i, j] = B[i, j] * A[i, j]


@pytest.mark.extended
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("tile", [1, 8])
def test_fused_loops_keep_the_order_of_their_statements(lanes, tile):
    check(smoothed, [(40, 40)] * 2, tile=tile, lanes=lanes, fuses=True)


def test_a_schedule_with_statements_in_a_wrong_order_is_refused(monkeypatch):
    right = RowOrder.in_order.fget
    monkeypatch.setattr(RowOrder, "in_order", property(lambda rows: right(rows)[::-1]))
    with pytest.raises(NoSchedule, match=r"wrong order: .* flow dependence on B from S2"):
        transformed(smoothed, lanes=4, fuses=True)


def wave_schedule(kernel, outer, inner, mark):
    """A tree with two loops over these functions of c0 and c1, the outer one under a mark."""
    loops = [f'schedule: "[{{ S0[c0, c1] -> [({one})] }}]"' for one in (outer, inner)]
    tree = f'mark: "{mark}:0", child: {{ {loops[0]}, child: {{ {loops[1]} }} }}'
    domain = "{ S0[c0, c1] : 0 <= c0 < 9 and 0 <= c1 < 10 }"
    return isl.Schedule.read_from_str(
        kernel.context, f'{{ domain: "{domain}", child: {{ {tree} }} }}'
    )


@pytest.mark.extended
@pytest.mark.parametrize(
    ("outer", "inner", "mark", "what"),
    [
        ("c0", "c1", "", None),
        ("c1", "c0", "", "the wrong way round"),
        ("c0 + c1", "c0", "", None),
        ("c0 + c1", "-c0", "", "the wrong way round"),
        ("c0", "c1", "parallel", "in two iterations of a parallel loop"),
        ("c0", "c1", "vector", "the wrong way round"),
        ("c0", "0", "vector", "at the same time"),
        ("floor(c0/2)", "c1", "", "the wrong way round"),
        ("floor(c0/16)", "floor(c1/16)", "", "at the same time"),
    ],
)
def test_what_a_schedule_breaks(outer, inner, mark, what):
    kernel = kernel_domain(wave(10))
    tree = wave_schedule(kernel, outer, inner, mark)
    found = broken_by_schedule(dependences_of(kernel), tree)
    assert (found is None) if what is None else (what in str(found))


def test_a_parallel_loop_that_only_another_order_has_is_kept():
    """Each column is a recurrence, and the columns may run side by side; a first loop is free."""

    @T.prim_func(s_tir=True)
    def columns(A: T.Buffer((900, 900), "float64"), B: T.Buffer((900,), "float64")):
        for k in range(3):
            B[k] = T.float64(1)
        for i in range(899):
            for j in range(900):
                A[j, i + 1] = A[j, i] * B[j]

    scheduled, found = CpuLoopNest().scheduled(columns, host_description().with_cores(2))
    assert not found.vectors
    assert not found.tiled
    (store,) = [one for one in nodes(scheduled.body, tirx.BufferStore) if one.buffer.name == "A"]
    parallel = [one for one in nodes(scheduled.body, tirx.For) if one.kind == tirx.ForKind.PARALLEL]
    assert any(store.same_as(one) for loop in parallel for one in nodes(loop, tirx.BufferStore))


@pytest.mark.parametrize(("length", "piece"), [(100, 56), (4000, 512)])
def test_threads_share_out_a_loop_of_vectors_by_its_length(length, piece):
    @T.prim_func(s_tir=True)
    def sums(A: T.Buffer((length,), "float64"), B: T.Buffer((3000, length), "float64")):
        for i in range(3000):
            for j in range(length):
                A[j] = A[j] + B[i, j]

    kernel = kernel_domain(sums)
    options = SchedulerOptions(lanes=4, threads=2, cache_bytes=1 << 20)
    found = schedule_loops(kernel, dependences_of(kernel), options)
    assert f"floor((c1)/{piece})" in str(found.tree)


@pytest.mark.extended
def test_fronts_have_as_long_tiles_for_each_thread():
    kernel = kernel_domain(jacobi(10, 97))
    options = SchedulerOptions(tile=8, inner_tile=8, threads=2)
    found = schedule_loops(kernel, dependences_of(kernel), options)
    # Two tiles of five steps, and not one of eight and one of two.
    assert found.wavefront
    assert "floor((i0)/5)" in str(found.tree)


@pytest.mark.extended
def test_sums_of_a_product_are_rows_of_two_vectors():
    scheduled, _ = check(matmul(16, 32, 24), [(16, 24), (24, 32), (16, 32)], lanes=4)
    extents = [
        int(loop.extent)
        for loop in nodes(scheduled.body, tirx.For)
        if loop.kind == tirx.ForKind.VECTORIZED
    ]
    assert 8 in extents


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


@pytest.mark.extended
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

"""Loops, addresses and bytes as they are read from scheduled kernels, against plain enumeration."""

import itertools
import math

import pytest
from drawn_candidates import MACHINE, plain_module
from hypothesis import given, settings
from hypothesis import strategies as st
from small_kernels import add_task, matmul_task
from tvm import s_tir
from tvm.script import tirx as T

from tvm_ext.tir_schedules.analysis.addresses import Address, Term
from tvm_ext.tir_schedules.cpu.cache_traffic import LINE_BYTES, touched, traffic
from tvm_ext.tir_schedules.cpu.loop_tree import Array, ArrayAccess, Kernel, kernel_loops
from tvm_ext.tir_schedules.lowered_kernel import lowered
from tvm_ext.tuning.cpu.cost_model import kernel_cost
from tvm_ext.tuning.cpu.cycles import bodies


def read(sch: s_tir.Schedule) -> Kernel:
    return kernel_loops(lowered(sch.mod, MACHINE), MACHINE)


def read_func(func) -> Kernel:
    return kernel_loops(lowered(plain_module(func), MACHINE), MACHINE)


def accesses_of(kernel: Kernel, name: str) -> list[ArrayAccess]:
    found = [a for s in kernel.root.all_statements() for a in s.accesses if a.array.name == name]
    return list(dict.fromkeys(found))


def test_matmul_is_read_as_it_is_written():
    sch = s_tir.Schedule(matmul_task(6, 10, 4).workload)
    kernel = read(sch)
    i, j, k = (node for node in kernel.root.walk() if node.number >= 0)
    assert [node.extent for node in (i, j, k)] == [6, 10, 4]
    (left,) = accesses_of(kernel, "left")
    assert left.address == Address(
        (Term(k.bit, 1, 4), Term(i.bit, 4, 6)), offset=0, lanes=1, lane_step=0
    )
    assert kernel.parameter_bytes == 4 * (6 * 4 + 4 * 10 + 6 * 10)
    assert kernel.allocated_bytes == 0
    (update,) = (s for s in kernel.root.all_statements() if s.instructions.operations)
    assert update.accumulates()
    # The product takes the sum along: one instruction.
    assert (update.instructions.operations, update.instructions.arithmetic) == (2, 1)


def test_fused_loops_move_an_address_by_rows_and_columns():
    sch = s_tir.Schedule(matmul_task(6, 10, 4).workload)
    i, j, _ = sch.get_loops(sch.get_sblock("result"))
    sch.fuse(i, j)
    (left,) = accesses_of(read(sch), "left")
    assert sorted((term.step, term.places) for term in left.address.terms) == [(1, 4), (4, 6)]
    (right,) = accesses_of(read(sch), "right")
    assert sorted((term.step, term.places) for term in right.address.terms) == [(1, 10), (10, 4)]


def test_vectors_have_lanes_and_steps():
    sch = s_tir.Schedule(matmul_task(16, 32, 8).workload)
    i, j, k = sch.get_loops(sch.get_sblock("result"))
    sch.reorder(j, k, i)
    sch.vectorize(i)
    kernel = read(sch)
    for name, step in (("left", 8), ("right", 0), ("result", 32)):
        lane_steps = {a.address.lane_step for a in accesses_of(kernel, name)}
        assert lane_steps == {step}


def test_rest_of_a_split_is_reached_in_part():
    sch = s_tir.Schedule(add_task(10).workload)
    (i,) = sch.get_loops(sch.get_sblock("result"))
    sch.split(i, [None, 4])
    (statement,) = read(sch).root.all_statements()
    assert statement.share == pytest.approx(10 / 12, abs=0.08)


@T.prim_func(private=True)
def triangle(x: T.Buffer((64, 64), "float32"), y: T.Buffer((64, 64), "float32")):
    T.func_attr({"tirx.noalias": True})
    for i in range(64):
        for j in range(T.min(i + 1, 64)):
            y[i, j] = x[i, j] * T.float32(2)


def test_loops_of_varying_extent_count_with_their_mean():
    (_, inner) = (node for node in read_func(triangle).root.walk() if node.number >= 0)
    assert inner.extent == pytest.approx(32.5, rel=0.05)


@T.prim_func(private=True)
def looked_up(
    places: T.Buffer((64,), "int32"), x: T.Buffer((500,), "float32"), y: T.Buffer((64,), "float32")
):
    T.func_attr({"tirx.noalias": True})
    for j in T.vectorized(64):
        y[j] = x[places[j]]


@T.prim_func(private=True)
def exponential(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    T.func_attr({"tirx.noalias": True})
    for j in range(64):
        y[j] = T.exp(x[j]) / T.float32(3)


def test_looked_up_lanes_have_no_step():
    kernel = read_func(looked_up)
    steps = {
        a.array.name: a.address.lane_step for s in kernel.root.all_statements() for a in s.accesses
    }
    assert steps == {"places": 1, "x": None, "y": 1}


def test_calls_and_divisions_are_slow():
    (statement,) = read_func(exponential).root.all_statements()
    assert statement.instructions.calls == 1
    assert statement.instructions.slow_cycles > statement.instructions.arithmetic
    assert statement.instructions.operations == 2


def tile(steps: list[tuple[int, int]], lanes: int = 16) -> tuple[ArrayAccess, int]:
    """A load of float32 moved by one loop for each step and extent."""
    terms = tuple(Term(1 << n, step, extent) for n, (step, extent) in enumerate(steps))
    array = Array("x", 1 << 24, 4, is_local=False)
    return ArrayAccess(array, Address(terms, 0.0, lanes, 1), is_store=False), (1 << len(steps)) - 1


def lines(steps: list[tuple[int, int]], lanes: int = 16) -> int:
    """Bytes of the lines that such a load touches, by looking at each place."""
    places = itertools.product(*(range(extent) for _, extent in steps))
    starts = (sum(n * step for n, (step, _) in zip(at, steps, strict=True)) for at in places)
    per_line = LINE_BYTES // 4
    return LINE_BYTES * len(
        {(start + lane) // per_line for start in starts for lane in range(lanes)}
    )


@settings(max_examples=15, deadline=None)
@given(
    columns=st.integers(1, 6),
    rows=st.integers(1, 6),
    planes=st.integers(1, 4),
    width=st.integers(6, 9),
    height=st.integers(6, 8),
)
def test_tiles_of_whole_lines_are_counted_exactly(columns, rows, planes, width, height):
    steps = [(16, columns), (16 * width, rows), (16 * width * height, planes)]
    access, loops = tile(steps)
    assert touched([access], loops) == lines(steps)


@settings(max_examples=15, deadline=None)
@given(rows=st.integers(1, 12), taps=st.integers(1, 5), stride=st.integers(1, 2))
def test_windows_count_rows_once(rows, taps, stride):
    # A window's rows are next to each other; the windows move by ``stride`` rows.
    steps = [(160, taps), (160 * stride, rows)]
    access, loops = tile(steps)
    if stride <= taps:
        assert touched([access], loops) == lines(steps)
    else:
        assert touched([access], loops) == pytest.approx(lines(steps), rel=0.6)


def test_loops_that_stand_still_do_not_count():
    access, _ = tile([(16, 4), (160, 8)])
    assert touched([access], 0b01) == lines([(16, 4)])
    assert touched([access], 0b10) == lines([(160, 8)])
    assert touched([access, access], 0b11) == lines([(16, 4), (160, 8)])


def test_an_array_is_never_larger_than_it_is():
    array = Array("x", 4096, 4, is_local=False)
    scattered = Address((Term(1, 100, 1000),), 0.0, 16, None)
    assert touched([ArrayAccess(array, scattered, is_store=False)], 1) == 4096


def test_short_loops_are_unrolled_as_llvm_does():
    sch = s_tir.Schedule(matmul_task(8, 32, 4).workload)
    kinds = {node.extent: node.kind for node in read(sch).root.walk()}
    assert kinds[4] == "unrolled"
    assert kinds[8] == kinds[32] == "serial"


@pytest.mark.parametrize("columns", [16, 128])
def test_a_single_sum_waits_for_itself(columns):
    sch = s_tir.Schedule(matmul_task(4, 128, 4096).workload)
    _, j, k = sch.get_loops(sch.get_sblock("result"))
    j_out, j_in = sch.split(j, [None, columns])
    sch.reorder(j_out, k, j_in)
    sch.vectorize(j_in)
    sch.decompose_reduction(sch.get_sblock("result"), k)
    kernel = read(sch)
    body = max(bodies(kernel, MACHINE), key=lambda body: body.runs)
    assert body.accumulators == columns / 16
    assert body.waiting == pytest.approx(4 * body.runs, rel=0.05)
    # Eight sums fill the time that one waits.
    assert (body.waiting > body.loads) == (columns == 16)


def test_traffic_is_zero_in_a_cache_and_once_through_a_stream():
    small, large = add_task(1024), add_task(1 << 22)
    found = traffic(read(s_tir.Schedule(small.workload)).root, MACHINE)
    assert (found.l1, found.l2, found.l3) == (0, 0, 0)
    found = traffic(read(s_tir.Schedule(large.workload)).root, MACHINE)
    nbytes = 3 * 4 << 22
    assert found.l1 == found.l2 == found.l3 == pytest.approx(nbytes)


def test_matrix_that_does_not_fit_is_fetched_for_every_row():
    rows, size = 64, 512
    kernel = read(s_tir.Schedule(matmul_task(rows, size, size).workload))
    found = traffic(kernel.root, MACHINE)
    assert found.l1 >= rows * size * size * 4
    assert found.l2 == 0


def test_threads_share_the_work_and_cost_their_start():
    sch = s_tir.Schedule(add_task(1 << 16).workload)
    (i,) = sch.get_loops(sch.get_sblock("result"))
    serial = kernel_cost(sch.mod, MACHINE)
    outer, _ = sch.split(i, [6, None])
    sch.parallel(outer)
    parallel = kernel_cost(sch.mod, MACHINE)
    # Six parts on four cores: the busiest has two.
    assert parallel.compute_seconds == pytest.approx(serial.compute_seconds / 3, rel=0.02)
    assert (serial.launches, parallel.launches) == (0, 1)
    assert (serial.busy_cores, parallel.busy_cores) == (1, 4)
    assert parallel.operations == pytest.approx(serial.operations, rel=0.02)
    assert math.isfinite(parallel.seconds)

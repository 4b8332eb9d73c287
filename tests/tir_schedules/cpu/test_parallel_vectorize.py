"""Vector lengths, thread thresholds, and loop nests of data-parallel blocks."""

import pytest
from lowering import Spec, f32, kernel_of, loops_of, lowered, scalar_stores, statements
from machines import MACHINE
from tvm import relax, s_tir, tirx
from tvm.relax.op import nn

from tvm_ext.tir_schedules.analysis.buffer_access import access_of
from tvm_ext.tir_schedules.cpu.parallel_vectorize import (
    largest_divisor,
    parallelize,
    schedule_data_parallel,
    vector_length,
    worth_threads,
)
from tvm_ext.tir_schedules.template import FixedDecisions, Knob

op = relax.op


@pytest.mark.parametrize(
    ("extent", "limit", "wanted"),
    [(12, 12, 12), (12, 5, 4), (149, 64, 1), (7, 100, 7), (9, 0, 1), (1, 16, 1), (0, 16, 1)],
)
def test_largest_divisor(extent: int, limit: int, wanted: int) -> None:
    assert largest_divisor(extent, limit) == wanted


@pytest.mark.parametrize(
    ("extent", "lanes", "registers", "wanted"),
    [
        (128, 16, 4, 64),
        (96, 16, 4, 48),
        (80, 16, 4, 16),
        (80, 16, 2, 16),
        (24, 16, 2, 8),
        (40, 16, 2, 8),
        (13, 16, 2, 13),
        (97, 16, 4, 1),
        (1, 16, 4, 1),
        (0, 16, 4, 1),
    ],
)
def test_vector_length(extent: int, lanes: int, registers: int, wanted: int) -> None:
    assert vector_length(extent, lanes, registers) == wanted


def test_worth_threads() -> None:
    threshold = 4 * MACHINE.parallel_overhead_us * 1e-6 * 16 * MACHINE.clock_ghz * 1e9
    assert worth_threads(MACHINE, threshold * 1.01, 16)
    assert not worth_threads(MACHINE, threshold * 0.99, 16)
    assert not worth_threads(MACHINE.with_cores(1), threshold * 1000, 16)
    nbytes = 4 * MACHINE.parallel_overhead_us * 1e-6 * MACHINE.core_memory_gbs * 1e9
    assert worth_threads(MACHINE, 1, 16, nbytes * 1.01)
    assert not worth_threads(MACHINE, 1, 16, nbytes * 0.99)


@pytest.mark.parametrize(
    ("cores", "rows", "threads", "kinds"),
    [
        (4, 6, 0, ["serial", "serial"]),
        (4, 6, 1, ["parallel"]),
        (1, 6, None, ["serial", "serial"]),
        (4, 1, None, ["serial", "serial"]),
    ],
)
def test_threads_are_a_decision(
    cores: int, rows: int, threads: int | None, kinds: list[str]
) -> None:
    """None where there is nothing to decide: one core, or one iteration."""
    sch = s_tir.Schedule(kernel_of(op.exp, f32(1, rows, 40)))
    (block,) = sch.get_child_blocks(sch.get_sblock("root"))
    *outer, _ = sch.get_loops(block)
    decisions = FixedDecisions({} if threads is None else {"rows": threads})
    parallelize(sch, outer, MACHINE.with_cores(cores), 1.0, 16, decisions, "rows")
    asked = {} if threads is None else {"rows": Knob("rows", (0, 1), 0)}
    assert decisions.knobs == asked
    assert [loop.kind for loop in loops_of(sch.mod["main"])] == [*kinds, "serial"]


def scheduled(func: tirx.PrimFunc, calls: int = 0) -> tirx.PrimFunc:
    """The kernel's last block after ``schedule_data_parallel``; the others are inlined."""
    sch = s_tir.Schedule(func)
    *others, block = sch.get_child_blocks(sch.get_sblock("root"))
    for other in others:
        sch.compute_inline(other)
    access = access_of(sch, block)
    assert access is not None
    schedule_data_parallel(sch, access, MACHINE, "float32", calls)
    return sch.mod["main"]


def vector_extents(func: tirx.PrimFunc) -> list[int | None]:
    return [loop.extent for loop in loops_of(func) if loop.kind == "vectorized"]


def relu_of_sum(*specs: Spec) -> tirx.PrimFunc:
    return kernel_of(lambda a, b: nn.relu(op.add(a, b)), *specs)


def test_large_kernel_runs_on_threads_and_in_vectors() -> None:
    func = scheduled(relu_of_sum(f32(1, 256, 56, 56), f32(1, 256, 56, 56)))
    assert [(loop.kind, loop.extent) for loop in loops_of(func)] == [
        ("parallel", 256 * 56),
        ("vectorized", 56),
    ]


def test_tiny_kernel_stays_on_one_thread() -> None:
    func = scheduled(relu_of_sum(f32(2, 64), f32(2, 64)))
    assert [(loop.kind, loop.extent) for loop in loops_of(func)] == [
        ("serial", 2),
        ("vectorized", 64),
    ]


def test_calls_count_as_work() -> None:
    func = relu_of_sum(f32(1000, 160), f32(1000, 160))
    assert "parallel" not in [loop.kind for loop in loops_of(scheduled(func))]
    assert "parallel" in [loop.kind for loop in loops_of(scheduled(func, calls=10))]


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [
        # One loop over everything, as long as the vector ends where a row ends.
        ((3, 7, 19), (3, 7, 19), 19),
        ((1, 96, 7, 7), (1, 96, 7, 7), 49),
        ((1, 13, 5, 5), (13, 1, 1), 25),
        ((1, 5, 7, 80), (80,), 16),
        ((1, 5, 7, 24), (24,), 24),
        ((5, 80, 1), (5, 1, 1), 16),
        ((1, 97, 1), (1, 1, 1), None),
        ((5, 64), (), 64),
        ((149,), (149,), None),
        ((3, 149), (3, 149), None),
    ],
)
def test_vectors(first: tuple[int, ...], second: tuple[int, ...], length: int | None) -> None:
    func = scheduled(relu_of_sum(f32(*first), f32(*second)))
    assert vector_extents(func) == ([] if length is None else [length])
    # No element is left out, so no predicate is needed.
    blocks = [s for s in statements(func.body) if isinstance(s, s_tir.SBlockRealize)]
    assert all(bool(realize.predicate) for realize in blocks)
    if length is not None:
        assert scalar_stores(func, MACHINE) == 0


@pytest.mark.parametrize(
    ("sizes", "axis", "length"),
    [
        (((3, 24), (3, 40)), 1, None),
        (((3, 40), (13, 40)), 0, 40),
        (((1, 3, 5, 5), (1, 4, 5, 5)), 1, 25),
        (((2, 16, 4, 4), (2, 32, 4, 4)), 1, 16),
        (((3, 24, 1), (3, 40, 1)), 1, None),
    ],
)
def test_vectors_stay_inside_one_input(
    sizes: tuple[tuple[int, ...], ...], axis: int, length: int | None
) -> None:
    func = kernel_of(lambda *v: op.concat(list(v), axis), *(f32(*size) for size in sizes))
    func = scheduled(func)
    assert vector_extents(func) == ([] if length is None else [length])
    if length is not None:
        assert scalar_stores(func, MACHINE) == 0


def test_strided_vectors_are_short() -> None:
    func = scheduled(kernel_of(op.permute_dims, f32(64, 128)))
    assert vector_extents(func) == [16]


def test_gathers_are_short_and_indices_have_no_division() -> None:
    func = scheduled(kernel_of(lambda x: op.image.resize2d(x, (26, 22)), f32(1, 3, 13, 11)))
    assert vector_extents(func) == [11]
    dense = scheduled(relu_of_sum(f32(3, 7, 19), f32(3, 7, 19)))
    assert "//" not in lowered(dense, MACHINE).script()


def test_lanes_are_those_of_the_widest_type() -> None:
    func = kernel_of(lambda x: op.less(x, relax.const(0.5)), f32(8, 256))
    assert vector_extents(scheduled(func)) == [64]


def test_empty_kernel_is_left_alone() -> None:
    func = scheduled(kernel_of(op.add, f32(3, 0), f32(3, 0)))
    assert {loop.kind for loop in loops_of(func)} == {"serial"}

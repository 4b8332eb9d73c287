"""Plans hold, are as small as they say, and fit MiniMalloc's instances into their memory."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from memory_problems import CAPACITY, buffer_lists, minimalloc, smallest_arena

from tvm_ext.memory_planner import Buffer, check_plan, cp_sat, plan_offsets, planner
from tvm_ext.memory_planner.sections import independent_problems

# No test may depend on how long a loaded machine takes.
PATIENT = 600.0
# These take a second together, the other ones up to a minute on a loaded machine.
QUICK = "GJK"


@pytest.fixture
def without_solver(monkeypatch):
    monkeypatch.setattr(cp_sat, "is_installed", lambda: False)


def largest_live_sum(buffers):
    return max(
        (
            sum(b.padded_size for b in buffers if b.first <= place <= b.last)
            for place in {buffer.first for buffer in buffers}
        ),
        default=0,
    )


def test_the_planner_imports_no_tvm():
    code = "import sys, tvm_ext.memory_planner; print({'tvm', 'onnx'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.extended
@settings(deadline=None, max_examples=60)
@given(buffer_lists())
def test_every_plan_holds(buffers):
    plan = plan_offsets(buffers, seconds=0.05)
    check_plan(buffers, plan)
    assert plan.lower_bound == largest_live_sum(buffers) <= plan.size
    assert plan.is_optimal or plan.size > plan.lower_bound


@pytest.mark.extended
@settings(deadline=None, max_examples=30)
@given(buffer_lists(alignments=(1, 48, 64, 256)))
def test_every_plan_with_different_alignments_holds(buffers):
    plan = plan_offsets(buffers, seconds=0.05)
    check_plan(buffers, plan)
    assert plan.lower_bound == largest_live_sum(buffers) <= plan.size


@settings(deadline=None, max_examples=60)
@given(buffer_lists(most=6, alignments=(1, 32, 64)))
def test_few_buffers_are_planned_optimally(buffers):
    plan = plan_offsets(buffers, seconds=PATIENT)
    check_plan(buffers, plan)
    assert plan.is_optimal
    assert plan.size == smallest_arena(buffers)


# Size, first and last place. At every place 10 units are alive, and no arena of 10 is enough.
BOUND_OUT_OF_REACH = [
    *((3, 0, 1), (1, 2, 2), (2, 2, 3), (3, 0, 4), (1, 4, 4), (1, 3, 5), (1, 5, 5), (1, 5, 5)),
    *((1, 0, 6), (3, 6, 6), (1, 0, 7), (2, 0, 7), (1, 4, 7), (1, 5, 7), (1, 5, 7), (2, 7, 7)),
    (2, 7, 7),
]


def bound_out_of_reach():
    return [
        Buffer(str(place), 64 * size, first, last)
        for place, (size, first, last) in enumerate(BOUND_OUT_OF_REACH)
    ]


def test_it_is_proved_that_the_bound_is_out_of_reach(without_solver):
    plan = plan_offsets(bound_out_of_reach(), seconds=PATIENT)
    check_plan(bound_out_of_reach(), plan)
    assert (plan.lower_bound, plan.size, plan.is_optimal) == (640, 704, True)


@pytest.mark.slow
def test_the_solver_proves_the_same():
    pytest.importorskip(
        "ortools", reason="OR-Tools is not installed: pip install 'tvm-ext[planner]'"
    )
    (problem,) = independent_problems(bound_out_of_reach())
    found = cp_sat.solve(problem, known=12, least=10, effort=100.0, seconds=PATIENT)
    assert found.proved_bound == 11
    assert problem.height(found.offsets) == 11


def test_the_solver_is_asked_where_the_search_does_not_reach_the_bound(monkeypatch):
    pytest.importorskip(
        "ortools", reason="OR-Tools is not installed: pip install 'tvm-ext[planner]'"
    )
    monkeypatch.setattr(planner, "_MOST_FOR_SEARCH", 0)
    monkeypatch.setattr(planner, "_FIRST_STEPS", 0)
    plan = plan_offsets(bound_out_of_reach(), seconds=PATIENT)
    check_plan(bound_out_of_reach(), plan)
    assert (plan.size, plan.is_optimal) == (704, True)


def test_the_search_ends_at_a_plan_that_fits(without_solver):
    buffers = bound_out_of_reach()
    plan = plan_offsets(buffers, capacity=64 * 12, seconds=PATIENT)
    check_plan(buffers, plan)
    assert plan.size <= 64 * 12


def test_equal_buffers_get_equal_plans(without_solver):
    buffers = minimalloc("J")
    one, other = (plan_offsets(buffers, capacity=CAPACITY, seconds=PATIENT) for _ in range(2))
    assert one == other


def test_parts_of_the_program_share_the_arena():
    buffers = [Buffer("a", 128, 0, 3), Buffer("b", 64, 4, 5), Buffer("c", 64, 5, 6)]
    plan = plan_offsets(buffers)
    assert plan.size == 128
    assert plan.offsets[0] == 0


def test_nothing_and_buffers_of_no_bytes_need_no_arena():
    assert plan_offsets([]).size == 0
    plan = plan_offsets([Buffer("empty", 0, 0, 9), Buffer("a", 10, 3, 3)])
    assert (plan.offsets, plan.size, plan.is_optimal) == ((0, 0), 64, True)


def test_a_plan_comes_also_without_time():
    buffers = minimalloc("A")
    plan = plan_offsets(buffers, seconds=0.0)
    check_plan(buffers, plan)
    assert not plan.is_optimal


@pytest.mark.extended
@pytest.mark.parametrize(
    "instance",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in "ABCDEFGHIJK"],
)
def test_the_instances_of_minimalloc_fit_into_their_memory(instance, without_solver):
    buffers = minimalloc(instance)
    plan = plan_offsets(buffers, capacity=CAPACITY, seconds=PATIENT)
    check_plan(buffers, plan)
    assert plan.size <= CAPACITY
    assert plan.lower_bound == largest_live_sum(buffers)

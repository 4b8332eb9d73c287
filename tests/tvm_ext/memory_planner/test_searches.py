"""Each method alone: greedy placement, branch and bound, local search."""

import numpy as np
import pytest
from hypothesis import given, settings
from memory_problems import CAPACITY, UNIT, buffer_lists, minimalloc, smallest_arena
from thoroughness import one_in

from tvm_ext.memory_planner import Buffer, MemoryPlan, check_plan
from tvm_ext.memory_planner.branch_and_bound import BranchAndBound, SearchSettings
from tvm_ext.memory_planner.greedy import greedy_placements, orders
from tvm_ext.memory_planner.local_search import local_search
from tvm_ext.memory_planner.sections import independent_problems


def never():
    return False


def check(buffers, problem, offsets):
    """The plan of one part holds."""
    members = [buffers[place] for place in problem.places.tolist()]
    in_bytes = tuple((offsets * problem.unit).tolist())
    size = problem.height(offsets) * problem.unit
    check_plan(members, MemoryPlan(in_bytes, size, 0, "", False))


def test_sections_are_the_largest_sets_alive_together():
    buffers = [
        Buffer("a", 64, 0, 2),
        Buffer("b", 128, 2, 4),
        Buffer("c", 64, 3, 5),
        Buffer("empty", 0, 0, 9),
        Buffer("later", 64, 6, 7),
    ]
    one, other = independent_problems(buffers)
    assert one.sections == [[0, 1], [1, 2]]
    assert (one.firsts.tolist(), one.ends.tolist()) == ([0, 0, 1], [1, 2, 2])
    assert (one.unit, one.sizes.tolist(), one.bound) == (64, [1, 2, 1], 3)
    assert other.places.tolist() == [4]


@pytest.mark.extended
@settings(deadline=None, max_examples=40)
@given(buffer_lists(alignments=(1, 64)))
def test_every_greedy_placement_holds(buffers):
    for problem in independent_problems(buffers):
        for placement in greedy_placements(problem):
            check(buffers, problem, placement.offsets)
            assert placement.height == problem.height(placement.offsets)


@pytest.mark.extended
@settings(deadline=None, max_examples=60)
@given(buffer_lists(most=6, alignments=(1, 48, 64)))
@pytest.mark.parametrize("order", one_in(3, ["TWA", "TAW", "WAT", "AW", "F"]))
def test_the_search_finds_what_is_possible_and_proves_what_is_not(order, buffers):
    for problem in independent_problems(buffers):
        members = [buffers[place] for place in problem.places.tolist()]
        least = smallest_arena(members) // problem.unit
        tree = BranchAndBound(problem, never)
        found = tree.search(SearchSettings(least, order, 10**6, seed=3))
        check(buffers, problem, found.offsets)
        assert problem.height(found.offsets) == least
        assert tree.search(SearchSettings(least - 1, order, 10**6)).proved_none
        jumping = tree.search(SearchSettings(least - 1, order, 10**6, jumps=True))
        assert jumping.offsets is None
        assert not jumping.proved_none


def test_a_search_ends_after_its_steps_and_when_time_is_up():
    (problem,) = independent_problems(minimalloc("A"))
    for out_of_time, steps in ((never, 50), (lambda: True, 10**9)):
        found = BranchAndBound(problem, out_of_time).search(
            SearchSettings(CAPACITY // UNIT, "TWA", steps)
        )
        assert found.offsets is None
        assert not found.proved_none


def test_local_search_goes_below_greedy_placement():
    buffers = minimalloc("E")
    problem = independent_problems(buffers)[0]
    lowest = min(placement.height for placement in greedy_placements(problem))
    order = dict(orders(problem))["size"]
    found = local_search(problem, order, int(0.98 * lowest), 20_000, 1, never)
    check(buffers, problem, found.offsets)
    assert found.height <= 0.98 * lowest
    again = local_search(problem, order, int(0.98 * lowest), 20_000, 1, never)
    assert np.array_equal(found.offsets, again.offsets)
    assert local_search(problem, order, problem.bound, 100, 1, never) is None

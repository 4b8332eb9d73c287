"""The minimum cut against trying every choice."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.relay_passes.layout_graph import (
    FIRST_NODE,
    LAST_NODE,
    LayoutProblem,
    PlannedTensor,
    least_cost_layouts,
)

COSTS = st.one_of(
    st.integers(0, 9).map(float), st.floats(0, 1e-3, allow_subnormal=False), st.just(1e6)
)


@st.composite
def problems(draw: st.DrawFn) -> LayoutProblem:
    problem = LayoutProblem()
    count = draw(st.integers(1, 6))
    for _ in range(count):
        problem.add_node(draw(COSTS), draw(COSTS))
    nodes = st.integers(0, count + 1)
    for _ in range(draw(st.integers(0, 8))):
        consumers = draw(st.frozensets(nodes, max_size=4))
        problem.tensors.append(PlannedTensor(draw(nodes), consumers, draw(COSTS)))
    return problem


def least_total(problem: LayoutProblem) -> float:
    free = len(problem.costs) - 2
    choices = product([False, True], repeat=free)
    return min(problem.total([False, True, *choice]) for choice in choices)


@pytest.mark.extended
@settings(max_examples=200, deadline=None)
@given(problems())
def test_cut_is_as_cheap_as_the_best_of_all_choices(problem: LayoutProblem) -> None:
    chosen = least_cost_layouts(problem)

    assert not chosen[FIRST_NODE]
    assert chosen[LAST_NODE]
    resolution = 1e-7 * sum(tensor.conversion for tensor in problem.tensors)
    assert problem.total(chosen) <= least_total(problem) * (1 + 1e-9) + resolution


def chain(gain: float, conversion: float) -> tuple[LayoutProblem, int]:
    problem = LayoutProblem()
    node = problem.add_node(first=1.0 + gain, last=1.0)
    problem.tensors = [
        PlannedTensor(FIRST_NODE, frozenset({node}), conversion),
        PlannedTensor(node, frozenset({FIRST_NODE}), conversion),
    ]
    return problem, node


@pytest.mark.parametrize(
    ("gain", "conversion", "last"), [(3, 1, True), (2, 1, False), (1, 9, False)]
)
def test_gain_must_exceed_both_conversions(gain: float, conversion: float, last: bool) -> None:
    problem, node = chain(gain, conversion)
    assert least_cost_layouts(problem)[node] is last


def test_huge_gain_does_not_hide_small_conversions() -> None:
    problem, node = chain(1e9, 1e-9)
    follower = problem.add_node()
    problem.tensors.append(PlannedTensor(node, frozenset({follower}), 1e-9))
    problem.tensors.append(PlannedTensor(follower, frozenset({LAST_NODE}), 1e-9))
    assert least_cost_layouts(problem)[follower]


def test_conversion_is_paid_once_for_all_who_read_it() -> None:
    problem = LayoutProblem()
    readers = [problem.add_node(first=2.0, last=0.0) for _ in range(3)]
    problem.tensors.append(PlannedTensor(FIRST_NODE, frozenset(readers), 5.0))

    chosen = least_cost_layouts(problem)

    assert all(chosen[reader] for reader in readers)
    assert problem.total(chosen) == 5.0


def test_free_conversions_leave_each_node_its_own_best() -> None:
    problem = LayoutProblem()
    fast_first, fast_last = problem.add_node(1.0, 2.0), problem.add_node(2.0, 1.0)
    problem.tensors.append(PlannedTensor(fast_first, frozenset({fast_last}), 0.0))
    assert least_cost_layouts(problem) == [False, True, False, True]


def test_tie_keeps_channels_first() -> None:
    problem = LayoutProblem()
    problem.add_node(1.0, 1.0)
    assert least_cost_layouts(problem) == [False, True, False]

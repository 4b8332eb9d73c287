"""Orders of operations can run, need what they say, and are the best of all where they say so."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.memory_planner import Operation, PlanError, order_for_memory, peak_of
from tvm_ext.memory_planner import schedule_order as module

PATIENT = 600.0


@st.composite
def graphs(draw: st.DrawFn, most: int):
    operations = []
    for index in range(draw(st.integers(0, most))):
        inputs = draw(st.sets(st.integers(0, index - 1), max_size=3)) if index else set()
        operations.append(
            Operation(
                f"op{index}",
                tuple(sorted(inputs)),
                draw(st.integers(0, 9)),
                draw(st.sampled_from((0, 0, 4))),
                draw(st.booleans()) and draw(st.booleans()),
            )
        )
    return operations


def can_run(operations, order):
    place = {index: position for position, index in enumerate(order)}
    return sorted(order) == list(range(len(operations))) and all(
        place[source] < place[index]
        for index, operation in enumerate(operations)
        for source in operation.inputs
    )


def alive(operations, order):
    """The bytes alive at each step, counted from when each result is made and last read."""
    place = {index: position for position, index in enumerate(order)}
    readers = {index: [] for index in order}
    for index in order:
        for source in operations[index].inputs:
            readers[source].append(place[index])
    peaks = []
    for position, index in enumerate(order):
        total = operations[index].workspace
        for other in order:
            kept = operations[other].is_kept or not readers[other]
            last = len(order) if kept else max(readers[other])
            if place[other] <= position <= last:
                total += operations[other].size
        peaks.append(total)
    return max(peaks, default=0)


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(graphs(most=7))
def test_small_graphs_get_the_best_of_all_orders(operations):
    found = order_for_memory(operations, seconds=PATIENT)
    assert can_run(operations, found.order)
    assert found.is_optimal
    assert found.peak == peak_of(operations, found.order) == alive(operations, found.order)
    orders = itertools.permutations(range(len(operations)))
    lowest = min(alive(operations, order) for order in orders if can_run(operations, order))
    assert found.lower_bound <= lowest == found.peak


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(graphs(most=40))
def test_larger_graphs_get_an_order_that_is_no_worse_than_theirs(operations):
    found = order_for_memory(operations, seconds=0.05)
    assert can_run(operations, found.order)
    assert found.peak == alive(operations, found.order)
    assert found.lower_bound <= found.peak <= alive(operations, range(len(operations)))


def branches(count, size):
    """Branches that each make a large result of the same input and reduce it to a small one."""
    operations = [Operation("input", (), 1)]
    large = [Operation(f"large{k}", (0,), size) for k in range(count)]
    small = [Operation(f"small{k}", (1 + k,), 1) for k in range(count)]
    join = Operation("join", tuple(range(1 + count, 1 + 2 * count)), 1)
    return [*operations, *large, *small, join]


def test_one_branch_after_the_other_needs_less():
    operations = branches(30, 100)
    assert peak_of(operations, range(len(operations))) == 3001
    found = order_for_memory(operations)
    assert found.peak == 1 + 29 + 100
    assert can_run(operations, found.order)


def test_the_search_ends_at_a_peak_that_is_low_enough():
    operations = branches(30, 100)
    found = order_for_memory(operations, peak=3001)
    assert (found.order, found.method) == (tuple(range(len(operations))), "as given")


def test_what_runs_behind_another_stays_behind_it():
    """The last one frees what it reads, but may not run ahead of the second."""
    first, wide = Operation("first", (), 8), Operation("wide", (), 4)
    frees = Operation("frees", (0,), 1)
    assert order_for_memory([first, wide, frees]).order == (0, 2, 1)
    found = order_for_memory([first, wide, Operation("frees", (0,), 1, behind=(1,))])
    assert (found.order, found.peak) == ((0, 1, 2), 13)


def test_equal_graphs_get_equal_orders():
    operations = branches(5, 10)
    assert order_for_memory(operations, seconds=PATIENT) == order_for_memory(
        operations, seconds=PATIENT
    )


def test_a_search_with_too_many_states_keeps_what_it_has(monkeypatch):
    monkeypatch.setattr(module, "_MOST_STATES", 0)
    monkeypatch.setattr(module, "_BEAM_WIDTHS", (1,))
    found = order_for_memory(branches(30, 100))
    assert found.peak == 130
    assert not found.is_optimal


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([Operation("a", (0,), 1)], "operation 'a' at position 0 reads that at position 0; expec"),
        ([Operation("a", (), 1, behind=(1,))], "operation 'a' at position 0 reads that at posit"),
        ([Operation("a", (), -1)], "operation 'a' has a size of -1 and a workspace of 0 bytes"),
    ],
)
def test_what_cannot_run_is_refused(operations, expected):
    with pytest.raises(PlanError, match=expected):
        order_for_memory(operations)

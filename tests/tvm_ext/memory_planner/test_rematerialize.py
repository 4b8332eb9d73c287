"""Programs that need less memory compute what they computed, and need what they say."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tvm_ext.memory_planner.program import KernelTraits, Program, Step
from tvm_ext.memory_planner.rematerialize import fit_to_memory

UNIT = 64


def kernel(name: str, seconds: float = 1.0, **known) -> KernelTraits:
    return KernelTraits(name, seconds, **known)


def program(*steps, sizes, outside=(), **more) -> Program:
    made = tuple(
        Step(at, arguments, results, traits)
        for at, (arguments, results, traits) in enumerate(steps)
    )
    return Program(made, tuple(UNIT * size for size in sizes), frozenset(outside), **more)


def computed(given: Program) -> dict[int, str]:
    """By each value that leaves the program, the expression that computes it."""
    known: dict[int, str] = {}
    for step in given.steps:
        arguments = ",".join("w" if one is None else known[one] for one in step.arguments)
        for number, value in enumerate(step.results):
            known[value] = f"s{step.source}.{number}({arguments})"
    return {value: known[value] for value in given.outside}


def early_and_late(seconds: float = 0.5) -> Program:
    """A value that is read first and last, and a chain between that needs much."""
    return program(
        ((None,), (0,), kernel("cheap", seconds)),
        ((0,), (1,), kernel("wide")),
        ((1,), (2,), kernel("wider")),
        ((2,), (3,), kernel("narrow")),
        ((0, 3), (4,), kernel("sum")),
        sizes=(2, 4, 4, 1, 1),
        outside=[4],
    )


def test_a_value_is_computed_again_where_it_is_needed_late():
    given = early_and_late()
    assert given.live_bytes == [UNIT * n for n in (2, 6, 10, 7, 3)]
    found = fit_to_memory(given, 8 * UNIT)
    assert found.peak == 8 * UNIT == given.lower_bound
    assert [step.source for step in found.steps] == [0, 1, 2, 3, 0, 4]
    assert found.seconds == given.seconds + 0.5
    assert computed(found) == computed(given)


def test_what_is_overwritten_is_read_before():
    """Value 0 is a parameter: a copy of a step that reads it would come behind its update."""
    steps = (
        Step(0, (0,), (1,), kernel("cheap", 0.1)),
        Step(1, (1,), (2,), kernel("gradient")),
        Step(2, (0, 2), (3,), kernel("update"), overwrites=(0,)),
        Step(3, (3,), (4,), kernel("wide")),
        Step(4, (4,), (5,), kernel("wider")),
        Step(5, (5,), (6,), kernel("narrow")),
        Step(6, (1, 6), (7,), kernel("sum")),
    )
    sizes = tuple(UNIT * size for size in (0, 2, 1, 1, 4, 4, 1, 1))
    given = Program(steps, sizes, frozenset({0, 3, 7}))
    assert fit_to_memory(given, 8 * UNIT) is given
    plain = given.with_steps([replace(step, overwrites=()) for step in steps])
    assert fit_to_memory(plain, 8 * UNIT).peak == 8 * UNIT < given.peak


def test_a_program_that_fits_stays_as_it_is():
    given = early_and_late()
    assert fit_to_memory(given, given.peak) is given


def test_of_two_values_the_cheaper_one_is_computed_again():
    given = program(
        ((None,), (0,), kernel("dear", 9.0)),
        ((None,), (1,), kernel("cheap", 1.0)),
        ((0, 1), (2,), kernel("wide")),
        ((2,), (3,), kernel("wider")),
        ((0, 1, 3), (4,), kernel("sum")),
        sizes=(2, 2, 4, 4, 1),
        outside=[4],
    )
    found = fit_to_memory(given, 10 * UNIT)
    assert sorted(step.source for step in found.steps).count(1) == 2
    assert found.seconds == given.seconds + 1.0


def test_a_value_that_is_needed_late_alone_is_moved_and_costs_nothing():
    given = program(
        ((None,), (0,), kernel("early")),
        ((None,), (1,), kernel("wide")),
        ((1,), (2,), kernel("narrow")),
        ((0, 2), (3,), kernel("sum")),
        sizes=(3, 4, 1, 1),
        outside=[3],
    )
    found = fit_to_memory(given, 5 * UNIT)
    assert found.peak == 5 * UNIT
    assert found.seconds == given.seconds


def test_what_depends_on_a_value_is_computed_again_as_well():
    """Its operand is read last before the peak, and computing that too frees more."""
    given = program(
        ((None,), (0,), kernel("first", 0.1)),
        ((0,), (1,), kernel("second", 0.1)),
        ((1,), (2,), kernel("wide")),
        ((2,), (3,), kernel("wider")),
        ((3,), (4,), kernel("narrow")),
        ((1, 4), (5,), kernel("sum")),
        sizes=(3, 3, 5, 5, 1, 1),
        outside=[5],
    )
    found = fit_to_memory(given, 10 * UNIT)
    assert found.peak <= 10 * UNIT
    assert [step.source for step in found.steps] == [0, 1, 2, 3, 4, 0, 1, 5]


def test_nothing_moves_or_runs_again_across_a_barrier():
    steps = list(early_and_late().steps)
    barrier = Step(5, (), (), None, is_barrier=True)
    given = Program((*steps[:3], barrier, *steps[3:]), early_and_late().sizes, frozenset([4]))
    assert fit_to_memory(given, 8 * UNIT) is given


def test_a_result_in_the_place_of_an_operand_needs_no_bytes():
    sign = kernel("sign", in_place=((0, (0,)),))
    chain = [((None,), (0,), kernel("first")), ((0,), (1,), sign)]
    assert program(*chain, ((1,), (2,), kernel("last")), sizes=(4, 4, 1)).peak == 5 * UNIT
    # Where a later call still reads the operand, no call of the kernel writes over one.
    again = [((0,), (2,), kernel("reader")), ((1, 2), (3,), kernel("last"))]
    assert program(*chain, *again, sizes=(4, 4, 1, 1)).peak == 9 * UNIT


def test_parts_of_a_concatenation_and_slices_are_views():
    join = kernel("join", moved=((0, 0), (1, 2 * UNIT)))
    cut = kernel("cut", moved=((0, -UNIT),))
    steps = [
        ((None,), (0,), kernel("a")),
        ((None,), (1,), kernel("b")),
        ((0, 1), (2,), join),
        ((2,), (3,), cut),
        ((3,), (4,), kernel("last")),
    ]
    sizes = (2, 2, 4, 3, 1)
    assert program(*steps, sizes=sizes).live_bytes == [4 * UNIT] * 4 + [5 * UNIT]
    assert program(*steps, sizes=sizes, has_views=False).peak == 8 * UNIT


@st.composite
def programs(draw: st.DrawFn) -> Program:
    steps, count = [], draw(st.integers(1, 12))
    for at in range(count):
        read = draw(st.lists(st.integers(0, at - 1), max_size=3)) if at else []
        traits = kernel(f"k{draw(st.integers(0, 3))}", draw(st.integers(0, 3)) / 2)
        is_barrier = draw(st.integers(0, 9)) == 0
        steps.append(Step(at, (*read, None), (at,), None if is_barrier else traits, 0, is_barrier))
    sizes = tuple(UNIT * draw(st.integers(0, 5)) for _ in range(count))
    return Program(
        tuple(steps), sizes, frozenset({count - 1} | draw(st.sets(st.integers(0, count - 1))))
    )


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(programs(), st.integers(0, 30))
def test_any_program_computes_the_same_with_no_higher_peak(given_: Program, target: int):
    found = fit_to_memory(given_, target * UNIT)
    assert found.peak <= given_.peak
    assert computed(found) == computed(given_)
    # Steps with effects run once, in their order.
    barriers = [step.source for step in found.steps if step.is_barrier]
    assert barriers == [step.source for step in given_.steps if step.is_barrier]

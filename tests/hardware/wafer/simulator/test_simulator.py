"""The simulator: cases worked out by hand, the same model cycle by cycle, and refusals."""

import numpy as np
import pytest
from communication_cases import mesh
from cycle_by_cycle import CycleByCycle, random_program

from tvm_ext.hardware.wafer.description import WaferLimitError
from tvm_ext.hardware.wafer.simulator.communication_patterns import chain, message, star, two_phase
from tvm_ext.hardware.wafer.simulator.engine import QUEUE_WORDS, simulate
from tvm_ext.hardware.wafer.simulator.program import EAST, SOUTH, WEST, Program


def test_one_message():
    # Three words leave the PE at 1, 2, 3, take 2 up the ramp, 1 a hop, 2 down, and 1 to store.
    result = simulate(mesh(), message(3, 2))
    assert list(result.task_ends) == [3, 3 + 2 + 2 + 2 + 1]
    assert result.cycles == 10
    expected = np.zeros((1, 3, 4), int)
    expected[0, :2, EAST] = 3
    np.testing.assert_array_equal(result.link_wavelets, expected)
    assert result.sent_words.tolist() == [[3, 0, 0]]
    assert result.received_words.tolist() == [[0, 0, 3]]
    assert result.busy_cycles.tolist() == [[3, 0, 3]]
    assert result.colours == 1


def test_slower_links_and_ramps():
    assert simulate(mesh(hop_cycles=4), message(3, 2)).cycles == 3 + 2 + 8 + 2 + 1
    assert simulate(mesh(ramp_cycles=7), message(3, 2)).cycles == 3 + 7 + 2 + 7 + 1


def test_a_chain_adds_and_sends_on_in_one_cycle():
    # The second PE's first word is done at 1 + 2 + 1 + 2 + 1 = 7, the last one at 7 + 4.
    result = simulate(mesh(), chain(5, 3))
    assert list(result.task_ends) == [5, 11, 17]
    assert result.busy_cycles.tolist() == [[5, 5, 5]]
    assert result.link_wavelets[0, :, WEST].tolist() == [0, 5, 5]


def test_two_streams_share_a_link_word_by_word():
    # Both go from PE 1 to PE 2; that of PE 0 comes one cycle later and takes every other slot.
    program = Program(1, 3)
    ends = []
    for colour, source in enumerate((1, 0)):
        stream = program.stream((0, source), [(0, 2)], 4, colour)
        program.send(stream)
        ends.append(program.receive((0, 2), stream))
    result = simulate(mesh(), program)
    # They come to the router of PE 1 in cycles 3, 4, 5, 6 and 4, 5, 6, 7, and of two that come
    # together the first stream's goes first: slots 3, 4, 6, 8 and 5, 7, 9, 10.
    assert [result.task_ends[task] - 1 - 2 - 1 for task in ends] == [8, 10]
    assert result.link_wavelets[0, 1, EAST] == 8


def test_a_router_copies_to_several_links_at_no_cost():
    program = Program(2, 3)
    targets = [(0, 2), (1, 1), (1, 0)]
    stream = program.stream((0, 0), targets, 6, 0)
    program.send(stream)
    ends = [program.receive(target, stream) for target in targets]
    result = simulate(mesh(), program)
    assert [result.task_ends[end] for end in ends] == [6 + 2 + 5, 6 + 2 + 5, 6 + 1 + 5]
    # Along the row to the column of the target, then down: two links, and one for each other.
    assert result.link_wavelets[0, 0].tolist() == [0, 6, 6, 0]
    assert result.link_wavelets[..., SOUTH].sum() == 12
    assert result.sent_words.sum() == 6


def test_turns_let_the_nearest_pass_first():
    result = simulate(mesh(), star(5, 4))
    # The first PE takes 5 words of each in turn, without a gap, from 1 + 2 + 1 + 2 on.
    assert list(result.task_ends[1::2]) == [6 + 5, 6 + 10, 6 + 15]


def test_words_wait_at_the_router_until_a_task_takes_them():
    # Both neighbours send at once. The second task takes words when the first is over; before, as
    # many as the queue holds have crossed the ramp, in slots that the first stream lost.
    words = 50
    program = Program(1, 3)
    last: list[int] = []
    for colour, source in enumerate((0, 2)):
        stream = program.stream((0, source), [(0, 1)], words, colour)
        program.send(stream)
        last = [program.receive((0, 1), stream, last)]
    first, second = simulate(mesh(), program).task_ends[1::2]
    assert first == 6 + words + QUEUE_WORDS
    assert second == first + words


def test_a_task_waits_for_those_before():
    program = Program(1, 2)
    first = program.stream((0, 0), [(0, 1)], 3, 0)
    second = program.stream((0, 1), [(0, 0)], 2, 1)
    program.send(first)
    stored = program.receive((0, 1), first)
    program.send(second, after=[stored])
    program.receive((0, 0), second)
    assert list(simulate(mesh(), program).task_ends) == [3, 9, 11, 17]


@pytest.mark.parametrize("seed", range(60))
def test_the_same_cycle_by_cycle(seed):
    machine = mesh() if seed % 2 else mesh(ramp_cycles=3, hop_cycles=2)
    program = random_program(seed)
    expected = CycleByCycle(machine, program).task_ends()
    np.testing.assert_array_equal(simulate(machine, program).task_ends, expected)


def test_a_published_reduce():
    # 8,973 cycles in the vendor's simulator; see test_closed_forms.py. No fitted number is in it.
    assert simulate(mesh(), two_phase(4096, 512, 32)).cycles == pytest.approx(8973, rel=0.01)


def test_nothing_takes_no_time():
    assert simulate(mesh(), Program(2, 2)).cycles == 0


def _lost_program() -> Program:
    program = Program(1, 2)
    program.send(program.stream((0, 0), [(0, 1)], 1, 0))
    return program


def _silent_program() -> Program:
    program = Program(1, 2)
    program.receive((0, 1), program.stream((0, 0), [(0, 1)], 1, 0))
    return program


def _doubled_program() -> Program:
    program = _lost_program()
    program.send(0)
    return program


def _crossed_program() -> Program:
    program = Program(1, 3)
    for source, target in ((0, 1), (1, 2)):
        stream = program.stream((0, source), [(0, target)], 1, colour=7)
        program.send(stream)
        program.receive((0, target), stream)
    return program


def _circular_program() -> Program:
    program = Program(1, 2)
    first = program.stream((0, 0), [(0, 1)], 1, 0)
    second = program.stream((0, 1), [(0, 0)], 1, 1)
    program.forward(second, first)
    program.forward(first, second)
    return program


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (_lost_program(), r"stream 0 is not received at \(0, 1\)"),
        (_silent_program(), "stream 0 is never sent"),
        (_doubled_program(), "stream 0 is sent by two tasks"),
        (_crossed_program(), r"colour 7 goes 2 ways at PE \(0, 1\).*use another colour"),
        (_circular_program(), "2 tasks of the program never start"),
        (Program(995, 1), "995x1 PEs, and 'wse2' has 994x750"),
    ],
)
def test_programs_that_cannot_run_are_refused(program, message):
    with pytest.raises(WaferLimitError, match=message):
        simulate(mesh(), program)


def test_programs_that_cannot_be_written_are_refused():
    with pytest.raises(WaferLimitError, match="grid of 0x2"):
        Program(0, 2)
    program = Program(2, 2)
    with pytest.raises(WaferLimitError, match=r"PE \(2, 0\) is outside the grid of 2x2"):
        program.stream((0, 0), [(2, 0)], 1, 0)
    with pytest.raises(WaferLimitError, match="stream of 0 words"):
        program.stream((0, 0), [(0, 1)], 0, 0)
    short = program.stream((0, 0), [(0, 1)], 1, 0)
    long = program.stream((0, 1), [(1, 1)], 2, 0)
    with pytest.raises(WaferLimitError, match=r"streams of \[1, 2\] words"):
        program.forward(short, long)

"""Reduces to the first PE of a line, as in P. Luczynski et al., "Near-optimal wafer-scale reduce",
HPDC 2024, arXiv 2404.15888.

The functions ``add_...`` put one into a program and return the tasks that end it.
"""

from collections.abc import Sequence
from itertools import pairwise

from tvm_ext.hardware.wafer.simulator.program import Program
from tvm_ext.hardware.wafer.simulator.routes import Place


def star(words: int, extent: int) -> Program:
    """All to the first over one colour, the nearest first."""
    program = Program(1, extent)
    last: list[int] = []
    for place in range(1, extent):
        stream = program.stream((0, place), [(0, 0)], words, colour=0, turn=place)
        program.send(stream)
        last = [program.receive((0, 0), stream, last)]
    return program


def chain(words: int, extent: int) -> Program:
    """Each to its neighbour, which adds its own."""
    program = Program(1, extent)
    add_chain(program, words, _places(range(extent)), 0)
    return program


def tree(words: int, extent: int) -> Program:
    """Pairs of pairs; the far part of a line is the largest power of two below its length."""
    program = Program(1, extent)
    add_tree(program, words, 0, extent)
    return program


def two_phase(words: int, extent: int, group: int) -> Program:
    """Chains within groups, then one chain over the first PEs of the groups."""
    program = Program(1, extent)
    add_two_phase(program, words, extent, group)
    return program


def add_chain(
    program: Program,
    words: int,
    places: Sequence[Place],
    colour: int,
    after: Sequence[Sequence[int]] = (),
) -> list[int]:
    """From the first of ``places`` to the last, with two colours in turn from ``colour``.

    ``after`` has the tasks that each place waits for.
    """
    waits = list(after) or [()] * len(places)
    stream: int | None = None
    for index, (place, target) in enumerate(pairwise(places)):
        sent = program.stream(place, [target], words, colour + index % 2)
        if stream is None:
            program.send(sent, waits[index])
        else:
            program.forward(stream, sent, waits[index])
        stream = sent
    if stream is None:
        return list(waits[-1])
    return [program.receive(places[-1], stream, waits[-1])]


def add_tree(program: Program, words: int, first: int, extent: int) -> list[int]:
    """Over ``extent`` PEs from place ``first``."""
    if extent == 1:
        return []
    rounds = (extent - 1).bit_length() - 1
    near = extent - 2**rounds
    ends = add_tree(program, words, first, near)
    far_ends = add_tree(program, words, first + near, 2**rounds)
    stream = program.stream((0, first + near), [(0, first)], words, colour=rounds)
    program.send(stream, far_ends)
    return [program.receive((0, first), stream, ends)]


def add_two_phase(program: Program, words: int, extent: int, group: int) -> list[int]:
    """In groups of ``group`` PEs; the first is smaller if the line is no multiple of that."""
    edges = [0, *range(extent % group or group, extent, group), extent]
    ends = [
        add_chain(program, words, _places(range(first, end)), 0) for first, end in pairwise(edges)
    ]
    return add_chain(program, words, _places(edges[:-1]), 2, ends[::-1])


def _places(columns: Sequence[int]) -> list[Place]:
    """PEs of the line, the farthest first."""
    return [(0, column) for column in reversed(columns)]

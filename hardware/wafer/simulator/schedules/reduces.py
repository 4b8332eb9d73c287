"""Reduces to the first PE of a line, as in P. Luczynski et al., "Near-optimal wafer-scale reduce",
HPDC 2024, arXiv 2404.15888, section 5."""

from collections.abc import Sequence

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
    add_chain(program, [(0, place) for place in range(extent)][::-1], words, 0, ())
    return program


def tree(words: int, extent: int) -> Program:
    """Pairs of pairs; the far part of a line is the largest power of two below its length."""
    program = Program(1, extent)
    _add_tree(program, 0, extent, words)
    return program


def two_phase(words: int, extent: int, group: int) -> Program:
    """Chains within groups, then one chain over the first PEs of the groups."""
    program = Program(1, extent)
    first = extent % group or group
    edges = [0, *range(first, extent, group), extent]
    leaders = edges[:-1]
    ends = {}
    for begin, end in zip(edges, edges[1:]):
        places = [(0, place) for place in range(begin, end)][::-1]
        ends[begin] = add_chain(program, places, words, 0, ())
    places = [(0, place) for place in leaders][::-1]
    add_chain(program, places, words, 2, [ends[place] for place in leaders[::-1]])
    return program


def add_chain(
    program: Program,
    places: Sequence[Place],
    words: int,
    colour: int,
    after: Sequence[Sequence[int]],
) -> list[int]:
    """A chain over ``places`` to the last of them, with two colours in turn from ``colour``.

    ``after`` has the tasks that each place waits for; the tasks that end the chain come back.
    """
    waits = list(after) or [()] * len(places)
    stream: int | None = None
    for index, (place, target) in enumerate(zip(places, places[1:])):
        sent = program.stream(place, [target], words, colour + index % 2)
        if stream is None:
            program.send(sent, waits[index])
        else:
            program.forward(stream, sent, waits[index])
        stream = sent
    if stream is None:
        return list(waits[-1])
    return [program.receive(places[-1], stream, waits[-1])]


def _add_tree(program: Program, first: int, extent: int, words: int) -> list[int]:
    """The tree of ``extent`` PEs from place ``first``; the tasks that end it."""
    if extent == 1:
        return []
    rounds = (extent - 1).bit_length() - 1
    near = extent - 2**rounds
    ends = _add_tree(program, first, near, words)
    far_ends = _add_tree(program, first + near, 2**rounds, words)
    stream = program.stream((0, first + near), [(0, first)], words, colour=rounds)
    program.send(stream, far_ends)
    return [program.receive((0, first), stream, ends)]

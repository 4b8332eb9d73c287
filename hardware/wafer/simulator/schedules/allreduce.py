"""Allreduces over a line."""

from collections.abc import Callable, Sequence

from tvm_ext.hardware.wafer.simulator.program import Program
from tvm_ext.hardware.wafer.simulator.schedules.reduces import add_chain
from tvm_ext.hardware.wafer.simulator.schedules.shifts import ring_colour

# Apart from those of the reduces.
_BROADCAST = 20


def ring(part_words: int, extent: int) -> Program:
    """Each step stores the ``part_words`` words that come, and the next sends them."""
    program = Program(1, extent)
    order = list(range(extent))
    ends: list[list[int]] = [[] for _ in order]
    for _ in range(2 * (extent - 1)):
        received: list[list[int]] = [[] for _ in order]
        for place in order:
            target = (place + 1) % extent
            colour = ring_colour(order, place)
            stream = program.stream((0, place), [(0, target)], part_words, colour)
            program.send(stream, ends[place])
            received[target] = [program.receive((0, target), stream, ends[target])]
        ends = received
    return program


def reduce_broadcast(
    words: int, extent: int, add_reduce: Callable[[Program], Sequence[int]]
) -> Program:
    """What ``add_reduce`` puts into the program, a reduce to the first PE, and a multicast."""
    program = Program(1, extent)
    _add_multicast(program, words, extent, 0, add_reduce(program))
    return program


def k_tree(words: int, extent: int, levels: Sequence[Sequence[Sequence[int]]]) -> Program:
    """Chains from both sides of each group to its middle, level by level, then a multicast.

    ``levels`` has the groups of each level, as places of their leaders.
    """
    program = Program(1, extent)
    ends: list[list[int]] = [[] for _ in range(extent)]
    middle = 0
    for level, groups in enumerate(levels):
        for group in groups:
            index = len(group) // 2
            middle = group[index]
            sides = (list(group[: index + 1]), list(group[index:])[::-1])
            both: list[int] = []
            for side, colour in zip(sides, (4 * level, 4 * level + 2), strict=True):
                places = [(0, place) for place in side]
                waits = [ends[place] for place in side]
                both += add_chain(program, words, places, colour, waits)
            ends[middle] = both
    _add_multicast(program, words, extent, middle, ends[middle])
    return program


def _add_multicast(
    program: Program, words: int, extent: int, root: int, after: Sequence[int]
) -> None:
    others = [(0, place) for place in range(extent) if place != root]
    if not others:
        return
    stream = program.stream((0, root), others, words, _BROADCAST)
    program.send(stream, after)
    for place in others:
        program.receive(place, stream)

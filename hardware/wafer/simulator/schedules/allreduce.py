"""Allreduces over a line."""

from collections.abc import Sequence

from tvm_ext.hardware.wafer.simulator.program import Program
from tvm_ext.hardware.wafer.simulator.schedules.reduces import add_chain
from tvm_ext.hardware.wafer.simulator.schedules.shifts import ring_colour


def ring(words: int, extent: int) -> Program:
    """``words`` is what one step sends: the P-th part of a vector. Each step stores, then sends."""
    program = Program(1, extent)
    order = list(range(extent))
    ends: list[list[int]] = [[] for _ in order]
    for _ in range(2 * (extent - 1)):
        streams = []
        for place in order:
            target = (place + 1) % extent
            stream = program.stream(
                (0, place), [(0, target)], words, ring_colour(order, place), turn=None
            )
            streams.append((target, stream, program.send(stream, ends[place])))
        received: list[list[int]] = [[] for _ in order]
        for target, stream, _ in streams:
            received[target].append(program.receive((0, target), stream, ends[target]))
        ends = received
    return program


def reduce_broadcast(program: Program, extent: int, words: int, ends: Sequence[int]) -> Program:
    """Adds a multicast from the first PE of a line, after the tasks ``ends`` of its reduce."""
    _multicast(program, 0, extent, words, list(ends))
    return program


def k_tree(words: int, levels: Sequence[Sequence[Sequence[int]]], extent: int) -> Program:
    """Chains from both sides of each group to its middle, level by level, then a multicast.

    ``levels`` has the groups of each level, as places of their leaders.
    """
    program = Program(1, extent)
    ends: dict[int, list[int]] = {place: [] for place in range(extent)}
    middle = 0
    for level, groups in enumerate(levels):
        for group in groups:
            middle = group[len(group) // 2]
            before = list(group[: len(group) // 2 + 1])
            behind = list(group[len(group) // 2 :])[::-1]
            colour = 4 * level
            first, second = (behind, before) if len(behind) < len(before) else (before, behind)
            for side in (first, second):
                places = [(0, place) for place in side]
                waits = [ends[place] for place in side]
                ends[middle] = add_chain(program, places, words, colour, waits)
                colour += 2
    _multicast(program, middle, extent, words, ends[middle])
    return program


def _multicast(program: Program, root: int, extent: int, words: int, after: list[int]) -> None:
    others = [(0, place) for place in range(extent) if place != root]
    if not others:
        return
    stream = program.stream((0, root), others, words, colour=99)
    program.send(stream, after)
    for place in others:
        program.receive(place, stream)

"""Programs of the usual collectives for the simulator: multicasts, reduces, allreduces, shifts,
grids.
"""

from collections.abc import Sequence
from itertools import pairwise

from tvm_ext.hardware.wafer.simulator.program import Place, Program


def message(words: int, hops: int, senders: int = 1) -> Program:
    """The first ``senders`` PEs of a line to the PEs ``hops`` farther: ways that share links."""
    program = Program(1, hops + senders)
    for place in range(senders):
        _multicast(program, (0, place), [(0, place + hops)], words, colour=place)
    return program


def multicast(words: int, extent: int, root: int = 0) -> Program:
    """The PE at place ``root`` of a line to all others."""
    program = Program(1, extent)
    _multicast(program, (0, root), _others(extent, root), words, colour=0)
    return program


def multicast_2d(words: int, rows: int, columns: int) -> Program:
    """The PE in the corner to all others of a grid."""
    program = Program(rows, columns)
    others = [(row, column) for row in range(rows) for column in range(columns)][1:]
    _multicast(program, (0, 0), others, words, colour=0)
    return program


def _others(extent: int, root: int) -> list[Place]:
    """All PEs of a line but one."""
    return [(0, place) for place in range(extent) if place != root]


def _multicast(
    program: Program,
    root: Place,
    targets: Sequence[Place],
    words: int,
    colour: int,
    after: Sequence[int] = (),
) -> None:
    if not targets:
        return
    stream = program.stream(root, targets, words, colour)
    program.send(stream, after)
    for place in targets:
        program.receive(place, stream)


# Reduces to the first PE of a line, as in P. Luczynski et al., "Near-optimal wafer-scale reduce",
# HPDC 2024, arXiv 2404.15888.
#
# The functions ``add_...`` put one into a program and return the tasks that end it.


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


# Shifts around a ring that lies over a line, for each row of a grid.


def cannon_shift(words: int, extent: int, rows: int = 1) -> Program:
    """In the order of the line: the last sends to the first."""
    return _ring_shift(words, list(range(extent)), rows)


def interleaved_shift(words: int, extent: int, rows: int = 1) -> Program:
    """Every other PE on the way out, the rest on the way back."""
    return _ring_shift(words, [*range(0, extent, 2), *reversed(range(1, extent, 2))], rows)


def _ring_shift(words: int, order: Sequence[int], rows: int) -> Program:
    program = Program(rows, len(order))
    if len(order) == 1:
        return program
    for row in range(rows):
        for index, column in enumerate(order):
            target = (row, order[(index + 1) % len(order)])
            _multicast(program, (row, column), [target], words, ring_colour(order, index))
    return program


def ring_colour(order: Sequence[int], index: int) -> int:
    """A colour of the message to the next of a ring, that no router on its way has otherwise.

    Two in turn to the east, and two to the west.
    """
    back = order[(index + 1) % len(order)] < order[index]
    return index % 2 + 2 * back


# Allreduces over a line.


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
    others = _others(extent, middle)
    _multicast(program, (0, middle), others, words, _BROADCAST, ends[middle])
    return program


# Patterns of whole grids: SUMMA's broadcasts, halo exchange, transposition.


def summa_broadcast(
    row_words: int,
    column_words: int,
    rows: int,
    columns: int,
    row_root: int = 0,
    column_root: int = 0,
) -> Program:
    """One column of PEs sends along the rows, one row of PEs along the columns."""
    program = Program(rows, columns)
    for row in range(rows):
        targets = [(row, column) for column in range(columns) if column != row_root]
        _multicast(program, (row, row_root), targets, row_words, colour=0)
    for column in range(columns):
        targets = [(row, column) for row in range(rows) if row != column_root]
        _multicast(program, (column_root, column), targets, column_words, colour=1)
    return program


def halo(row_words: int, column_words: int, rows: int, columns: int, hops: int = 1) -> Program:
    """Every PE to its ``hops`` nearest in each direction."""
    program = Program(rows, columns)
    places = [(row, column) for row in range(rows) for column in range(columns)]
    for index, (down, right) in enumerate([(-1, 0), (1, 0), (0, -1), (0, 1)]):
        words = row_words if right else column_words
        for place in places:
            ahead = [
                (place[0] + down * step, place[1] + right * step) for step in range(1, hops + 1)
            ]
            inside = [(r, c) for r, c in ahead if 0 <= r < rows and 0 <= c < columns]
            turn = (place[1] if right else place[0]) % (hops + 1)
            _multicast(program, place, inside, words, index * (hops + 1) + turn)
    return program


def transpose(words: int, extent: int) -> Program:
    """The PE in row r and column c to that in row c and column r, along the row first."""
    program = Program(extent, extent)
    for row in range(extent):
        for column in range(extent):
            if row != column:
                # Of senders beside each other in a row, none has another's way in any router.
                colour = column + extent * (row > column)
                _multicast(program, (row, column), [(column, row)], words, colour)
    return program

"""Shifts around a ring that lies over a line, for each row of a grid."""

from collections.abc import Sequence

from tvm_ext.hardware.wafer.simulator.program import Program


def cannon_shift(words: int, extent: int, rows: int = 1) -> Program:
    """In the order of the line: the last sends to the first."""
    return _shift(words, list(range(extent)), rows)


def interleaved_shift(words: int, extent: int, rows: int = 1) -> Program:
    """Every other PE on the way out, the rest on the way back."""
    return _shift(words, [*range(0, extent, 2), *reversed(range(1, extent, 2))], rows)


def _shift(words: int, order: Sequence[int], rows: int) -> Program:
    program = Program(rows, len(order))
    if len(order) == 1:
        return program
    for row in range(rows):
        for index, column in enumerate(order):
            target = (row, order[(index + 1) % len(order)])
            stream = program.stream((row, column), [target], words, ring_colour(order, index))
            program.send(stream)
            program.receive(target, stream)
    return program


def ring_colour(order: Sequence[int], index: int) -> int:
    """A colour of the message to the next of a ring, that no router on its way has otherwise.

    Two in turn to the east, and two to the west.
    """
    back = order[(index + 1) % len(order)] < order[index]
    return index % 2 + 2 * back

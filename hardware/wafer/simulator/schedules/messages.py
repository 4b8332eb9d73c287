"""Messages and multicasts."""

from tvm_ext.hardware.wafer.simulator.program import Program
from tvm_ext.hardware.wafer.simulator.routes import Place


def message(words: int, hops: int, senders: int = 1) -> Program:
    """The first ``senders`` PEs of a line to the PEs ``hops`` farther: ways that share links."""
    program = Program(1, hops + senders)
    for place in range(senders):
        target = (0, place + hops)
        stream = program.stream((0, place), [target], words, colour=place)
        program.send(stream)
        program.receive(target, stream)
    return program


def multicast(words: int, extent: int, root: int = 0) -> Program:
    """The PE at place ``root`` of a line to all others."""
    others = [(0, place) for place in range(extent) if place != root]
    return _to_all(Program(1, extent), (0, root), others, words)


def multicast_2d(words: int, rows: int, columns: int) -> Program:
    """The PE in the corner to all others of a grid."""
    others = [(row, column) for row in range(rows) for column in range(columns)][1:]
    return _to_all(Program(rows, columns), (0, 0), others, words)


def _to_all(program: Program, root: Place, others: list[Place], words: int) -> Program:
    if others:
        stream = program.stream(root, others, words, colour=0)
        program.send(stream)
        for place in others:
            program.receive(place, stream)
    return program

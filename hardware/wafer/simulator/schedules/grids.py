"""Patterns of whole grids: SUMMA's broadcasts, halo exchange, transposition."""

from tvm_ext.hardware.wafer.simulator.program import Program
from tvm_ext.hardware.wafer.simulator.routes import Place


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


def _multicast(
    program: Program, root: Place, targets: list[Place], words: int, colour: int
) -> None:
    if not targets:
        return
    stream = program.stream(root, targets, words, colour)
    program.send(stream)
    for place in targets:
        program.receive(place, stream)

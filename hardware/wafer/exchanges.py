"""Exchanges in which all PEs take part at once: SUMMA's broadcasts, ring shifts, halos,
transposition.
"""

from tvm_ext.hardware.wafer.communication import (
    NOTHING,
    Communication,
    at_once,
    check_extent,
    check_words,
    communication,
    in_turn,
    is_alone,
    multicast,
    on_lines,
    step_cycles,
)
from tvm_ext.hardware.wafer.description import WaferDescription, WaferLimitError


def summa_broadcast(
    mesh: WaferDescription,
    row_words: float,
    column_words: float,
    rows: int,
    columns: int,
    row_root: int = 0,
    column_root: int = 0,
) -> Communication:
    """Both broadcasts of one step.

    With B words along a row and B' along a column, over at most L and L' hops:

        cycles = max(B + L, B' + L') + min(B, B') + 2 T_R + 1

    since the PE that sends both, and PEs that receive both, share their ramps between them.

    Parameters
    ----------
    row_words, column_words
        Words of the tile that goes along a row, and of the one that goes along a column.
    rows, columns
        The grid.
    row_root, column_root
        The column of PEs that sends along the rows, and the row that sends along the columns. A
        sender in the middle has half of the way.

    The colours are those of one step: with one for each sender, a grid of N x N needs N for the
    rows and N for the columns, the O(N) paths of WaferLLM's table; routers that are set anew
    between steps need no more than those of one.
    """
    along_rows = on_lines(multicast(mesh, row_words, columns, row_root), rows)
    along_columns = on_lines(multicast(mesh, column_words, rows, column_root), columns)
    return at_once([along_rows, along_columns])


# Shifts: every PE of a line hands its tile to the next of a ring and takes another, at once.
#
# C. He et al., "WaferLLM: large language model inference at wafer scale", OSDI 2025. On a mesh a
# ring has to be laid over a line: Cannon's, in the order of the line, has one message over all of
# it; MeshGEMM's, which takes every other PE on the way out and the rest on the way back, has none
# over more than two hops. All messages have links of their own.


def cannon_shift(mesh: WaferDescription, words: float, extent: int) -> Communication:
    """One shift in the order of the line: B + (P - 1) + 2 T_R + 1 cycles, the way of the last."""
    return _shift(mesh, words, extent, max(1, extent - 1))


def interleaved_shift(mesh: WaferDescription, words: float, extent: int) -> Communication:
    """One shift of MeshGEMM's ring: B + 2 + 2 T_R + 1 cycles."""
    return _shift(mesh, words, extent, min(2, extent - 1))


def _shift(mesh: WaferDescription, words: float, extent: int, longest: int) -> Communication:
    if is_alone(words, extent):
        return NOTHING
    hops = 2 * (extent - 1)
    return communication(
        mesh,
        contention=words,
        energy=words * hops,
        distance=longest,
        depth=1,
        links=hops,
        colours=min(3, extent),
        buffer_words=words,
    )


# Halo exchange of a star stencil: each PE gets the edges of the PEs north, east, south and west.
#
# M. Jacquelin, M. Araya-Polo, J. Meng, "Scalable distributed high-order stencil computations",
# SC22: with one column of cells a PE, a stencil of radius 4 takes the columns of the four nearest
# PEs in each direction, which each sender's routers copy on the way.


def halo(
    mesh: WaferDescription,
    row_words: float,
    column_words: float,
    rows: int,
    columns: int,
    hops: int = 1,
) -> Communication:
    """All exchanges of one step at once.

    Every PE sends an edge in each direction, over ``hops`` hops; the ramp of a PE in the middle
    takes those of up to 2 ``hops`` PEs of its row and as many of its column:

        cycles = C + 1 + 2 T_R + 1

    since words from farther off arrive while those of the neighbours are still taken in.

    Parameters
    ----------
    row_words, column_words
        Words of the edge that goes to PEs of the same row (east and west), and of the one that goes
        to PEs of the same column.
    rows, columns
        The grid.
    hops
        How many PEs far an edge is needed: 1 unless a tile is narrower than the stencil's radius.

    Raises
    ------
    WaferLimitError
        ``hops`` is below 1.
    """
    check_words(min(row_words, column_words))
    check_extent("rows", rows)
    check_extent("columns", columns)
    if hops < 1:
        raise WaferLimitError(f"hops is {hops}; expected 1 or more")
    received = row_words * _reach(columns, hops) + column_words * _reach(rows, hops)
    sent_along_row = row_words * min(2, columns - 1)
    sent = sent_along_row + column_words * min(2, rows - 1)
    links = 2 * rows * (columns - 1) + 2 * columns * (rows - 1)
    if links == 0:
        return NOTHING
    busiest = max(received, sent)
    return communication(
        mesh,
        contention=busiest,
        energy=row_words * rows * _line_hops(columns, hops)
        + column_words * columns * _line_hops(rows, hops),
        distance=min(hops, max(rows, columns) - 1),
        depth=1,
        links=links,
        colours=2 * min(hops + 1, columns) * (columns > 1) + 2 * min(hops + 1, rows) * (rows > 1),
        buffer_words=received,
        cycles=busiest + mesh.hop_cycles + step_cycles(mesh),
    )


def _reach(extent: int, hops: int) -> int:
    """Other PEs of a line within ``hops`` of the one that has the most."""
    return min(extent - 1, 2 * hops)


def _line_hops(extent: int, hops: int) -> int:
    """Links that one word of each PE crosses in both directions of a line."""
    return 2 * sum(min(hops, place) for place in range(extent))


# Transposition of a matrix that lies in tiles on a square grid: tile (r, c) goes to PE (c, r).
#
# Words go along the row first, so that all of row r turn at PE (r, r). In the last row they all
# come to the corner over one link.


def transpose(mesh: WaferDescription, words: float, extent: int) -> Communication:
    """Tiles of ``words`` words on ``extent`` x ``extent`` PEs, all at once.

        cycles = (P - 1) B + 1 + (P - 1) + 2 T_R + 1

    The link into the corner of the last row carries the tiles of P - 1 PEs in turn, the nearest
    first, whose words hide the way of the others; the last tile has P - 1 hops left to go.

    The router in a corner tells P tiles apart, so that a large grid needs more colours than there
    are: ``tvm_ext.hardware.wafer.description.check_limits`` refuses it.
    """
    if is_alone(words, extent):
        return NOTHING
    others = extent - 1
    return communication(
        mesh,
        contention=others * words,
        # The sum of 2 |r - c| over all PEs.
        energy=words * 2 * (extent**3 - extent) / 3,
        distance=2 * others,
        depth=1,
        links=2 * extent * others,
        colours=extent,
        buffer_words=words,
        cycles=in_turn(mesh, words, others) + mesh.hop_cycles * others + step_cycles(mesh),
    )

"""Halo exchange of a star stencil: each PE gets the edges of the PEs north, east, south and west.

M. Jacquelin, M. Araya-Polo, J. Meng, "Scalable distributed high-order stencil computations", SC22:
with one column of cells a PE, a stencil of radius 4 takes the columns of the four
nearest PEs in each direction, which each sender's routers copy on the way.
"""

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.communication import (
    NOTHING,
    Communication,
    check_extent,
    check_words,
    communication,
    step_cycles,
)
from tvm_ext.hardware.wafer.errors import MeshLimitError


def halo(
    mesh: MeshDescription,
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
    MeshLimitError
        ``hops`` is below 1.
    """
    check_words(min(row_words, column_words))
    check_extent("rows", rows)
    check_extent("columns", columns)
    if hops < 1:
        raise MeshLimitError(f"hops is {hops}; expected 1 or more")
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

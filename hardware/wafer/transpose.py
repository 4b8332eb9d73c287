"""Transposition of a matrix that lies in tiles on a square grid: tile (r, c) goes to PE (c, r).

Words go along the row first, so that all of row r turn at PE (r, r). In the last row they all come
to the corner over one link.
"""

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.communication import (
    NOTHING,
    Communication,
    check_extent,
    check_words,
    communication,
    in_turn,
    step_cycles,
)


def transpose(mesh: MeshDescription, words: float, extent: int) -> Communication:
    """Tiles of ``words`` words on ``extent`` x ``extent`` PEs, all at once.

        cycles = (P - 1) B + 1 + (P - 1) + 2 T_R + 1

    The link into the corner of the last row carries the tiles of P - 1 PEs in turn, the nearest
    first, whose words hide the way of the others; the last tile has P - 1 hops left to go.

    The router in a corner tells P tiles apart, so that a large grid needs more colours than there
    are: ``tvm_ext.hardware.wafer.limits.check_limits`` refuses it.
    """
    check_words(words)
    check_extent("extent", extent)
    if extent == 1:
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

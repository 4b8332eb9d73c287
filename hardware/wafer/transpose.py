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
)


def transpose(mesh: MeshDescription, words: float, extent: int) -> Communication:
    """Tiles of ``words`` words on ``extent`` x ``extent`` PEs, all at once.

        cycles = (P - 1) B + (P - 1) + 1 + 2 T_R + 1

    The links beside the corner of the last row carry the tiles of P - 1 PEs in turn; the last of
    them, which the ways of the others hide, has P - 1 hops left to go.

    A router beside the diagonal tells the tiles of P - 1 senders apart, so that a large grid has
    too few colours: :func:`tvm_ext.hardware.wafer.limits.check_limits` refuses it.
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
        distance=extent,
        depth=1,
        links=2 * extent * others,
        colours=others,
        buffer_words=words,
    )

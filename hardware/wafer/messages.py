"""Messages: one PE to another, to its line, to a grid.

B words over L hops take B + L + 2 T_R + 1 cycles: they leave the sender one a cycle, and each is
stored in one cycle. A router copies a wavelet to several links at no cost, so that a multicast
takes what the message to its farthest PE takes. P. Luczynski et al., "Near-optimal wafer-scale
reduce", HPDC 2024, arXiv 2404.15888.
"""

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.communication import (
    NOTHING,
    Communication,
    check_extent,
    check_words,
    communication,
)


def message(
    mesh: MeshDescription, words: float, hops: float, sharing: float = 1.0
) -> Communication:
    """``words`` words from one PE to another, ``hops`` away.

    ``sharing`` is how many such messages the busiest link of the way, or the ramp of the receiver,
    takes in turn: copies between PEs of which only the longest way and the worst link are known.
    Then the cycles are the most it can take: a part of the way may be hidden behind the words of
    others. Buffers and colours are those of one PE's message.
    """
    check_words(words)
    if hops == 0:
        return NOTHING
    return communication(
        mesh,
        contention=words * sharing,
        energy=words * hops,
        distance=hops,
        depth=1,
        links=max(1, round(hops)),
        colours=1,
        buffer_words=words,
    )


def multicast(mesh: MeshDescription, words: float, extent: int, root: int = 0) -> Communication:
    """``words`` words from the PE at place ``root`` to all others of a line of ``extent`` PEs."""
    check_words(words)
    check_extent("extent", extent)
    if extent == 1:
        return NOTHING
    return communication(
        mesh,
        contention=words,
        energy=words * (extent - 1),
        distance=max(root, extent - 1 - root),
        depth=1,
        links=extent - 1,
        colours=1,
        buffer_words=words,
    )


def multicast_2d(mesh: MeshDescription, words: float, rows: int, columns: int) -> Communication:
    """``words`` words from a corner of a grid to all others: along its row, then columns."""
    check_words(words)
    check_extent("rows", rows)
    check_extent("columns", columns)
    others = rows * columns - 1
    if others == 0:
        return NOTHING
    return communication(
        mesh,
        contention=words,
        energy=words * others,
        distance=rows + columns - 2,
        depth=1,
        links=others,
        colours=1,
        buffer_words=words,
    )

"""Shifts: every PE of a line hands its tile to the next of a ring and takes another, at once.

C. He et al., "WaferLLM: large language model inference at wafer scale", OSDI 2025. On a
mesh a ring has to be laid over a line: Cannon's, in the order of the line, has one message over all
of it; MeshGEMM's, which takes every other PE on the way out and the rest on the way back, has none
over more than two hops. All messages have links of their own.
"""

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.communication import (
    NOTHING,
    Communication,
    check_extent,
    check_words,
    communication,
)


def cannon_shift(mesh: MeshDescription, words: float, extent: int) -> Communication:
    """One shift in the order of the line: B + (P - 1) + 2 T_R + 1 cycles, the way of the last."""
    return _shift(mesh, words, extent, max(1, extent - 1))


def interleaved_shift(mesh: MeshDescription, words: float, extent: int) -> Communication:
    """One shift of MeshGEMM's ring: B + 2 + 2 T_R + 1 cycles."""
    return _shift(mesh, words, extent, min(2, extent - 1))


def interleaved_order(extent: int) -> list[int]:
    """The places of a line in the order of MeshGEMM's ring: 0, 2, 4, ..., 5, 3, 1."""
    return [*range(0, extent, 2), *range(1, extent, 2)[::-1]]


def _shift(mesh: MeshDescription, words: float, extent: int, longest: int) -> Communication:
    check_words(words)
    check_extent("extent", extent)
    if extent == 1:
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

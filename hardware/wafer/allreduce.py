"""Allreduces: every PE of a line ends with the sum of all vectors.

P. Luczynski et al., "Near-optimal wafer-scale reduce", HPDC 2024, arXiv 2404.15888, section 6 (ring;
reduce and broadcast); C. He et al., "WaferLLM: large language model inference at wafer scale", OSDI
2025, section 5 (K-tree). B is the length of the vectors in words, P the number of PEs.
"""

import math

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.communication import (
    NOTHING,
    Communication,
    check_extent,
    check_words,
    communication,
    in_sequence,
    step_cycles,
)
from tvm_ext.hardware.wafer.errors import MeshLimitError
from tvm_ext.hardware.wafer.messages import multicast


def ring(mesh: MeshDescription, words: float, extent: int) -> Communication:
    """P - 1 steps that scatter sums of P-ths of the vector, and P - 1 that gather them.

    The ring is the line and the way back over it:

        cycles = 2 (P - 1) (ceil(B / P) + 2 T_R + 1) + 4 P - 6

    A step sends what the step before left in memory. A part of the vector goes around twice, but
    for two hops of 1.
    """
    check_words(words)
    check_extent("extent", extent)
    if extent == 1:
        return NOTHING
    steps = 2 * (extent - 1)
    part = math.ceil(words / extent)
    ring_hops = 2 * (extent - 1)
    return communication(
        mesh,
        contention=steps * part,
        energy=steps * part * ring_hops,
        distance=4 * extent - 6,
        depth=steps,
        links=ring_hops,
        colours=min(3, extent),
        buffer_words=part,
    )


def reduce_broadcast(
    mesh: MeshDescription, words: float, extent: int, reduced: Communication
) -> Communication:
    """``reduced``, a reduce to the first PE of the line, and a multicast from there."""
    return in_sequence([reduced, multicast(mesh, words, extent)])


def k_tree(mesh: MeshDescription, words: float, extent: int, levels: int = 2) -> Communication:
    """Reduce to the middle in ``levels`` levels of groups, then a multicast from there.

    On a level, the line of leaders falls into equal groups; the vectors of each side of a group run
    to its middle in a chain, and the middle adds up the one and then the other. With c leaders
    before the middle, r behind it and s hops between leaders, a level takes

        B + max(B + r x, c x)   with x = 2 T_R + 1 + s   (B + c x for r = 0)

    WaferLLM counts K N^(1/K) / 2 relays (the steps of the longer sides) and N hops; the words of
    the second side, which no relay can hide, come on top of that here.

    Raises MeshLimitError for less than one level.
    """
    check_words(words)
    if levels < 1:
        raise MeshLimitError(f"levels is {levels}; expected 1 or more")
    check_extent("extent", extent)
    if extent == 1:
        return NOTHING
    places = list(range(extent))
    parts = []
    for level in range(levels, 0, -1):
        groups = level_groups(places, level)
        parts.append(_level(mesh, words, groups))
        places = [middle_of(group) for group in groups]
    return in_sequence([*parts, multicast(mesh, words, extent, root=places[0])])


def level_groups(places: list[int], levels_left: int) -> list[list[int]]:
    """Leaders in as equal groups as there can be, for as many levels again as are left."""
    count = len(places)
    size = math.ceil(count ** (1 / levels_left) - 1e-9)
    groups = math.ceil(count / size) if levels_left > 1 else 1
    edges = [index * count // groups for index in range(groups + 1)]
    return [places[first:last] for first, last in zip(edges, edges[1:])]


def middle_of(group: list[int]) -> int:
    """The leader that adds up its group."""
    return group[len(group) // 2]


def _level(mesh: MeshDescription, words: float, groups: list[list[int]]) -> Communication:
    largest = max(groups, key=len)
    if len(largest) == 1:
        return NOTHING
    before = len(largest) // 2
    behind = len(largest) - 1 - before
    side = max(abs(largest[0] - middle_of(largest)), abs(largest[-1] - middle_of(largest)))
    step = step_cycles(mesh) + mesh.hop_cycles * side / max(before, behind)
    last = max(words + behind * step, before * step) if behind else before * step
    spans = [group[-1] - group[0] for group in groups]
    return communication(
        mesh,
        contention=words * (2 if behind else 1),
        energy=words * sum(spans),
        distance=side,
        depth=max(before, behind),
        links=sum(spans),
        colours=min(2, before) + min(2, behind),
        cycles=words + last,
    )

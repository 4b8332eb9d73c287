"""Reduces and allreduces over a line of PEs, as closed forms."""

import math
from itertools import pairwise

from tvm_ext.hardware.wafer.communication import (
    NOTHING,
    Communication,
    check_extent,
    check_words,
    communication,
    in_turn,
    is_alone,
    multicast,
    step_cycles,
    taken_together,
)
from tvm_ext.hardware.wafer.description import WaferDescription, WaferLimitError


def star(mesh: WaferDescription, words: float, extent: int) -> Communication:
    """Every PE sends its vector to the first, the nearest first.

        cycles = B (P - 1) + 1 + 2 T_R + 1

    The way of all but the nearest is hidden behind the words before (unless a hop takes longer than
    B words). The published form, without the hop of the nearest, is one cycle less than a message
    for P = 2.
    """
    if is_alone(words, extent):
        return NOTHING
    received = words * (extent - 1)
    return communication(
        mesh,
        contention=received,
        energy=words * extent * (extent - 1) / 2,
        distance=extent - 1,
        depth=1,
        links=extent - 1,
        colours=1,
        cycles=in_turn(mesh, words, extent - 1) + step_cycles(mesh),
    )


def chain(mesh: WaferDescription, words: float, extent: int) -> Communication:
    """Each PE adds what comes from one neighbour and sends it on to the other, word by word.

    The best one for B well above T_R P.
    """
    if is_alone(words, extent):
        return NOTHING
    return communication(
        mesh,
        contention=words,
        energy=words * (extent - 1),
        distance=extent - 1,
        depth=extent - 1,
        links=extent - 1,
        colours=min(2, extent - 1),
    )


def tree(mesh: WaferDescription, words: float, extent: int) -> Communication:
    """Halves of the line, of halves, and so on, each added up in its first PE; then the pair.

    Of a line that is no power of two, the far part is the largest power of two below P, so that
    its words never meet those of the near part, which is done before. Both take rounds of B words,
    and the hops of all rounds are those of the line: with the rounds K = ceil(log2 P) in place of
    log2 P, the published form holds for any P.
    """
    if is_alone(words, extent):
        return NOTHING
    rounds = math.ceil(math.log2(extent))
    return communication(
        mesh,
        contention=words * rounds,
        energy=words * _tree_hops(extent),
        distance=extent - 1,
        depth=rounds,
        links=extent - 1,
        colours=rounds,
    )


def _tree_hops(extent: int) -> int:
    """Hops of one word of each message: the far part's own, the near part's, and the last."""
    hops = 0
    while extent > 1:
        rounds = math.ceil(math.log2(extent)) - 1
        far = 2**rounds
        near = extent - far
        hops += far // 2 * rounds + near
        extent = near
    return hops


def two_phase(
    mesh: WaferDescription,
    words: float,
    extent: int,
    group: int,
    *,
    first_step_cycles: float | None = None,
    start_cycles: float = 0.0,
) -> Communication:
    """Chains within groups of ``group`` PEs, then one chain over the first PEs of the groups.

    The second chain begins with vectors in memory, when the first have ended:

        cycles = 2 B + (P - 1) + s (S - 1) + (2 T_R + 1) (ceil(P / S) - 1) + start

    with S = ``group``. If P is no multiple of it, the group of the first PE is the smaller one.

    Parameters
    ----------
    first_step_cycles
        s, what a PE adds to a word in the first phase; by default the 2 T_R + 1 of the second. Fits
        to cycles of the vendor's simulator give 2 T_R.
    start_cycles
        Fixed time of both phases, to be fitted; by default none.

    Raises
    ------
    WaferLimitError
        ``group`` is not from 1 to ``extent``.
    """
    check_words(words)
    check_extent("extent", extent)
    if not 1 <= group <= extent:
        raise WaferLimitError(f"group is {group}; expected 1 to the {extent} PEs of the line")
    if extent == 1:
        return NOTHING
    groups = math.ceil(extent / group)
    phases = (group > 1) + (groups > 1)
    step = step_cycles(mesh)
    first_step = step if first_step_cycles is None else first_step_cycles
    between = extent - group
    return communication(
        mesh,
        contention=phases * words,
        energy=words * ((extent - groups) + between),
        distance=extent - 1,
        depth=group - 1 + groups - 1,
        links=extent - 1,
        colours=max((group > 1) + min(2, groups - 1), min(2, group - 1) + (groups > 1)),
        cycles=phases * words
        + mesh.hop_cycles * (extent - 1)
        + first_step * (group - 1)
        + step * (groups - 1)
        + start_cycles,
    )


def best_group(extent: int) -> int:
    """The size of a group of ``two_phase`` with the fewest steps; near the root of ``extent``."""
    check_extent("extent", extent)
    return min(range(1, extent + 1), key=lambda group: group + math.ceil(extent / group))


# Allreduces: every PE of a line ends with the sum of all vectors.
#
# P. Luczynski et al., "Near-optimal wafer-scale reduce", HPDC 2024, arXiv 2404.15888 (ring);
# C. He et al., "WaferLLM: large language model inference at wafer scale",
# OSDI 2025 (K-tree). B is the length of the vectors in words, P the number of PEs.


def ring(mesh: WaferDescription, words: float, extent: int) -> Communication:
    """P - 1 steps that scatter sums of P-ths of the vector, and P - 1 that gather them.

    The ring is the line and the way back over it:

        cycles = 2 (P - 1) (ceil(B / P) + 2 T_R + 1) + 4 P - 6

    A step sends what the step before left in memory. A part of the vector goes around twice, but
    for two hops of 1.
    """
    if is_alone(words, extent):
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


def k_tree(mesh: WaferDescription, words: float, extent: int, levels: int = 2) -> Communication:
    """Reduce to the middle in ``levels`` levels of groups, then a multicast from there.

    On a level, the vectors of both sides of a group run to its middle in a chain, and the middle
    adds words of both as they come. A chain passes on its first word when the leader has ended the
    level before, 2 T_R + 1 cycles and the hops between leaders after it came from the last one. If
    the first words of the sides reach the middle at f and g, it has added all at

        max(f + B, g + B, min(f, g) + 2 B)

    which is followed from leader to leader. WaferLLM counts K N^(1/K) / 2 relays, the steps of the
    longer sides, and N hops; that the middle takes in 2 B words a level comes on top of it.

    ``levels`` above log3(P) are left out: a group of fewer than three has no two sides.

    Raises WaferLimitError for less than one level.
    """
    check_words(words)
    check_extent("extent", extent)
    groups = k_tree_groups(extent, levels)
    if not groups:
        return NOTHING
    ends = [0.0] * extent
    for level in groups:
        for group in level:
            ends[middle_of(group)] = _end_of_group(mesh, words, group, ends)
    root = middle_of(groups[-1][0])
    spread = multicast(mesh, words, extent, root)
    spans = sum(group[-1] - group[0] for level in groups for group in level)
    longest = [max(level, key=len) for level in groups]
    depth = sum(len(group) // 2 for group in longest)
    sides = sum(min(2, len(group) - 1) for group in longest)
    return communication(
        mesh,
        contention=words * (sides + 1),
        energy=words * spans + spread.energy_word_hops,
        distance=max(root, extent - 1 - root) + spread.distance_hops,
        depth=depth + spread.depth,
        links=extent - 1 + spread.links,
        colours=sum(_group_colours(group) for group in longest) + spread.colours,
        buffer_words=words,
        cycles=ends[root] + spread.cycles,
    )


def k_tree_groups(extent: int, levels: int) -> list[list[list[int]]]:
    """The groups of each level of a K-tree, as places of their leaders in a line.

    As equal as there can be, and each of as many as the next ones will have. Raises WaferLimitError
    for less than one level.
    """
    if levels < 1:
        raise WaferLimitError(f"levels is {levels}; expected 1 or more")
    places = list(range(extent))
    found = []
    left = levels
    while len(places) > 1:
        left = max(1, min(left, int(math.log(len(places), 3) + 1e-9)))
        size = math.ceil(len(places) ** (1 / left) - 1e-9)
        count = math.ceil(len(places) / size)
        edges = [index * len(places) // count for index in range(count + 1)]
        found.append([places[first:last] for first, last in pairwise(edges)])
        places = [middle_of(group) for group in found[-1]]
        left -= 1
    return found


def middle_of(group: list[int]) -> int:
    """The leader that adds up its group."""
    return group[len(group) // 2]


def _end_of_group(
    mesh: WaferDescription, words: float, group: list[int], ends: list[float]
) -> float:
    """When the middle of a group has added all, if its leaders end the level before at ``ends``."""
    middle = len(group) // 2
    sides = (group[: middle + 1], group[: middle - 1 if middle else None : -1])
    arrivals = []
    for side in sides:
        if len(side) == 1:
            continue
        first = ends[side[0]]
        for leader, following in pairwise(side):
            way = step_cycles(mesh) + mesh.hop_cycles * abs(following - leader)
            first = max(first + way, ends[following])
        arrivals.append((first, words))
    return taken_together(arrivals) if arrivals else ends[group[0]]


def _group_colours(group: list[int]) -> int:
    """Colours in the middle of a group, or beside it: two in turn a chain."""
    return 1 + min(2, len(group) - 2) if len(group) > 1 else 0

"""Reduces: the vectors of a line of PEs are added up in its first PE.

P. Luczynski et al., "Near-optimal wafer-scale reduce", HPDC 2024, arXiv 2404.15888. B is
the length of the vectors in words, P the number of PEs. Every PE adds a word on arrival; in a chain
it sends it on in the same instruction.
"""

import math

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
from tvm_ext.hardware.wafer.errors import MeshLimitError


def star(mesh: MeshDescription, words: float, extent: int) -> Communication:
    """Every PE sends its vector to the first, the nearest first.

        cycles = B (P - 1) + 1 + 2 T_R + 1

    The way of all but the nearest is hidden behind the words before (unless a hop takes longer than
    B words). The published form, without the hop of the nearest, is one cycle less than a message
    for P = 2.
    """
    check_words(words)
    check_extent("extent", extent)
    if extent == 1:
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


def chain(mesh: MeshDescription, words: float, extent: int) -> Communication:
    """Each PE adds what comes from one neighbour and sends it on to the other, word by word.

    The best one for B well above T_R P.
    """
    check_words(words)
    check_extent("extent", extent)
    if extent == 1:
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


def tree(mesh: MeshDescription, words: float, extent: int) -> Communication:
    """Halves of the line, of halves, and so on, each added up in its first PE; then the pair.

    Of a line that is no power of two, the far part is the largest power of two below P, so that
    its words never meet those of the near part, which is done before. Both take rounds of B words,
    and the hops of all rounds are those of the line: with the rounds K = ceil(log2 P) in place of
    log2 P, the published form holds for any P.
    """
    check_words(words)
    check_extent("extent", extent)
    if extent == 1:
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
    mesh: MeshDescription,
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
    MeshLimitError
        ``group`` is not from 1 to ``extent``.
    """
    check_words(words)
    check_extent("extent", extent)
    if not 1 <= group <= extent:
        raise MeshLimitError(f"group is {group}; expected 1 to the {extent} PEs of the line")
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

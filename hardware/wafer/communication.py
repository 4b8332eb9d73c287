"""What one communication pattern costs, and the one place that turns its quantities into cycles.

P. Luczynski et al., "Near-optimal wafer-scale reduce", HPDC 2024, arXiv 2404.15888,
describe a pattern by its energy E (hops of all wavelets added up), contention C (most wavelets at
one place), distance L (longest way), depth D (longest chain of operations that wait for each other)
and the number N of links that it uses, and estimate

    cycles = max(C, E / N) + L + (2 T_R + 1) D

with T_R cycles of the ramp between a PE and its router, and one cycle for an operation. A pattern
whose schedule is known better has a form of its own, which its function states.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tvm_ext.hardware.wafer.description import WaferDescription, WaferLimitError


@dataclass(frozen=True)
class Communication:
    """One pattern on one mesh, from the first word sent to the last word stored.

    All numbers are of one line or grid that the pattern runs on; several lines of a mesh that do
    the same beside each other take the same cycles.

    Attributes
    ----------
    cycles : float
        From the common start to the last PE's end. Modelled.
    energy_word_hops : float
        E: links that words cross, added up over all words.
    contention_words : float
        C: the most words at one ramp or link, one after the other along the critical path.
    distance_hops : float
        L: hops of the longest way from first sender to last receiver.
    depth : float
        D: operations of PEs that wait for each other on that way.
    links : int
        N: directed links in use.
    colours : int
        Static routes that one router has to tell apart.
    buffer_bytes : float
        Memory of one PE for words received, besides the operand that it starts from. 0 where
        each word is added to it on arrival.
    """

    cycles: float
    energy_word_hops: float
    contention_words: float
    distance_hops: float
    depth: float
    links: int
    colours: int
    buffer_bytes: float


NOTHING = Communication(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0, 0.0)
"""What a pattern costs where there is no other PE."""


def step_cycles(mesh: WaferDescription) -> int:
    """2 T_R + 1: what a PE adds to a word that it takes in, works on and sends on."""
    return 2 * mesh.ramp_cycles + 1


def communication(
    mesh: WaferDescription,
    *,
    contention: float,
    energy: float,
    distance: float,
    depth: float,
    links: int,
    colours: int,
    buffer_words: float = 0.0,
    cycles: float | None = None,
) -> Communication:
    """A pattern from its quantities, in words and hops; ``cycles`` where it has a form of its own.

    Without one, the formula is that of the module's docstring.
    """
    if cycles is None:
        words = max(contention, energy / links)
        cycles = words + mesh.hop_cycles * distance + step_cycles(mesh) * depth
    return Communication(
        cycles=float(cycles),
        energy_word_hops=energy,
        contention_words=contention,
        distance_hops=distance,
        depth=depth,
        links=links,
        colours=colours,
        buffer_bytes=buffer_words * mesh.word_bytes,
    )


def in_sequence(parts: Sequence[Communication]) -> Communication:
    """Patterns one after the other: each starts everywhere when the one before has ended.

    They take turns with links and buffers, not with colours, whose routes are static.
    """
    return Communication(
        cycles=math.fsum(part.cycles for part in parts),
        energy_word_hops=math.fsum(part.energy_word_hops for part in parts),
        contention_words=math.fsum(part.contention_words for part in parts),
        distance_hops=math.fsum(part.distance_hops for part in parts),
        depth=math.fsum(part.depth for part in parts),
        links=max((part.links for part in parts), default=0),
        colours=sum(part.colours for part in parts),
        buffer_bytes=max((part.buffer_bytes for part in parts), default=0.0),
    )


def on_lines(part: Communication, lines: int) -> Communication:
    """The same pattern on several lines of a mesh, each with PEs and links of its own."""
    return replace(part, energy_word_hops=part.energy_word_hops * lines, links=part.links * lines)


def at_once(parts: Sequence[Communication]) -> Communication:
    """Patterns that all PEs start together and that use different links, such as one along the
    rows and one along the columns.

    They share the ramps, word by word: when the last of C words of one has passed, as many have of
    each longer one, and all of each shorter one. So a part takes

        cycles - C + sum over all parts j(min(C, C_j))

    and the longest of these is the time of all.
    """
    if not parts:
        return NOTHING
    return replace(
        in_sequence(parts),
        cycles=max(_sharing(part, parts) for part in parts),
        distance_hops=max(part.distance_hops for part in parts),
        depth=max(part.depth for part in parts),
        links=sum(part.links for part in parts),
        buffer_bytes=math.fsum(part.buffer_bytes for part in parts),
    )


def _sharing(part: Communication, parts: Sequence[Communication]) -> float:
    words = part.contention_words
    taken = math.fsum(min(words, other.contention_words) for other in parts)
    return part.cycles - words + taken


def in_turn(mesh: WaferDescription, words: float, senders: int) -> float:
    """When the words of all PEs on one side have passed a link or ramp, the nearest PE's first.

    They are one hop apart; each adds its words, or a hop where that takes longer.
    """
    return mesh.hop_cycles + words + (senders - 1) * max(words, mesh.hop_cycles)


def taken_together(arrivals: Sequence[tuple[float, float]]) -> float:
    """When a ramp has taken all words that arrive together.

    ``arrivals`` has, for each sender, when its first word is there and how many follow without a
    gap. The ramp is busy from some arrival to the end, with what has come since:

        max over i(first_i + sum of the words of all j with first_j >= first_i)
    """
    return max(
        first + math.fsum(words for other, words in arrivals if other >= first)
        for first, _ in arrivals
    )


def check_words(words: float) -> None:
    """Raises WaferLimitError for a negative number of words."""
    if words < 0:
        raise WaferLimitError(f"{words} words are to be sent; expected 0 or more")


def check_extent(name: str, extent: int) -> None:
    """Raises WaferLimitError for a line without PEs."""
    if extent < 1:
        raise WaferLimitError(f"{name} is {extent}; expected 1 PE or more")


def is_alone(words: float, extent: int) -> bool:
    """Whether nobody gets the words of a line of PEs. Raises WaferLimitError as the checks do."""
    check_words(words)
    check_extent("extent", extent)
    return extent == 1


# Messages: one PE to another, to its line, to a grid.
#
# B words over L hops take B + L + 2 T_R + 1 cycles: they leave the sender one a cycle, and each
# is stored in one cycle. A router copies a wavelet to several links at no cost, so that a
# multicast takes what the message to its farthest PE takes. P. Luczynski et al., "Near-optimal
# wafer-scale reduce", HPDC 2024, arXiv 2404.15888.


def message(
    mesh: WaferDescription, words: float, hops: float, sharing: float = 1.0
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


def multicast(mesh: WaferDescription, words: float, extent: int, root: int = 0) -> Communication:
    """``words`` words from the PE at place ``root`` to all others of a line of ``extent`` PEs."""
    if is_alone(words, extent):
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


def multicast_2d(mesh: WaferDescription, words: float, rows: int, columns: int) -> Communication:
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

"""The sweep over time: sections, the bound, and the parts that can be planned one by one.

A section is a set of buffers that are alive together and that no larger such set holds. Between two
sections nothing happens that a planner has to know: two buffers share memory wrongly if and only if
they are in a common section. Times are replaced by the numbers of sections.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tvm_ext.memory_planner.plan import Buffer

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Problem:
    """Buffers that hang together in time, in units of the largest number that divides all sizes.

    Attributes
    ----------
    places : Numbers
        Where each buffer stands among those that were given.
    sizes, alignments : Numbers
        Padded sizes and alignments, in units.
    firsts, ends : Numbers
        The sections in which each buffer is alive: from ``firsts`` on, before ``ends``.
    widths : Numbers
        How many places of the schedule each buffer is alive.
    sections : list[list[int]]
        The buffers of each section, as indices into the arrays.
    unit : int
        The bytes of a unit.
    """

    places: Numbers
    sizes: Numbers
    alignments: Numbers
    firsts: Numbers
    ends: Numbers
    widths: Numbers
    sections: list[list[int]]
    unit: int

    @cached_property
    def totals(self) -> Numbers:
        """The sum of the sizes in each section."""
        return np.array([int(self.sizes[section].sum()) for section in self.sections], np.int64)

    @property
    def bound(self) -> int:
        """The largest sum of the sizes in one section, in units."""
        return int(self.totals.max())

    def overlaps(self) -> Flags:
        """For each two different buffers whether they are alive together."""
        meets = (self.firsts[:, None] < self.ends) & (self.firsts < self.ends[:, None])
        np.fill_diagonal(meets, False)
        return meets

    def height(self, offsets: Numbers) -> int:
        """The size of the arena with these offsets, in units."""
        return int((offsets + self.sizes).max())


def independent_problems(buffers: Sequence[Buffer]) -> list[Problem]:
    """Divides the buffers where no buffer is alive across, and leaves out those of no bytes."""
    used = [place for place, buffer in enumerate(buffers) if buffer.size]
    used.sort(key=lambda place: (buffers[place].first, buffers[place].last, place))
    groups: list[list[int]] = []
    reach = 0
    for place in used:
        if not groups or buffers[place].first > reach:
            groups.append([])
            reach = buffers[place].last
        groups[-1].append(place)
        reach = max(reach, buffers[place].last)
    return [_problem(buffers, group) for group in groups]


def _problem(buffers: Sequence[Buffer], places: Sequence[int]) -> Problem:
    members = [buffers[place] for place in places]
    sizes = [buffer.padded_size for buffer in members]
    alignments = [buffer.alignment for buffer in members]
    unit = math.gcd(*sizes, *alignments)
    if len(set(alignments)) == 1:
        # All offsets are sums of sizes, each of which is a multiple of the one alignment.
        unit = math.gcd(*sizes)
        alignments = [unit] * len(members)
    sections, firsts, ends = _sections(members)
    return Problem(
        np.array(places, np.int64),
        np.array(sizes, np.int64) // unit,
        np.array(alignments, np.int64) // unit,
        np.array(firsts, np.int64),
        np.array(ends, np.int64),
        np.array([buffer.last - buffer.first + 1 for buffer in members], np.int64),
        sections,
        unit,
    )


def _sections(members: Sequence[Buffer]) -> tuple[list[list[int]], list[int], list[int]]:
    """The sections in the order of time, and where each buffer begins and ends in them."""
    # At one place a buffer that begins comes before one that ends, for the end is inclusive.
    events = [(buffer.first, 0, index) for index, buffer in enumerate(members)]
    events += [(buffer.last, 1, index) for index, buffer in enumerate(members)]
    sections: list[list[int]] = []
    firsts, ends = [0] * len(members), [0] * len(members)
    alive: set[int] = set()
    began = False
    for _, is_end, index in sorted(events):
        if is_end:
            if began:
                sections.append(sorted(alive))
                began = False
            alive.discard(index)
            ends[index] = len(sections)
        else:
            alive.add(index)
            firsts[index] = len(sections)
            began = True
    return sections, firsts, ends

"""Greedy placement: one buffer after the other, each into a gap between those placed before it.

The orders are those of the literature. By size: "greedy by size" of TensorFlow Lite (Pisarchyk and
Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020). By area, which is size
times lifetime, and by lifetime: MiniMalloc (Moffitt, ASPLOS 2023). By contention, which is the
largest sum of live sizes that a buffer is part of: TelaMalloc (Maas et al., ASPLOS 2023). By start:
the order in which a program allocates.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tvm_ext.memory_planner.sections import Numbers, Problem


@dataclass(frozen=True)
class Placement:
    """Offsets of a problem in its units, the height that they reach, and what found them."""

    offsets: Numbers
    height: int
    method: str


class Placer:
    """Places buffers one by one; each can be taken into account or forgotten again in any order."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._aligned = bool((problem.alignments > 1).any())
        self.offsets = np.zeros(len(problem.sizes), np.int64)
        self.placed = np.zeros(len(problem.sizes), np.bool_)

    def neighbours(self, index: int) -> Numbers:
        """The buffers placed so far that are alive together with one, by rising offset."""
        problem = self._problem
        met = self.placed & (problem.firsts < problem.ends[index])
        met &= problem.ends > problem.firsts[index]
        found = met.nonzero()[0]
        return found[self.offsets[found].argsort(kind="stable")]

    def place(self, index: int, best_fit: bool) -> int:
        """Places a buffer into the lowest or the smallest gap; returns where it ends."""
        size = int(self._problem.sizes[index])
        near = self.neighbours(index)
        offset = 0
        if len(near):
            offset = self._gap(near, size, int(self._problem.alignments[index]), best_fit)
        self.offsets[index] = offset
        self.placed[index] = True
        return offset + size

    def _gap(self, near: Numbers, size: int, alignment: int, best_fit: bool) -> int:
        begins = self.offsets[near]
        tops = np.maximum.accumulate(begins + self._problem.sizes[near])
        starts = np.concatenate(([0], tops))
        if self._aligned:
            starts = -(-starts // alignment) * alignment
        spare = begins - starts[:-1] - size
        fitting = (spare >= 0).nonzero()[0]
        if not len(fitting):
            return int(starts[-1])
        chosen = fitting[spare[fitting].argmin()] if best_fit else fitting[0]
        return int(starts[chosen])


def greedy_placements(problem: Problem) -> Iterator[Placement]:
    """Yields the placement of each order, with the lowest and with the smallest gap."""
    for name, order in orders(problem):
        for best_fit in (False, True):
            placer = Placer(problem)
            height = max(placer.place(index, best_fit) for index in order)
            fit = "best fit" if best_fit else "first fit"
            yield Placement(placer.offsets, height, f"{fit} by {name}")


def orders(problem: Problem) -> list[tuple[str, list[int]]]:
    """The orders with their names, the largest or the earliest first; ties by size, then place."""
    sizes, widths = problem.sizes, problem.widths
    keys: Sequence[tuple[str, tuple[Numbers, ...]]] = [
        ("size", (-sizes, -widths)),
        ("area", (-sizes * widths, -sizes)),
        ("contention", (-contention(problem, problem.totals), -sizes * widths)),
        ("lifetime", (-widths, -sizes)),
        ("start", (problem.firsts, -sizes)),
    ]
    return [(name, _sorted_by(key)) for name, key in keys]


def _sorted_by(keys: Sequence[Numbers]) -> list[int]:
    # lexsort takes the most important key last.
    order: list[int] = np.lexsort(tuple(reversed(keys))).tolist()
    return order


def contention(problem: Problem, totals: Numbers) -> Numbers:
    """For each buffer the largest of the sums of the sections in which it is alive."""
    spans = zip(problem.firsts.tolist(), problem.ends.tolist(), strict=True)
    return np.array([int(totals[first:end].max()) for first, end in spans], np.int64)


def best_of(
    placements: Iterator[Placement], good_enough: int, out_of_time: Callable[[], bool]
) -> Placement:
    """The lowest placement; it stops at one that is good enough, or after one out of time."""
    best = next(placements)
    for placement in placements:
        if best.height <= good_enough or out_of_time():
            break
        if placement.height < best.height:
            best = placement
    return best

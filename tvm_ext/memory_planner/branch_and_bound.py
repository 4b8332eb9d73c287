"""Exact placement: MiniMalloc's branch and bound over canonical solutions.

Moffitt, "MiniMalloc: A Lightweight Memory Allocator for Hardware-Accelerated Machine Learning",
ASPLOS 2023. The search answers whether an arena of a given height is enough.

- Canonical solutions: buffers are placed by rising offset, each at the lowest offset that those
  below it leave. Every solution can be pressed down to such a one.
- Spatial inference: what is not yet placed in a section lies above the lowest offset that is left
  there. If that and the sum of the sizes exceed the height, the branch is given up.
- Dominance: a buffer is not placed above a gap that another one fits into. Of buffers of one size
  and time, one is tried.
- Decomposition: once no buffer that is left reaches across a point of time, the two sides are
  solved one by one.

A branch can fail because of a few buffers that were placed long before. The search can then return
to the last of these at once ("jumps", as conflict-directed backjumping does). What it takes for the
cause is the buffers below those that did not fit, which need not be all of it. A search with jumps
therefore finds solutions faster but proves nothing.

A search that took long in vain says which sections are hard. The order "F" puts the buffers first
in whose sections most branches failed (Boussemart et al., "Boosting Systematic Search by Weighting
Constraints", ECAI 2004), so that a search that starts anew decides about these early.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvm_ext.memory_planner.sections import Flags, Numbers, Problem

# How many steps may pass between two looks at the clock.
_STEPS_BETWEEN_LOOKS = 32
# What failures of earlier searches count for with each later one.
_KEPT_OF_FAILURES = 0.87


@dataclass(frozen=True)
class SearchSettings:
    """How a search goes through the tree.

    Attributes
    ----------
    height : int
        The height of the arena, in units, that the solution must not exceed.
    order : str
        Which buffers come first among those at one offset: "T" the largest contention, "W" the
        longest lifetime, "A" the largest area, "F" the most failures so far; the second letter
        decides between equals of the first, and so on.
    steps : int
        How many placements are tried at most.
    jumps : bool
        Whether it returns to what seems to be the cause of a failure.
    seed : int | None
        Of random factors on the keys of the order; without one there are none.
    """

    height: int
    order: str
    steps: int
    jumps: bool = False
    seed: int | None = None


@dataclass(frozen=True)
class SearchResult:
    """What came of a search.

    Attributes
    ----------
    offsets : Numbers | None
        The solution, if one was found.
    proved_none : bool
        Whether it is proved that there is none.
    """

    offsets: Numbers | None
    proved_none: bool


@dataclass(frozen=True)
class _State:
    """What is known after some placements.

    ``lowest`` is the lowest offset of each buffer that is not placed, and ``_PLACED`` for the
    others. It has one entry more, for the places of the member table that hold no buffer.
    ``supports`` is the buffer that each one lies on at its lowest offset. ``totals`` is what is
    left to place in each section.
    """

    lowest: Numbers
    supports: Numbers
    totals: Numbers


@dataclass(frozen=True)
class _Part:
    """Buffers in the order of their ranks, the sections they are in, and these as a table.

    A column of the table is a section; short ones are filled with the number of the extra entry.
    """

    order: Numbers
    first: int
    end: int
    members: Numbers


@dataclass
class _Node:
    """A part to solve, the candidates that are left to try, and the parts behind the last one.

    ``room`` is the highest floor with which each section still fits; ``free`` says which buffers
    are not placed.
    """

    part: _Part
    state: _State
    candidates: list[tuple[int, int, int]]
    room: Numbers
    cause: int
    free: Flags
    tried: int = 0
    chosen: int = -1
    pending: list[tuple[_Part, _State, int, int]] = field(default_factory=list)


# Above every offset, and far enough from the end of the type that sizes can be added.
_PLACED = 1 << 60


class BranchAndBound:
    """Searches for placements of one problem; the tables it needs are made once.

    Parameters
    ----------
    problem : Problem
        Its number of buffers squared is the size of a table: some thousands at most.
    out_of_time : Callable[[], bool]
        Asked now and then; the search ends without a result when it says so.
    """

    def __init__(self, problem: Problem, out_of_time: Callable[[], bool]) -> None:
        self._problem = problem
        self._out_of_time = out_of_time
        self._overlaps: Flags = problem.overlaps()
        count = len(problem.sizes)
        self._table = np.full(
            (max(map(len, problem.sections)), len(problem.sections)), count, np.int64
        )
        for column, section in enumerate(problem.sections):
            self._table[: len(section), column] = section
        self._sizes: list[int] = problem.sizes.tolist()
        self._spans = list(zip(problem.firsts.tolist(), problem.ends.tolist(), strict=True))
        self._alignments = problem.alignments
        self._aligned = bool((problem.alignments > 1).any())
        kinds = np.stack((problem.firsts, problem.ends, problem.sizes, problem.alignments))
        inverse = np.unique(kinds, axis=1, return_inverse=True)[1]
        self._kinds: list[int] = inverse.reshape(-1).tolist()
        self._has_equals = max(self._kinds) + 1 < count
        # Branches that failed in each section, those of earlier searches for less.
        self._failures = np.zeros(len(problem.sections))
        # Sets of buffers are numbers with one bit for each; the extra entry is in none.
        self._bits = [1 << index for index in range(count)] + [0]

    def search(self, settings: SearchSettings) -> SearchResult:
        """Looks for a placement of at most the given height.

        The failures that the order "F" asks for are those of all searches of this object.
        """
        self._settings = settings
        self._failures *= _KEPT_OF_FAILURES
        self._random = None if settings.seed is None else np.random.default_rng(settings.seed)
        self._offsets = np.zeros(len(self._sizes), np.int64)
        count = len(self._sizes)
        state = _State(
            np.append(np.zeros(count, np.int64), _PLACED),
            np.full(count + 1, count, np.int64),
            self._problem.totals,
        )
        part = self._part(np.arange(count), 0, len(self._problem.sections), state)
        stack = [self._node(part, state, 0, 0)]
        steps = 0
        while stack:
            node = stack[-1]
            if node.pending:
                stack.append(self._node(*node.pending.pop()))
            elif node.chosen >= 0 or not len(node.part.order):
                stack.pop()
            elif node.tried < len(node.candidates):
                self._try_next(node)
                steps += 1
                if steps > settings.steps or (
                    steps % _STEPS_BETWEEN_LOOKS == 0 and self._out_of_time()
                ):
                    return SearchResult(None, False)
            else:
                self._fail(stack)
                if not stack:
                    return SearchResult(None, not settings.jumps)
        return SearchResult(self._offsets, False)

    def _fail(self, stack: list[_Node]) -> None:
        """Removes a node without a solution, and with jumps those that are not to blame."""
        cause = stack.pop().cause
        while stack:
            node = stack[-1]
            chosen = self._bits[node.chosen]
            if cause & chosen or not self._settings.jumps:
                node.cause |= cause & ~chosen
                node.chosen = -1
                node.pending.clear()
                return
            stack.pop()

    def _part(self, buffers: Numbers, first: int, end: int, state: _State) -> _Part:
        """Ranks the buffers, and makes a table without those that are placed."""
        table = self._table[:, first:end]
        left = state.lowest[table] < _PLACED
        rows = int(left.sum(axis=0).max())
        to_front = np.argsort(~left, axis=0, kind="stable")[:rows]
        members = np.ascontiguousarray(np.take_along_axis(table, to_front, axis=0))
        return _Part(self._ranked(buffers, state.totals), first, end, members)

    def _ranked(self, buffers: Numbers, totals: Numbers) -> Numbers:
        problem = self._problem
        keys: list[NDArray[np.float64]] = []
        key: NDArray[Any]
        for letter in self._settings.order:
            if letter == "T":
                key = self._contention(buffers, totals)
            elif letter == "F":
                counts = np.concatenate(([0.0], self._failures.cumsum()))
                key = counts[problem.ends[buffers]] - counts[problem.firsts[buffers]]
            elif letter == "W":
                key = problem.widths[buffers]
            else:
                key = problem.widths[buffers] * problem.sizes[buffers]
            weights = -key.astype(np.float64)
            if self._random is not None:
                weights *= self._random.uniform(1.0, 1.3, len(buffers))
            keys.append(weights)
        return buffers[np.lexsort((buffers, *reversed(keys)))]

    def _contention(self, buffers: Numbers, totals: Numbers) -> Numbers:
        spans = np.empty(2 * len(buffers), np.int64)
        spans[::2] = self._problem.firsts[buffers]
        spans[1::2] = self._problem.ends[buffers]
        # An end may lie behind the last section.
        largest: Numbers = np.maximum.reduceat(np.append(totals, 0), spans)[::2]
        return largest

    def _node(self, part: _Part, state: _State, least: int, least_rank: int) -> _Node:
        """The candidates of a part: (offset, rank, buffer) by rising offset, then rank."""
        lowest = state.lowest[part.order]
        ranks = (lowest < _PLACED).nonzero()[0]
        totals = state.totals[part.first : part.end]
        room = np.where(totals > 0, self._settings.height - totals, _PLACED)
        if not len(ranks):
            nothing = _Part(ranks, part.first, part.end, part.members)
            return _Node(nothing, state, [], room, 0, self._overlaps[0])
        offsets, buffers = lowest[ranks], part.order[ranks]
        gap_end = (offsets + self._problem.sizes[buffers]).min()
        allowed = (offsets > least) | ((offsets == least) & (ranks >= least_rank))
        allowed &= offsets < gap_end
        # Nothing that is placed later lies lower, and so no section may start above its room.
        fits = allowed & (offsets <= room.min())
        cause = 0
        if self._settings.jumps and (fits != allowed).any():
            cause = self._cause(part.first + int(room.argmin()), state)
            for buffer in buffers[allowed & ~fits].tolist():
                cause |= self._bits[state.supports[buffer]]
        chosen = fits.nonzero()[0]
        chosen = chosen[offsets[chosen].argsort(kind="stable")]
        columns = (offsets[chosen].tolist(), ranks[chosen].tolist(), buffers[chosen].tolist())
        candidates = list(zip(*columns, strict=True))
        if self._has_equals:
            # Of buffers of one size and time that wait, one stands for all.
            by_kind: dict[int, tuple[int, int, int]] = {}
            for one in candidates:
                by_kind.setdefault(self._kinds[one[2]], one)
            candidates = list(by_kind.values())
        free = state.lowest[:-1] < _PLACED
        return _Node(part, state, candidates, room, cause, free)

    def _cause(self, section: int, state: _State) -> int:
        """The buffers that those lie on which are left to place in a section."""
        found = 0
        for member in self._problem.sections[section]:
            if state.lowest[member] < _PLACED:
                found |= self._bits[state.supports[member]]
        return found

    def _try_next(self, node: _Node) -> None:
        """Places the next candidate; if no section is too full then, its parts are to be solved."""
        offset, rank, buffer = node.candidates[node.tried]
        node.tried += 1
        first, end = self._spans[buffer]
        size = self._sizes[buffer]
        if not (self._overlaps[buffer] & node.free).any():
            # Nothing lies above it, so that no other choice here can be better.
            node.tried = len(node.candidates)
        lowest = self._raised(node.state.lowest, buffer, offset + size)
        floors = lowest.take(node.part.members).min(axis=0)
        room = node.room.copy()
        room[first - node.part.first : end - node.part.first] += size
        # A section in which all is placed has no floor.
        too_full = (floors > room) & (floors < _PLACED)
        supports = self._supports(node.state, buffer, lowest)
        node.cause |= self._bits[node.state.supports[buffer]]
        if too_full.any():
            section = node.part.first + int(too_full.argmax())
            self._failures[section] += 1
            if self._settings.jumps:
                state = _State(lowest, supports, node.state.totals)
                node.cause |= self._cause(section, state) & ~self._bits[buffer]
            return
        totals = node.state.totals.copy()
        totals[first:end] -= size
        state = _State(lowest, supports, totals)
        self._offsets[buffer] = offset
        node.chosen = buffer
        node.pending = self._parts(node, state, offset, rank, buffer)

    def _raised(self, lowest: Numbers, buffer: int, top: int) -> Numbers:
        """The lowest offsets after a buffer was placed that ends at ``top``."""
        raised = lowest.copy()
        # Those that are placed stay above every offset.
        least = -(-top // self._alignments) * self._alignments if self._aligned else top
        np.maximum(raised[:-1], least, out=raised[:-1], where=self._overlaps[buffer])
        raised[buffer] = _PLACED
        return raised

    def _supports(self, state: _State, buffer: int, lowest: Numbers) -> Numbers:
        """Which buffers lie on which after one was placed; only jumps ask for it."""
        if not self._settings.jumps:
            return state.supports
        return np.where(lowest > state.lowest, buffer, state.supports)

    def _parts(
        self, node: _Node, state: _State, offset: int, rank: int, buffer: int
    ) -> list[tuple[_Part, _State, int, int]]:
        """What is left, divided where nothing that is left reaches across, the last part first."""
        part = node.part
        left = part.order[state.lowest[part.order] < _PLACED]
        if not len(left):
            return []
        firsts, ends = (
            self._problem.firsts[left] - part.first,
            self._problem.ends[left] - part.first,
        )
        length = part.end - part.first
        across = np.bincount(firsts, minlength=length) - np.bincount(ends - 1, minlength=length)
        across = across.cumsum()
        begin, end = (place - part.first for place in self._spans[buffer])
        cuts = (across[begin : end - 1] == 0).nonzero()[0] + begin + 1
        if not len(cuts):
            return [(part, state, offset, rank)]
        borders: Sequence[int] = [0, *cuts.tolist(), length]
        found = []
        for low, high in itertools.pairwise(borders):
            inside = left[(firsts < high) & (ends > low)]
            if len(inside):
                sub = self._part(inside, part.first + low, part.first + high, state)
                found.append((sub, state, 0, 0))
        return found[::-1]

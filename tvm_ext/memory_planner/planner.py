"""Finds offsets: the bound and greedy placement first, then searches in turn until time is up.

Parts of the program that no buffer is alive across are planned one by one, and share the arena.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tvm_ext.memory_planner import cp_sat
from tvm_ext.memory_planner.branch_and_bound import BranchAndBound, SearchSettings
from tvm_ext.memory_planner.greedy import Placement, best_of, greedy_placements, orders
from tvm_ext.memory_planner.local_search import local_search
from tvm_ext.memory_planner.plan import Buffer, MemoryPlan, check_buffers
from tvm_ext.memory_planner.sections import Numbers, Problem, independent_problems

_METHOD = "branch and bound"

# Orders of the branch and bound; each solves problems that the others do not.
_ORDERS = ("TWA", "TAW", "WAT", "AW")
# Placements that a search may try in its first round; each later round may try twice as many.
_FIRST_STEPS = 4000
# How many searches there are in a round that start from the failures of those before, each short.
_RESTARTS, _RESTART_STEPS = 32, 2000
# Deterministic seconds of CP-SAT, doubled each round. The first round leaves it out, for it is
# slow to start, and few problems are left then.
_SOLVER_EFFORT = 0.25
# Beyond this the table of overlaps, which grows with the square, takes too long to copy about.
_MOST_FOR_SEARCH = 3000


def plan_offsets(
    buffers: Sequence[Buffer], *, capacity: int | None = None, seconds: float = 1.0
) -> MemoryPlan:
    """Finds an arena that is as small as can be found in the time.

    Parameters
    ----------
    buffers : Sequence[Buffer]
        What needs memory, in any order.
    capacity : int | None
        Bytes that are there. The search ends at the first plan that fits into them; a plan that
        does not fit is returned like any other.
    seconds : float
        How long the searches may take. Greedy placement is not limited.

    Returns
    -------
    MemoryPlan
        The same one for the same arguments where the searches end before the time is up, as they
        do when they reach the bound or prove that nothing is below what they have.

    Raises
    ------
    PlanError
        If a buffer has a negative size, an alignment below 1 or an end before its start.
    """
    check_buffers(buffers)
    deadline = time.monotonic() + seconds
    works = [_Work(problem, deadline) for problem in independent_problems(buffers)]
    bound = max((work.bound for work in works), default=0)
    fits = max(bound, capacity or 0)
    for work in works:
        work.begin(fits)
    # The highest part decides about the arena, and what it cannot do the others need not.
    waiting = sorted(works, key=lambda work: -work.bound)
    while waiting:
        work = waiting.pop(0)
        fits = max(fits, *(other.proved for other in works))
        above = sum(other.height > fits for other in waiting)
        work.improve(fits, time.monotonic() + (deadline - time.monotonic()) / (1 + above))
        fits = max(fits, work.height)
    return _plan(buffers, works, bound)


def _plan(buffers: Sequence[Buffer], works: Sequence["_Work"], bound: int) -> MemoryPlan:
    offsets = [0] * len(buffers)
    for work in works:
        found = (work.best.offsets * work.problem.unit).tolist()
        for place, offset in zip(work.problem.places.tolist(), found, strict=True):
            offsets[place] = offset
    highest = max(works, key=lambda work: work.height, default=None)
    if highest is None:
        return MemoryPlan(tuple(offsets), 0, 0, "nothing to place", True)
    proved = max(work.proved for work in works)
    return MemoryPlan(
        tuple(offsets), highest.height, bound, highest.best.method, highest.height == proved
    )


class _Work:
    """One independent part: its best placement so far, and the height that it is proved to need.

    Heights of the class are in bytes, those of placements and of searches in units of the problem.
    """

    best: Placement

    def __init__(self, problem: Problem, deadline: float) -> None:
        self.problem = problem
        self.bound = problem.bound * problem.unit
        self._deadline = deadline
        # In units: no lower height is enough.
        self._proved = problem.bound

    @property
    def height(self) -> int:
        """The bytes that the best placement needs."""
        return self.best.height * self.problem.unit

    @property
    def proved(self) -> int:
        """The bytes that any placement needs, as far as that is known."""
        return self._proved * self.problem.unit

    def begin(self, fits: int) -> None:
        """Places greedily; ``fits`` bytes are good enough."""
        self.best = best_of(
            greedy_placements(self.problem), fits // self.problem.unit, self._out_of_time
        )

    def improve(self, fits: int, deadline: float) -> None:
        """Searches until ``fits`` bytes are enough, the best is proved to be so, or time is up."""
        self._deadline = deadline
        self._least = fits // self.problem.unit
        if self._is_done():
            return
        for attempt in self._attempts():
            attempt()
            if self._is_done() or self._out_of_time():
                return

    def _is_done(self) -> bool:
        return self.best.height <= max(self._least, self._proved)

    def _out_of_time(self) -> bool:
        return time.monotonic() > self._deadline

    def _attempts(self) -> Iterator[Callable[[], None]]:
        """The searches in turn, each round longer than the one before and in another order."""
        self._tree = None
        if len(self.problem.sizes) <= _MOST_FOR_SEARCH:
            self._tree = BranchAndBound(self.problem, self._out_of_time)
        for turn in itertools.count():
            steps = _FIRST_STEPS * 2**turn
            seeds = range(_RESTARTS * turn, _RESTARTS * (turn + 1))
            tried = _ORDERS if turn == 0 else (_ORDERS[turn % len(_ORDERS)],)
            for place, order in enumerate(tried):
                yield partial(self._search, self._goal, order, steps, False, None)
                yield partial(self._search, self._goal, order, 2 * steps, True, None)
                for seed in seeds[place :: len(tried)]:
                    yield partial(self._search, self._goal, "F", _RESTART_STEPS, False, seed)
            for seed, share in zip(seeds, (2, 4, 8), strict=False):
                yield partial(self._search, partial(self._aim, share), "F", steps, False, seed)
            yield partial(self._change_order, partial(self._aim, 8), steps, turn)
            if turn and cp_sat.is_installed():
                yield partial(self._ask_solver, _SOLVER_EFFORT * 2**turn)

    def _goal(self) -> int:
        return max(self._least, self._proved)

    def _aim(self, share: int) -> int:
        """A height below the best by a share of what is above the goal, by one unit at least."""
        return self.best.height - max(1, (self.best.height - self._goal()) // share)

    def _search(
        self, aim: Callable[[], int], order: str, steps: int, jumps: bool, seed: int | None
    ) -> None:
        if self._tree is None:
            return
        height = aim()
        found = self._tree.search(SearchSettings(height, order, steps, jumps, seed))
        if found.offsets is not None:
            self._take(found.offsets, _METHOD)
        elif found.proved_none:
            self._proved = max(self._proved, height + 1)

    def _change_order(self, aim: Callable[[], int], steps: int, seed: int) -> None:
        names = orders(self.problem)
        _, order = names[seed % len(names)]
        found = local_search(self.problem, order, aim(), steps, seed, self._out_of_time)
        if found is not None:
            self._take(found.offsets, found.method)

    def _ask_solver(self, effort: float) -> None:
        seconds = self._deadline - time.monotonic()
        if seconds <= 0:
            return
        found = cp_sat.solve(self.problem, self.best.height, self._goal(), effort, seconds)
        if found.offsets is not None:
            self._take(found.offsets, cp_sat.METHOD)
        self._proved = max(self._proved, found.proved_bound)

    def _take(self, offsets: Numbers, method: str) -> None:
        height = self.problem.height(offsets)
        if height < self.best.height:
            self.best = Placement(offsets, height, method)

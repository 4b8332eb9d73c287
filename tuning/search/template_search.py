"""MetaSchedule search strategy over the decisions of our templates.

The closed-form schedules come first. After them, each batch is picked by the cost model from the
neighbours of the best so far and from random points; a part of it is picked at random, so that a
model that is wrong does not lock the search in.
"""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from tvm import s_tir
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_ext.tir_schedules.recorded_schedule import recorded_schedule
from tvm_ext.tuning.candidate import Candidate
from tvm_ext.tuning.search.template_space import Key, Point, TemplateSpace, key_of

Scores = Callable[[Sequence[Candidate]], np.ndarray]

# Points that the cost model looks at for each that is tried, one that learns and one that knows.
POOL_FACTOR = 4
EXACT_POOL_FACTOR = 12

# Share of a batch that is picked without the model.
EXPLORED = 0.25

# How many of the best lend their neighbours.
PARENTS = 4

# Draws that may be known or refused before a batch is given up as exhausted.
FRUITLESS_DRAWS = 64

# Pools without a point of use before the same.
FRUITLESS_POOLS = 8


@derived_object
class TemplateSearch(ms.search_strategy.PySearchStrategy):
    """See the module's text.

    Parameters
    ----------
    space : TemplateSpace
        The kernel's schedules.
    seed : int
        Of the random draws.
    scores_of : callable
        What the cost model says of candidates: the higher, the better.
    is_exact : callable
        Whether a trial gives just what the model says. Then nothing is picked at random, and
        nothing that it says is of no use.
    """

    def __init__(
        self,
        space: TemplateSpace,
        seed: int,
        scores_of: Scores,
        is_exact: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__()
        self._is_exact = is_exact
        self.space = space
        self._scores_of = scores_of
        self._random = random.Random(seed)
        self._seed = seed
        self._context: Any = None
        self._batch = 1
        self._left = 0
        self._seconds: dict[Key, float] = {}
        self._proposed: set[Key] = set()
        self._loops: set[str] = set()

    def _initialize_with_tune_context(self, context: ms.TuneContext) -> None:
        self._context = context

    def pre_tuning(
        self,
        max_trials: int,
        num_trials_per_iter: int,
        design_spaces: list[s_tir.Schedule],
        database: ms.database.Database | None = None,
        cost_model: ms.cost_model.CostModel | None = None,
    ) -> None:
        """See MetaSchedule; what else it hands over is not needed."""
        self._left, self._batch = max_trials, num_trials_per_iter

    def post_tuning(self) -> None:
        """See MetaSchedule."""

    def generate_measure_candidates(self) -> list[ms.MeasureCandidate] | None:
        """The next points to try; None when nothing is left."""
        wanted = min(self._batch, self._left)
        if wanted < 1:
            return None
        chosen = list(itertools.islice(self._defaults(), wanted))
        self._note(chosen)
        if len(chosen) < wanted:
            picked = self._search(wanted - len(chosen))
            self._note(picked)
            chosen += picked
        self._left -= len(chosen)
        return [point.candidate.traced() for point in chosen] or None

    def notify_runner_results(
        self, candidates: list[ms.MeasureCandidate], results: list[ms.runner.RunnerResult]
    ) -> None:
        """Takes note of times; of a candidate that failed, that it is not to be tried again."""
        for candidate, result in zip(candidates, results, strict=True):
            recorded = recorded_schedule(self._context.mod, candidate.sch.trace)
            key = key_of(recorded.template, recorded.decisions)
            self._proposed.add(key)
            point = self.space.point(*_named(key))
            if point is not None:
                self._loops.add(point.candidate.hash)
            if result.run_secs:
                times = [float(value) for value in result.run_secs]
                self._seconds[key] = sum(times) / len(times)

    def clone(self) -> "TemplateSearch":
        """A search of the same space that has tried nothing."""
        return TemplateSearch(self.space, self._seed, self._scores_of, self._is_exact)

    def _note(self, points: list[Point]) -> None:
        """Points that are not to be proposed again."""
        self._proposed.update(point.key for point in points)
        self._loops.update(point.candidate.hash for point in points)

    def _defaults(self) -> Iterator[Point]:
        found: set[str] = set()
        for template in self.space.templates:
            point = self.space.default(template)
            if point is not None and self._is_new(point) and point.candidate.hash not in found:
                found.add(point.candidate.hash)
                yield point

    def _is_new(self, point: Point) -> bool:
        return point.key not in self._proposed and point.candidate.hash not in self._loops

    def _search(self, wanted: int) -> list[Point]:
        for _ in range(FRUITLESS_POOLS):
            pool = self._pool(wanted)
            picked = self._picked(pool, wanted)
            if picked or not pool:
                return picked
            # The model knows that none of them is of use.
            self._note(pool)
        return []

    def _pool(self, wanted: int) -> list[Point]:
        """New points to pick from, half of them around the best."""
        pool: dict[str, Point] = {}
        size = wanted * (EXACT_POOL_FACTOR if self._is_exact() else POOL_FACTOR)
        for values in self._around_the_best():
            if len(pool) >= size // 2:
                break
            self._add(pool, self.space.point(*values))
        fruitless = 0
        while len(pool) < size and fruitless < FRUITLESS_DRAWS:
            before = len(pool)
            self._add(pool, self.space.anywhere(self._random))
            fruitless = fruitless + 1 if len(pool) == before else 0
        return list(pool.values())

    def _add(self, pool: dict[str, Point], point: Point | None) -> None:
        if point is not None and self._is_new(point):
            pool.setdefault(point.candidate.hash, point)

    def _around_the_best(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Neighbours of the best points, in turn, the best one's first."""
        ranked = sorted(self._seconds, key=lambda key: self._seconds[key])[:PARENTS]
        points = (self.space.point(*_named(key)) for key in ranked)
        around = [self.space.neighbours(point) for point in points if point is not None]
        # Two of the best for one of each other.
        turns = [*around[:1], *around]
        while turns:
            for neighbours in list(turns):
                following = next(neighbours, None)
                if following is None:
                    turns = [other for other in turns if other is not neighbours]
                else:
                    yield following

    def _picked(self, pool: list[Point], wanted: int) -> list[Point]:
        exact = self._is_exact()
        if len(pool) <= wanted and not exact:
            return pool
        scores = self._scores_of([point.candidate for point in pool])
        order = sorted(range(len(pool)), key=lambda i: -float(scores[i]))
        if exact:
            return [pool[i] for i in order[:wanted] if scores[i] > 0]
        at_random = max(1, round(EXPLORED * wanted))
        best = order[: wanted - at_random]
        rest = self._random.sample(order[wanted - at_random :], at_random)
        return [pool[i] for i in (*best, *rest)]


def _named(key: Key) -> tuple[str, dict[str, int]]:
    return key[0], dict(key[1])

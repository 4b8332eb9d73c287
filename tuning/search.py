"""The search for one kernel: the space of our templates, the strategy over it, MetaSchedule's
context.
"""

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tvm import s_tir
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.machine import MachineDescription
from tvm_ext.hardware.tvm_compat import tune_context
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.recorded_schedule import (
    RecordedSchedule,
    recorded_schedule,
    template_trace,
)
from tvm_ext.tir_schedules.schedule_kernels import accepting_templates
from tvm_ext.tir_schedules.template import FixedDecisions, Knob, SampledDecisions
from tvm_ext.tuning.candidate import (
    Candidate,
    Finish,
    KernelTask,
    candidate_again,
    candidate_of,
    make_candidate,
)

# All schedules that our templates offer for one kernel.


Key = tuple[str, tuple[tuple[str, int], ...]]
"""A template and its decisions."""


@dataclass(frozen=True)
class Point:
    """One schedule of the space, with the decisions around it.

    Attributes
    ----------
    candidate : Candidate
        The scheduled kernel.
    template : str
        Who scheduled it.
    values : dict[str, int]
        The decisions that had more than one option.
    knobs : dict[str, Knob]
        Those decisions' options.
    """

    candidate: Candidate
    template: str
    values: dict[str, int]
    knobs: dict[str, Knob] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """What tells it from other points."""
        return key_of(self.template, self.values)


def key_of(template: str, values: Mapping[str, int]) -> Key:
    """What tells a point from others."""
    return template, tuple(sorted(values.items()))


class TemplateSpace:
    """Points are made when they are asked for, and kept.

    Attributes
    ----------
    templates : list[str]
        Those that take the kernel, the one that is used without a record first.
    """

    def __init__(self, task: KernelTask, machine: MachineDescription, finish: Finish) -> None:
        self._task = task
        self._machine = machine
        self._finish = finish
        found = accepting_templates(task.workload["main"], machine)
        self._templates = {template.name: template for template in found}
        self._points: dict[Key, Point | None] = {}
        self.templates = list(self._templates)

    def default(self, template: str) -> Point | None:
        """The template's default."""
        return self.point(template, {})

    def default_candidate(self) -> Candidate | None:
        """What the kernel gets without a record; None when its loops are left as they are."""
        point = self.default(self.templates[0]) if self.templates else None
        return point.candidate if point is not None else None

    def point(self, template: str, values: Mapping[str, int]) -> Point | None:
        """The schedule with these decisions, and the template's own for all others.

        A value that is no option beside the others is replaced as well, so the point that is found
        may have other decisions. None where the template refuses.
        """
        asked = key_of(template, values)
        if asked not in self._points:
            found = self._made(template, FixedDecisions(values, lenient=True))
            self._points[asked] = found
            if found is not None:
                self._points.setdefault(found.key, found)
        return self._points[asked]

    def neighbours(self, point: Point) -> Iterator[tuple[str, dict[str, int]]]:
        """Decisions that differ in one place: next options first, then those further away."""
        distances = max((len(knob.options) for knob in point.knobs.values()), default=1)
        for distance in range(1, distances):
            for name, knob in point.knobs.items():
                at = knob.options.index(point.values[name])
                for other in (at - distance, at + distance):
                    if 0 <= other < len(knob.options):
                        yield point.template, {**point.values, name: knob.options[other]}

    def anywhere(self, generator: random.Random) -> Point | None:
        """A random schedule of a random template; None if there is nothing to decide, or if the
        template refuses what was drawn.
        """
        open_to = [name for name in self.templates if self._has_knobs(name)]
        if not open_to:
            return None
        found = self._made(generator.choice(open_to), SampledDecisions(generator))
        return self._points.setdefault(found.key, found) if found is not None else None

    def _has_knobs(self, template: str) -> bool:
        default = self.default(template)
        return default is not None and bool(default.knobs)

    def _made(self, template: str, chosen: FixedDecisions) -> Point | None:
        func = self._task.workload["main"]
        scheduled = apply_template(self._templates[template], func, self._machine, chosen)
        if isinstance(scheduled, NotApplicable):
            return None
        free = chosen.free()
        known = self._points.get(key_of(template, free))
        if known is not None:
            return known
        recorded = RecordedSchedule(template_trace(func, template, chosen), template, free)
        made = make_candidate(self._task, recorded, scheduled, self._finish)
        return Point(made, template, free, {name: chosen.knobs[name] for name in free})


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
    """MetaSchedule search strategy over the decisions of our templates.

    The default schedules come first. After them, each batch is picked by the cost model from the
    neighbours of the best so far and from random points; a part of it is picked at random, so that
    a model that is wrong does not lock the search in.

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


# The search for one kernel: MetaSchedule's tuning context with our strategy, or with TVM's own.


# Of TVM's evolutionary search: its own 512 take minutes where a trial takes a tenth of a second.
_POPULATION = 96
_LEAST_POPULATION = 8


class KernelSearch:
    """Proposes candidates of one kernel, and learns how they did.

    Parameters
    ----------
    task : KernelTask
        The kernel.
    machine : MachineDescription
        What it is scheduled for.
    cost_model : ms.cost_model.CostModel
        Ranks candidates; shared by all kernels.
    finish : Finish
        What happens to a kernel after its schedule.
    batch : int
        Candidates that are proposed at a time.
    seed : int
        Of all draws.
    """

    def __init__(
        self,
        task: KernelTask,
        machine: MachineDescription,
        cost_model: ms.cost_model.CostModel,
        finish: Finish,
        batch: int,
        seed: int,
    ) -> None:
        self.task = task
        self._machine = machine
        self._finish = finish
        self._model = cost_model
        self._database = ms.database.MemoryDatabase()
        space = TemplateSpace(task, machine, finish)
        self.default = space.default_candidate()
        # TVM's own space has no loops of dynamic sizes.
        self.uses_templates = _has_decisions(space) or bool(task.nominal)
        target = machine.tvm_target()
        seed = (seed * 1_000_003 + int(task.hash[:7], 16)) % (2**31 - 1) or 1
        if self.uses_templates:
            generator, strategy = None, TemplateSearch(space, seed, self._scores, self._is_exact)
        else:
            generator, strategy = (
                metaschedule_space(str(target.kind.name)),
                ms.search_strategy.EvolutionarySearch(
                    population_size=_POPULATION, init_min_unmeasured=_LEAST_POPULATION
                ),
            )
        self._context = tune_context(task.workload, target, generator, strategy, task.name, seed)
        designs = [s_tir.Schedule(task.workload)]
        if generator is not None:
            designs = self._context.generate_design_space()
        self._context.pre_tuning(1 << 20, batch, designs, self._database, cost_model)

    def propose(self) -> list[Candidate]:
        """The next candidates; empty when the space is exhausted."""
        found = self._context.generate_measure_candidates()
        made = [self.candidate(one.sch.trace) for one in found or []]
        return [one for one in made if isinstance(one, Candidate)]

    def _is_exact(self) -> bool:
        return getattr(self._model, "exact", False)

    def _scores(self, candidates: Sequence[Candidate]) -> np.ndarray:
        if hasattr(self._model, "scores_of"):
            scores: np.ndarray = self._model.scores_of(self._context, candidates)
            return scores
        return self._model.predict(
            self._context, [candidate.measure_candidate() for candidate in candidates]
        )

    def candidate(self, trace: s_tir.schedule.Trace) -> Candidate | NotApplicable:
        """What a trace makes of this kernel, or why it makes nothing."""
        return candidate_of(self.task, trace, self._machine, self._finish)

    def again(self, trace: Any, candidate: str) -> Candidate | None:
        """See ``candidate_again``."""
        return candidate_again(self.task, trace, candidate, self._machine, self._finish)

    def tell(self, results: Iterable[tuple[Candidate, float | None]]) -> None:
        """How candidates did: seconds, or None for one that is of no use."""
        told = list(results)
        if not told:
            return
        candidates, outcomes = [], []
        for candidate, seconds in told:
            candidates.append(candidate.traced())
            failed = None if seconds is not None else "it is of no use"
            times = [seconds] if seconds is not None else None
            outcomes.append(ms.runner.RunnerResult(times, failed))
        self._context.notify_runner_results(candidates, outcomes)
        for candidate, seconds in told:
            if seconds is not None and not self.uses_templates:
                self._commit(candidate, seconds)
        if getattr(self._model, "learns", True):
            # Of no use may also mean that TVM makes no schedule of its loops.
            timed = [n for n, (_, seconds) in enumerate(told) if seconds is not None]
            scheduled = [told[n][0].measure_candidate() for n in timed]
            self._model.update(self._context, scheduled, [outcomes[n] for n in timed])

    def _commit(self, candidate: Candidate, seconds: float) -> None:
        """TVM's search takes its parents from a database."""
        token = self._database.commit_workload(self.task.workload)
        record = ms.database.TuningRecord(
            candidate.recorded.trace, token, [seconds], self._context.target, None
        )
        self._database.commit_tuning_record(record)


def metaschedule_space(kind: str = "llvm") -> ms.space_generator.SpaceGenerator:
    """TVM's space for CPUs ("llvm") or GPUs ("cuda").

    Without the intrinsics of AVX-512 and of tensor cores, which have to be registered first.
    """
    return ms.space_generator.PostOrderApply(
        sch_rules=ms.schedule_rule.ScheduleRule.create(kind),
        postprocs=ms.postproc.Postproc.create(kind),
        mutator_probs=ms.mutator.Mutator.create(kind),
    )


def _has_decisions(space: TemplateSpace) -> bool:
    points = [space.default(template) for template in space.templates]
    return len(space.templates) > 1 or any(point is not None and point.knobs for point in points)

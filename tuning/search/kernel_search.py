"""The search for one kernel: MetaSchedule's tuning context with our strategy, or with TVM's own."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from tvm import s_tir
from tvm.s_tir import meta_schedule as ms

from tvm_ext.hardware.tvm_compat import tune_context
from tvm_ext.tir_schedules.template import Machine, NotMine
from tvm_ext.tuning.candidate import Candidate, Finish, candidate_again, candidate_of
from tvm_ext.tuning.search.template_search import TemplateSearch
from tvm_ext.tuning.search.template_space import TemplateSpace
from tvm_ext.tuning.task import KernelTask

# Of TVM's evolutionary search: its own 512 take minutes where a trial takes a tenth of a second.
_POPULATION = 96
_LEAST_POPULATION = 8


class KernelSearch:
    """Proposes candidates of one kernel, and learns how they did.

    Parameters
    ----------
    task : KernelTask
        The kernel.
    machine : Machine
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
        machine: Machine,
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
        self.default = space.closed_form()
        self.uses_templates = _has_decisions(space)
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

    def candidate(self, trace: s_tir.schedule.Trace) -> Candidate | NotMine:
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

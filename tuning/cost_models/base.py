"""What cost models have in common: those that answer by a formula, and what a runner's result
says.
"""

import math
import statistics
from collections.abc import Sequence

import numpy as np
import tvm
from tvm.s_tir import meta_schedule as ms

from tvm_ext.tuning.logs.database_files import FAILED_SECONDS


class FormulaModel(ms.cost_model.PyCostModel):
    """Scores by ``score_module``, which a model that derives from this has to have."""

    learns = False
    exact = False
    """Whether a trial gives just what ``score_module`` says."""

    def score_module(self, mod: tvm.IRModule) -> float:
        """Calls a microsecond of the scheduled kernel "main"; 0 for one that is of no use."""
        raise NotImplementedError

    def score_modules(self, mods: Sequence[tvm.IRModule]) -> np.ndarray:
        """The same for several kernels."""
        return np.array([self.score_module(mod) for mod in mods], dtype=np.float64)

    def predict(self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]) -> np.ndarray:
        """The same for MetaSchedule."""
        return self.score_modules([one.sch.mod for one in candidates])

    def update(
        self,
        context: ms.TuneContext,
        candidates: list[ms.MeasureCandidate],
        results: list[ms.runner.RunnerResult],
    ) -> None:
        """Times change nothing."""

    def load(self, path: str) -> None:
        """There is nothing to load."""

    def save(self, path: str) -> None:
        """There is nothing to save."""


def seconds_of(result: ms.runner.RunnerResult) -> float | None:
    """The median time; None for a candidate that failed or has no time that can be one."""
    times = [float(value) for value in result.run_secs or ()]
    if not times or not all(math.isfinite(t) and 0 < t < FAILED_SECONDS for t in times):
        return None
    return statistics.median(times)

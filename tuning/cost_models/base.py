"""What cost models have in common: those that answer by a formula, and what a runner's result
says.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm.s_tir import meta_schedule as ms

from tvm_ext.configs.errors import NotApplicable, TvmExtError
from tvm_ext.tuning.logs.database_files import FAILED_SECONDS


class FormulaModel(ms.cost_model.PyCostModel):
    """A model that MetaSchedule can ask, and that learns nothing.

    One that derives from this has ``modelled_seconds``, or scores of its own by ``score_module``.

    Parameters
    ----------
    machine : MachineDescription
        What the kernels are scheduled for.
    """

    learns = False
    exact = False
    """Whether a trial gives just what ``score_module`` says."""

    def __init__(self, machine: Any) -> None:
        super().__init__()
        self.machine = machine

    def modelled_seconds(self, mod: tvm.IRModule) -> float:
        """Of one call of the scheduled kernel "main".

        Raises NotApplicable or TvmExtError for one that is of no use.
        """
        raise NotImplementedError

    def score_module(self, mod: tvm.IRModule) -> float:
        """Calls a microsecond of the scheduled kernel "main"; 0 for one that is of no use."""
        try:
            return 1e-6 / self.modelled_seconds(mod)
        except (NotApplicable, TvmExtError):
            return 0.0

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

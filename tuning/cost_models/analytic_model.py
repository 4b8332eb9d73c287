"""Ranks candidates by a formula: what their loops need of the machine, without any training."""

from collections.abc import Sequence

import numpy as np
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tuning.loop_analysis.kernel_cost import kernel_cost
from tvm_ext.tuning.loop_analysis.lowered import NotLowered


def modelled_seconds(mod: tvm.IRModule, machine: CpuDescription) -> float:
    """Time of one call of the scheduled kernel "main" of ``mod``: modelled, not measured.

    The roofline's question asked of what the schedule really does: instructions on vectors as full
    as they are, loads and stores, sums that wait for themselves, registers that spill, bytes that
    each cache has to fetch, and threads with the work of the busiest one and their start.
    """
    return kernel_cost(mod, machine).seconds


@derived_object
class AnalyticModel(ms.cost_model.PyCostModel):
    """``modelled_seconds`` as a model that MetaSchedule can ask; it learns nothing.

    Parameters
    ----------
    machine : CpuDescription
        What the kernels are scheduled for.
    """

    learns = False

    def __init__(self, machine: CpuDescription) -> None:
        super().__init__()
        self.machine = machine

    def load(self, path: str) -> None:
        """There is nothing to load."""

    def save(self, path: str) -> None:
        """There is nothing to save."""

    def update(
        self,
        context: ms.TuneContext,
        candidates: list[ms.MeasureCandidate],
        results: list[ms.runner.RunnerResult],
    ) -> None:
        """Measured times change nothing."""

    def predict(self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]) -> np.ndarray:
        """Calls a microsecond, modelled; 0 for what will not be built."""
        return self.score_modules([one.sch.mod for one in candidates])

    def score_modules(self, mods: Sequence[tvm.IRModule]) -> np.ndarray:
        """The same for scheduled kernels that are named "main"."""
        return np.array([self._score(mod) for mod in mods], dtype=np.float64)

    def _score(self, mod: tvm.IRModule) -> float:
        try:
            return 1e-6 / modelled_seconds(mod, self.machine)
        except NotLowered:
            return 0.0

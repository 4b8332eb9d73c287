"""Ranks candidates by a formula: what their loops need of the machine, without any training."""

from collections.abc import Sequence

import numpy as np
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tuning.loop_analysis.kernel_cost import kernel_cost


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
        """Calls a microsecond, modelled."""
        return self.score_modules([one.sch.mod for one in candidates])

    def score_modules(self, mods: Sequence[tvm.IRModule]) -> np.ndarray:
        """The same for scheduled kernels that are named "main"."""
        seconds = [modelled_seconds(mod, self.machine) for mod in mods]
        return 1e-6 / np.array(seconds, dtype=np.float64)

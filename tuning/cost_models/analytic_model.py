"""Ranks candidates by a formula: what their loops need of the machine, without any training."""

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
        seconds = [modelled_seconds(one.sch.mod, self.machine) for one in candidates]
        return 1e-6 / np.array(seconds, dtype=np.float64)

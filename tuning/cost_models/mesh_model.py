"""Ranks candidates for a wafer-scale mesh by the cost function, without any training."""

import numpy as np
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.errors import MeshLimitError
from tvm_ext.tuning.mesh_analysis.kernel_cost import mesh_cost
from tvm_ext.tuning.mesh_analysis.loops import NotReadable


@derived_object
class MeshModel(ms.cost_model.PyCostModel):
    """``mesh_cost`` as a model that MetaSchedule can ask; it learns nothing.

    Parameters
    ----------
    mesh : MeshDescription
        What the kernels are scheduled for.
    """

    def __init__(self, mesh: MeshDescription) -> None:
        super().__init__()
        self.mesh = mesh

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
        """Modelled times change nothing."""

    def predict(self, context: ms.TuneContext, candidates: list[ms.MeasureCandidate]) -> np.ndarray:
        """Calls a microsecond; 0 for what does not fit the mesh or cannot be read."""
        return np.array([self._score(one) for one in candidates])

    def _score(self, candidate: ms.MeasureCandidate) -> float:
        try:
            cost = mesh_cost(candidate.sch.mod, self.mesh)
        except (NotReadable, MeshLimitError):
            return 0.0
        return 0.0 if cost.refusal else 1e-6 / cost.seconds

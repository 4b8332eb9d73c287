"""Ranks candidates for a wafer-scale mesh by the cost function, without any training."""

from collections.abc import Sequence

import numpy as np
import tvm
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

    learns = False

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
        return self.score_modules([one.sch.mod for one in candidates])

    def score_modules(self, mods: Sequence[tvm.IRModule]) -> np.ndarray:
        """The same for scheduled kernels that are named "main"."""
        return np.array([self._score(mod) for mod in mods])

    def _score(self, mod: tvm.IRModule) -> float:
        try:
            cost = mesh_cost(mod, self.mesh)
        except (NotReadable, MeshLimitError):
            return 0.0
        return 0.0 if cost.refusal else 1e-6 / cost.seconds

"""Ranks candidates for a wafer-scale mesh by the cost function, without any training."""

import tvm
from tvm.ir.utils import derived_object

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.hardware.wafer.errors import MeshLimitError
from tvm_ext.tuning.cost_models.formula_model import FormulaModel
from tvm_ext.tuning.mesh_analysis.kernel_cost import mesh_cost
from tvm_ext.tuning.mesh_analysis.loops import NotReadable


@derived_object
class MeshModel(FormulaModel):
    """``mesh_cost`` as a model that MetaSchedule can ask; it learns nothing.

    Parameters
    ----------
    mesh : MeshDescription
        What the kernels are scheduled for.
    """

    exact = True

    def __init__(self, mesh: MeshDescription) -> None:
        super().__init__()
        self.mesh = mesh

    def score_module(self, mod: tvm.IRModule) -> float:
        """Calls a microsecond; 0 for what does not fit the mesh or cannot be read."""
        try:
            return 1e-6 / mesh_cost(mod, self.mesh).seconds
        except (NotReadable, MeshLimitError):
            return 0.0

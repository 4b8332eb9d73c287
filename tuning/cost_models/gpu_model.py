"""Ranks candidates for a GPU by a roofline over what they do, without any training."""

import tvm
from tvm.ir.utils import derived_object

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tuning.cost_models.formula_model import FormulaModel
from tvm_ext.tuning.gpu_analysis.kernel_cost import gpu_cost
from tvm_ext.tuning.loop_analysis.lowered import NotLowered


@derived_object
class GpuModel(FormulaModel):
    """``gpu_cost`` as a model that MetaSchedule can ask; it learns nothing.

    Parameters
    ----------
    machine : GpuDescription
        What the kernels are scheduled for.
    """

    def __init__(self, machine: GpuDescription) -> None:
        super().__init__()
        self.machine = machine

    def score_module(self, mod: tvm.IRModule) -> float:
        """Calls a microsecond, modelled; 0 for what will not be built."""
        try:
            return 1e-6 / gpu_cost(mod, self.machine).seconds
        except NotLowered:
            return 0.0

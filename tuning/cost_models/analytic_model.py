"""Ranks candidates by a formula: what their loops need of the machine, without any training."""

import tvm
from tvm.ir.utils import derived_object

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tuning.cost_models.formula_model import FormulaModel
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
class AnalyticModel(FormulaModel):
    """``modelled_seconds`` as a model that MetaSchedule can ask; it learns nothing.

    Parameters
    ----------
    machine : CpuDescription
        What the kernels are scheduled for.
    """

    def __init__(self, machine: CpuDescription) -> None:
        super().__init__()
        self.machine = machine

    def score_module(self, mod: tvm.IRModule) -> float:
        """Calls a microsecond, modelled; 0 for what will not be built."""
        try:
            return 1e-6 / modelled_seconds(mod, self.machine)
        except NotLowered:
            return 0.0

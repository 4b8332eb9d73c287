"""TVM's own schedule rules for GPUs (dlight) as templates: asked after ours, without decisions."""

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir import dlight

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.cuda.launch import is_bound
from tvm_ext.tir_schedules.template import Decisions, Template

# What TVM's rules raise on kernels that they were not written for, failed assertions among it.
_RULE_ERRORS = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError),
    *(TypeError, ValueError, tvm.error.InternalError, s_tir.ScheduleError),
)


@dataclass(eq=False)
class TvmRule:
    """One of dlight's rules.

    Attributes
    ----------
    name : str
        "dlight" and the rule's name.
    rule : type
        Its class.
    """

    name: str
    machine_type = CudaDescription
    rule: Any

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        target = machine.tvm_target()
        try:
            with target:
                found = self.rule().apply(func, target, False)
        except _RULE_ERRORS:
            raise NotApplicable("the rule fails on it") from None
        if found is None:
            raise NotApplicable("not of its pattern")
        sch = found[0] if isinstance(found, list) else found
        if not is_bound(sch.mod["main"]):
            raise NotApplicable("it leaves loops that no thread runs")
        return sch


TVM_RULES: tuple[Template, ...] = tuple(
    TvmRule(f"dlight {rule.__name__}", rule)
    for rule in (
        dlight.gpu.Matmul,
        dlight.gpu.Reduction,
        dlight.gpu.GeneralReduction,
        dlight.gpu.Fallback,
    )
)
"""In the order in which they are asked. Without GEMV, whose threads write behind the result where
its rows are no multiple of its tile.
"""

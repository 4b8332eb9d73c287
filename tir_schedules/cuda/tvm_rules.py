"""TVM's own schedule rules for GPUs (dlight) as templates: asked after ours, without decisions."""

from dataclasses import dataclass
from typing import Any

from tvm import s_tir, tirx
from tvm.s_tir import dlight

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.template import Machine, NotMine, Template


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
    rule: Any

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not a GPU")
        target = machine.tvm_target()
        try:
            with target:
                found = self.rule().apply(func, target, False)
        except Exception as error:  # noqa: BLE001
            # A rule takes it for granted that a kernel which looks like its own is one.
            lines = str(error).splitlines() or [type(error).__name__]
            return NotMine(f"the rule fails: {lines[-1][:160]}")
        if found is None:
            return NotMine("not of its pattern")
        return found[0] if isinstance(found, list) else found


TVM_RULES: tuple[Template, ...] = tuple(
    TvmRule(f"dlight {rule.__name__}", rule)
    for rule in (
        dlight.gpu.Matmul,
        dlight.gpu.GEMV,
        dlight.gpu.Reduction,
        dlight.gpu.GeneralReduction,
        dlight.gpu.Fallback,
    )
)
"""In the order in which they are asked."""

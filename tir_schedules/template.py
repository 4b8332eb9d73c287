"""What a template is: it schedules the kernels that it knows and says why it leaves the others."""

from dataclasses import dataclass
from typing import Protocol

from tvm import s_tir, tirx

from tvm_ext.hardware.description import Description
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions

Machine = Description


@dataclass(frozen=True)
class NotMine:
    """A template leaves a kernel alone.

    Attributes
    ----------
    reason : str
        What the kernel has that the template does not handle.
    """

    reason: str


class Template(Protocol):
    """One way to schedule a family of kernels for one kind of machine."""

    name: str

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """A schedule for ``func``, which is left unchanged, or the reason why there is none.

        ``decisions`` answers what the template has to decide: in closed form, or as a tuner says.
        """

"""Products of matrices scheduled as there is code for them."""

from collections.abc import Iterable, Mapping

from tvm import tirx

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.tir_schedules.apply_template import apply_template
from tvm_ext.tir_schedules.decisions import Chosen
from tvm_ext.tir_schedules.template import NotMine
from tvm_ext.tir_schedules.wafer.matmul import MeshMatmul
from tvm_ext.tir_schedules.wafer.matmul_decision import ON_RIGHT, ON_SUMMED, SUMMA


class SummaDecisions:
    """The template's own decisions, but SUMMA with as many steps as there are pieces to send.

    In fewer steps, what one step needs lies in several PEs. Instructions go along the result: there
    is none that sums up a vector.

    Parameters
    ----------
    given : mapping of str to int
        Decisions to take instead, where they are among the options.
    """

    def __init__(self, given: Mapping[str, int] | None = None) -> None:
        self._given = Chosen({"algorithm": SUMMA, **(given or {})}, lenient=True)

    def pick(self, name: str, options: Iterable[int], default: int) -> int:
        """See ``Decisions.pick``."""
        known = list(options)
        if name == "steps":
            default = max(known)
        if name == "vector" and default == ON_SUMMED:
            default = ON_RIGHT
        return self._given.pick(name, known, default)


def scheduled_as_summa(
    func: tirx.PrimFunc, mesh: MeshDescription, given: Mapping[str, int] | None = None
) -> tirx.PrimFunc | NotMine:
    """A product of matrices for ``mesh``, or why it is none; ``given`` as for SummaDecisions."""
    scheduled = apply_template(MeshMatmul(), func, mesh, SummaDecisions(given))
    return scheduled if isinstance(scheduled, NotMine) else scheduled.func

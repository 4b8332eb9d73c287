"""Loop nests as sets of integer points: dependences, legality, and schedules, with isl.

isl comes with ``islpy``, an optional dependency: what needs it is imported when it is asked for.
"""

import importlib.util
from typing import TYPE_CHECKING

from tvm_ext.configs.errors import TvmExtError

if TYPE_CHECKING:
    from tvm import tirx

    from tvm_ext.polyhedral.check_schedules import ScheduleCheck
    from tvm_ext.polyhedral.legality import LoopNest

__all__ = ["PolyhedralError", "check_schedule", "has_isl", "loop_nest", "require_isl"]


class PolyhedralError(TvmExtError):
    """Loops cannot be analysed, or what it takes is not installed."""


def has_isl() -> bool:
    """Whether ``islpy`` is installed."""
    return importlib.util.find_spec("islpy") is not None


def require_isl() -> None:
    """Raises PolyhedralError if ``islpy`` is not installed."""
    if not has_isl():
        raise PolyhedralError(
            "islpy is not installed; expected it for the analysis of loop nests: "
            "pip install 'tvm-ext[polyhedral]'"
        )


def loop_nest(func: "tirx.PrimFunc", *, reorder_reductions: bool = False) -> "LoopNest":
    """The loops of a kernel, to be asked what may be done to them.

    Parameters
    ----------
    func : tirx.PrimFunc
        The kernel.
    reorder_reductions : bool
        Whether sums, products and extrema may be combined in another order.

    Raises
    ------
    PolyhedralError
        ``islpy`` is not installed, or it is not known what a statement of the kernel accesses.
    """
    require_isl()
    from tvm_ext.polyhedral.affine_expressions import NotAffine
    from tvm_ext.polyhedral.dependences import dependences_of
    from tvm_ext.polyhedral.kernel_domain import kernel_domain
    from tvm_ext.polyhedral.legality import LoopNest

    try:
        kernel = kernel_domain(func)
    except NotAffine as error:
        raise PolyhedralError(
            f"the loops of the kernel cannot be analysed: {error.reason}; expected stores to "
            "tensors within loops: leave that statement out"
        ) from error
    found = dependences_of(kernel, reorder_reductions=reorder_reductions)
    return LoopNest(kernel, found)


def check_schedule(func: "tirx.PrimFunc") -> "ScheduleCheck":
    """See ``check_schedules.check_schedule``. Raises PolyhedralError if islpy is not installed."""
    require_isl()
    from tvm_ext.polyhedral import check_schedules

    return check_schedules.check_schedule(func)

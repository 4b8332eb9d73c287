"""Loop nests as sets of integer points: dependences, legality, and schedules, with isl.

isl comes with ``islpy``, an optional dependency: what needs it is imported when it is asked for.
"""

import importlib.util

from tvm_ext.configs.errors import TvmExtError


class PolyhedralError(TvmExtError):
    """The polyhedral analysis was asked for and what it takes is not installed."""


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

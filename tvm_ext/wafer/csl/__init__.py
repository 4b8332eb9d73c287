"""Code for the machine: kernels of a mesh as CSL source, through xDSL's csl dialect.

xDSL is an optional dependency: everything here is imported when it is asked for.
"""

import importlib.util
from typing import TYPE_CHECKING

from tvm_ext.configs.errors import TvmExtError


class CslError(TvmExtError):
    """A kernel cannot become CSL source, or what it takes is not installed."""


if TYPE_CHECKING:
    from tvm import tirx

    from tvm_ext.hardware.wafer.description import WaferDescription
    from tvm_ext.wafer.csl.code import CslCode

__all__ = ["CslError", "kernel_code", "require_xdsl"]


def require_xdsl() -> None:
    """Raises CslError if xDSL is not installed."""
    if importlib.util.find_spec("xdsl") is None:
        raise CslError(
            "xDSL is not installed; expected it for code in CSL: pip install 'tvm-ext[csl]'"
        )


def kernel_code(func: "tirx.PrimFunc", mesh: "WaferDescription", name: str = "main") -> "CslCode":
    """See ``tvm_ext.wafer.csl.code.kernel_code``. Raises CslError if xDSL is not installed."""
    require_xdsl()
    from tvm_ext.wafer.csl import code

    return code.kernel_code(func, mesh, name)

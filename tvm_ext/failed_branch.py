"""What a compiled model runs in place of a branch that cannot be run: an error with the reason."""

from typing import NoReturn

import tvm
import tvm_ffi

from tvm_ext.errors import RunError

FAILED_BRANCH = "tvm_ext.failed_branch"


def register_failed_branch() -> None:
    """Makes the function known to virtual machines under ``FAILED_BRANCH``."""
    # So that the error comes back from TVM as what it is.
    tvm_ffi.register_error("RunError", RunError)
    tvm.register_global_func(FAILED_BRANCH, _fail, override=True)


def _fail(reason: str) -> NoReturn:
    raise RunError(reason)

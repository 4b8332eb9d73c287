"""What a compiled model runs in place of a branch that cannot be run: an error with the reason."""

from typing import NoReturn

import tvm

FAILED_BRANCH = "tvm_ext.failed_branch"


def register_failed_branch() -> None:
    """Makes the function known to virtual machines under ``FAILED_BRANCH``."""
    tvm.register_global_func(FAILED_BRANCH, _fail, override=True)


def _fail(reason: str) -> NoReturn:
    raise RuntimeError(reason)

"""Errors of machine descriptions."""

from tvm_ext.configs.errors import TvmExtError


class TargetError(TvmExtError):
    """A target is unknown, its description is not valid, or a program was built for another one."""

"""Errors of machine descriptions, and of compilers for a machine."""

from tvm_ext.configs.errors import TvmExtError


class TargetError(TvmExtError):
    """A target is unknown, its description is not valid, or a program was built for another one."""


class BuildError(TvmExtError):
    """Code generation failed for a module that the passes accepted."""

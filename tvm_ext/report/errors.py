"""Errors of compile reports."""

from tvm_ext.configs.errors import TvmExtError


class ReportError(TvmExtError):
    """A compile report cannot be read or cannot be written."""

"""Errors of code for the machine."""

from tvm_ext.configs.errors import TvmExtError


class CslError(TvmExtError):
    """A kernel cannot become CSL source, or what it takes is not installed."""


class NotCovered(ValueError):
    """A kernel does something that no code is written for; the text says what."""

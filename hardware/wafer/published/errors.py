"""Errors of tables of measurements, and how a family says that a row is not its own to predict."""

from tvm_ext.configs.errors import TvmExtError


class MeasurementsError(TvmExtError):
    """A file of measurements cannot be read, or a line of it is not valid."""


class NotCovered(Exception):
    """No model covers a row; the text says why."""

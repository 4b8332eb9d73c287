"""Errors of tuning that a user can cause."""

from tvm_ext.configs.errors import TvmExtError


class TuningError(TvmExtError):
    """A tuning session cannot start or go on."""


class RecordsError(TvmExtError):
    """A folder of records is missing, unusable, or lacks a record that was required."""

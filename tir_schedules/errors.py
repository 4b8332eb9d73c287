"""Errors of schedules that a user can cause."""

from tvm_ext.configs.errors import TvmExtError


class ScheduleRefusedError(TvmExtError):
    """A kernel of the model cannot run on the target, however its loops are scheduled."""

"""Traces as a log keeps them."""

from typing import Any

import tvm
from tvm import s_tir
from tvm.s_tir.schedule import Trace


def read_trace(data: Any, mod: tvm.IRModule) -> Trace:
    """A trace read back for a workload.

    Raises s_tir.ScheduleError or ValueError if it does not apply to it.
    """
    schedule = s_tir.Schedule(mod)
    Trace.apply_json_to_schedule(data, schedule)
    return schedule.trace


def trace_from_json(data: Any, mod: tvm.IRModule) -> Trace | None:
    """The same, or None when it does not apply."""
    try:
        return read_trace(data, mod)
    except (s_tir.ScheduleError, ValueError, RuntimeError, TypeError, tvm.error.InternalError):
        return None

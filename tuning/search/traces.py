"""Traces as a log keeps them."""

from typing import Any

import tvm
from tvm import s_tir
from tvm.s_tir.schedule import Trace


def trace_from_json(data: Any, mod: tvm.IRModule) -> Trace | None:
    """A trace read back for the workload that it is of; None when it does not apply to it."""
    schedule = s_tir.Schedule(mod)
    try:
        Trace.apply_json_to_schedule(data, schedule)
    except (s_tir.ScheduleError, ValueError, RuntimeError, TypeError, tvm.error.InternalError):
        return None
    return schedule.trace

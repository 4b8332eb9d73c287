"""What a runner's result says."""

import math
import statistics

from tvm.s_tir import meta_schedule as ms

# MetaSchedule writes this for candidates that failed.
_FAILED_SECONDS = 1e10


def seconds_of(result: ms.runner.RunnerResult) -> float | None:
    """The median time; None for a candidate that failed or has no time that can be one."""
    times = [float(value) for value in result.run_secs or ()]
    if not times or not all(math.isfinite(t) and 0 < t < _FAILED_SECONDS for t in times):
        return None
    return statistics.median(times)

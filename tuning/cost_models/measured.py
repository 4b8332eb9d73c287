"""What a runner's result says."""

import math
import statistics

from tvm.s_tir import meta_schedule as ms

from tvm_ext.tuning.database_files import FAILED_SECONDS


def seconds_of(result: ms.runner.RunnerResult) -> float | None:
    """The median time; None for a candidate that failed or has no time that can be one."""
    times = [float(value) for value in result.run_secs or ()]
    if not times or not all(math.isfinite(t) and 0 < t < FAILED_SECONDS for t in times):
        return None
    return statistics.median(times)

"""Plans where buffers lie in one arena, from their sizes and from when each of them is needed.

The package knows nothing of TVM. ``plan_offsets`` finds offsets, ``check_plan`` checks any plan,
and ``order_for_memory`` finds an order of operations with which less is alive at one time.
How it searches: docs/concepts/memory-plans.md.

>>> buffers = [Buffer("a", 64, 0, 1), Buffer("b", 64, 1, 2), Buffer("c", 128, 2, 3)]
>>> plan = plan_offsets(buffers)
>>> plan.size, plan.lower_bound, plan.is_optimal
(192, 192, True)
"""

from tvm_ext.configs.errors import PlanError
from tvm_ext.memory_planner.plan import Buffer, MemoryPlan, check_plan
from tvm_ext.memory_planner.planner import plan_offsets
from tvm_ext.memory_planner.schedule_order import (
    Operation,
    ScheduleOrder,
    order_for_memory,
    peak_of,
)

__all__ = [
    "Buffer",
    "MemoryPlan",
    "Operation",
    "PlanError",
    "ScheduleOrder",
    "check_plan",
    "order_for_memory",
    "peak_of",
    "plan_offsets",
]

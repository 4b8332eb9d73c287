"""Moves cheap data-parallel blocks of a kernel into the blocks that use them."""

from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV, ScheduleError

from tvm_ext.tir_schedules.block_access import access_of


def inline_blocks(sch: s_tir.Schedule) -> None:
    """Inlines every data-parallel block whose work is not repeated by doing so.

    A block that a reduction reads many times (padding, an exponential) stays a block of its own
    when it branches or calls a function: inlined, it would run once for every read.
    """
    changed = True
    while changed:
        changed = any(_inline_one(sch, block) for block in kernel_blocks(sch))


def kernel_blocks(sch: s_tir.Schedule) -> list[SBlockRV]:
    """The blocks of the kernel, in program order."""
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def is_data_parallel(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether no iteration of the block depends on another one."""
    return all(v.iter_type == tirx.IterVar.DataPar for v in sch.get(block).iter_vars)


def count_calls(expr: Any) -> int:
    """Function calls (exp, if_then_else, ...) in the expressions below a statement or expression."""
    found = 1 if isinstance(expr, tvm.ir.Call) else 0
    for name in ("a", "b", "value", "condition", "true_value", "false_value", "body"):
        child = getattr(expr, name, None)
        if child is not None and not isinstance(child, int | float | str):
            found += count_calls(child)
    if isinstance(expr, tvm.ir.Call):
        found += sum(count_calls(arg) for arg in expr.args)
    return found


def _inline_one(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    consumers = sch.get_consumers(block)
    if not consumers or not is_data_parallel(sch, block):
        return False
    if any(_would_repeat(sch, block, consumer) for consumer in consumers):
        return False
    try:
        sch.compute_inline(block)
    except ScheduleError:
        return False
    return True


def _would_repeat(sch: s_tir.Schedule, block: SBlockRV, consumer: SBlockRV) -> bool:
    if is_data_parallel(sch, consumer) or not count_calls(sch.get(block).body):
        return False
    produced, consumed = access_of(sch, block), access_of(sch, consumer)
    if produced is None or consumed is None:
        return True
    return consumed.trip_count() > produced.trip_count()

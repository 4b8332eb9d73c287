"""Moves cheap data-parallel blocks of a kernel into the blocks that use them."""

import math
from collections.abc import Callable
from functools import lru_cache

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV, ScheduleError

from tvm_ext.tir_schedules.analysis.buffer_access import (
    count_calls,
    is_data_parallel,
    kernel_blocks,
    scans,
    schedule_of,
    static_extent,
    would_bloat,
)


def inlined_schedule(func: tirx.PrimFunc, repeat: bool = False) -> s_tir.Schedule:
    """A schedule of ``func`` that begins with ``inline_blocks``.

    Nearly all templates begin so: chains of small operators, of quantised models above all, are
    not walked anew by each.
    """
    return schedule_of(_inlined(func, repeat))


@lru_cache(maxsize=1)
def inlined_blocks(func: tirx.PrimFunc) -> tuple[s_tir.SBlock, ...]:
    """The blocks of ``inlined_schedule(func)``, for those that look at them only."""
    sch = inlined_schedule(func)
    return tuple(sch.get(block) for block in kernel_blocks(sch))


def inline_blocks(
    sch: s_tir.Schedule, keep: Callable[[SBlockRV], bool] = lambda _: False, repeat: bool = False
) -> None:
    """Inlines every data-parallel block whose work is not repeated by doing so, but for ``keep``.

    With ``repeat``, those whose work is repeated as well: on a GPU it costs less than a round trip
    through memory.

    A block that is read many times, by a reduction (padding, an exponential) or where its result
    is broadcast, stays a block of its own when it branches or calls a function: inlined, it would
    run once for every read.
    """
    # To the end of each round before the next: from the start again after every block, long
    # chains take time that grows with their square.
    while any(
        [not keep(block) and _inline_one(sch, block, repeat) for block in kernel_blocks(sch)]
    ):
        pass


# Of the kernel that is being scheduled: inlined, and inlined with work repeated.
@lru_cache(maxsize=2)
def _inlined(func: tirx.PrimFunc, repeat: bool) -> tirx.PrimFunc:
    sch = schedule_of(func)
    inline_blocks(sch, repeat=repeat)
    return sch.mod["main"]


def _inline_one(sch: s_tir.Schedule, block: SBlockRV, repeat: bool) -> bool:
    consumers = sch.get_consumers(block)
    if not consumers or not is_data_parallel(sch, block):
        return False
    serial = not repeat and any(not is_data_parallel(sch, consumer) for consumer in consumers)
    if serial and len(consumers) > 1 and count_calls(sch.get(block).body):
        # Softmax: an exponential that is summed and divided later would be computed twice.
        return False
    if any(
        (not repeat and _would_repeat(sch, block, consumer)) or would_bloat(sch, block, consumer)
        for consumer in consumers
    ):
        return False
    try:
        sch.compute_inline(block)
    except ScheduleError:
        return False
    return True


def _would_repeat(sch: s_tir.Schedule, block: SBlockRV, consumer: SBlockRV) -> bool:
    """Whether function calls would run more often than once for each element of the block."""
    if not count_calls(sch.get(block).body):
        return False
    produced, consumed = _extents(sch, block), _extents(sch, consumer)
    if None in produced or None in consumed or not _is_plain(sch, consumer):
        # Of symbolic extents, what is known is along how many dimensions there are elements.
        spread = sum(e != 1 for e in consumed) > sum(e != 1 for e in produced)
        return spread or not is_data_parallel(sch, consumer)
    return math.prod(e or 0 for e in consumed) > math.prod(e or 0 for e in produced)


def _extents(sch: s_tir.Schedule, block: SBlockRV) -> list[int | None]:
    return [static_extent(v.dom.extent) for v in sch.get(block).iter_vars]


def _is_plain(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether every iteration is data-parallel or one of a reduction, with one result."""
    stmt = sch.get(block)
    return len(stmt.writes) == 1 and not scans(stmt)

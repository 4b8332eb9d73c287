"""``rfactor`` for every reduction that our kernels have.

TVM takes a reduction apart only if it knows its combiner with its identity. Of minima and maxima it
knows the ones that start from the largest finite numbers; those of models start from infinity,
because the minimum of infinities is one.
"""

import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError

from tvm_ext.tir_schedules.statements import changed_block


def rfactor(sch: s_tir.Schedule, block: SBlockRV, loop: LoopRV, axis: int) -> SBlockRV:
    """The block of partial results, one for each iteration of ``loop``, along a new ``axis``.

    ``block`` is the reduction, which adds them up afterwards.

    Raises
    ------
    ScheduleError
        The loop cannot be taken apart: its block has several results at once, say. The block is
        then as before.
    """
    if any(str(write.source.dtype) == "bool" for write in sch.get(block).writes):
        # TVM asks for the largest value of every type and ends at this one.
        raise ScheduleError("a reduction of bool has no identity that TVM knows")
    start = sch.get(block).init
    value = start.value if isinstance(start, tirx.BufferStore) else None
    if not isinstance(value, tirx.FloatImm) or not math.isinf(value.value):
        return sch.rfactor(loop, axis)
    dtype = str(value.ty.dtype)
    _start_from(sch, block, (tirx.min_value if value.value < 0 else tirx.max_value)(dtype))
    try:
        partial = sch.rfactor(loop, axis)
    except ScheduleError:
        _start_from(sch, block, value)
        raise
    for part in (partial, block):
        _start_from(sch, part, value)
    return partial


def _start_from(sch: s_tir.Schedule, block: SBlockRV, value: tirx.Expr) -> None:
    before = sch.get(block)
    init = tirx.BufferStore(before.init.buffer, value, before.init.indices)
    after = changed_block(before, init=init)
    sch.state.replace(sch.get_sref(block), after, {before: after})

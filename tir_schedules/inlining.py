"""Moves cheap data-parallel blocks of a kernel into the blocks that use them."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV, ScheduleError

from tvm_ext.tir_schedules.analysis.buffer_access import nodes, static_extent

# Nodes of an expression beyond which nothing more is inlined into it. Kernels of real networks
# stay far below; the time for code generation grows with the square.
MAX_NODES = 1000


def schedule_of(func: tirx.PrimFunc) -> s_tir.Schedule:
    """A schedule of ``func`` in which nothing is done yet.

    Template after template is asked for a kernel, and begins with one: TVM looks at all of the
    kernel to make it, and at nothing to copy it.
    """
    return _untouched(func).copy()


def inlined_schedule(func: tirx.PrimFunc, repeat: bool = False) -> s_tir.Schedule:
    """A schedule of ``func`` that begins with ``inline_blocks``.

    Nearly all templates begin so: chains of small operators, of quantised models above all, are
    not walked anew by each.
    """
    return schedule_of(_inlined(func, repeat))


@lru_cache(maxsize=1)
def inlined_blocks(func: tirx.PrimFunc) -> tuple[s_tir.SBlock, ...]:
    """The blocks of ``inlined_schedule(func)``, for those that look at them only."""
    sch = _untouched(_inlined(func, repeat=False))
    return tuple(sch.get(block) for block in kernel_blocks(sch))


def inline_blocks(
    sch: s_tir.Schedule,
    keep: Callable[[SBlockRV], bool] = lambda _: False,
    repeat: bool = False,
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


def kernel_blocks(sch: s_tir.Schedule) -> list[SBlockRV]:
    """The blocks of the kernel, in program order."""
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def reduction_blocks(sch: s_tir.Schedule) -> list[SBlockRV]:
    """Those of the kernel's blocks that are not data-parallel."""
    return [block for block in kernel_blocks(sch) if not is_data_parallel(sch, block)]


def writer_of(sch: s_tir.Schedule, block: SBlockRV, buffer: tirx.Buffer) -> SBlockRV | None:
    """The block that writes what ``block`` reads as ``buffer``; None for a parameter."""
    producers = sch.get_producers(block)
    return next((p for p in producers if sch.get(p).writes[0].source.same_as(buffer)), None)


def same_block(sch: s_tir.Schedule, block: SBlockRV, other: SBlockRV) -> bool:
    """Whether two handles are of one block."""
    return bool(sch.get(block).same_as(sch.get(other)))


def is_data_parallel(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether no iteration of the block depends on another one."""
    return runs_in_any_order(sch.get(block))


def runs_in_any_order(stmt: s_tir.SBlock) -> bool:
    """The same of a block as a statement."""
    return all(v.iter_type == tirx.IterVar.DataPar for v in stmt.iter_vars)


def count_calls(expr: Any) -> int:
    """Function calls (exp, if_then_else, ...) below a statement or expression."""
    return len(nodes(expr, tvm.ir.Call))


# Of the kernel that is being scheduled: as it is, inlined, and inlined with work repeated.
@lru_cache(maxsize=3)
def _untouched(func: tirx.PrimFunc) -> s_tir.Schedule:
    return s_tir.Schedule(func)


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
    kinds = (tirx.IterVar.DataPar, tirx.IterVar.CommReduce)
    return len(stmt.writes) == 1 and all(v.iter_type in kinds for v in stmt.iter_vars)


def would_bloat(sch: s_tir.Schedule, block: SBlockRV, consumer: SBlockRV) -> bool:
    """Whether the consumer's expression would grow beyond ``MAX_NODES``.

    A chain of blocks that use their input twice (x * sigmoid(x)) doubles with each one inlined.
    """
    body = sch.get(consumer).body
    produced = sch.get(block).writes[0].source
    uses = sum(load.source.same_as(produced) for load in nodes(body, tvm.ir.TensorLoad))
    added = uses * _size(sch.get(block).body)
    return added + _size(body) > MAX_NODES


def _size(expr: tvm.ir.Expr | tirx.Stmt) -> int:
    return len(nodes(expr, tvm.ir.Expr))

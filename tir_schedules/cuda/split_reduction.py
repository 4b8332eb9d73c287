"""A reduction in parts that blocks of threads add up on their own, and the kernel that adds these.

The parts are added in the order of their numbers, so results do not change from run to run.
"""

import math

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.cuda.shared_tile import inline_other_inputs, only_consumer

THREADS = 128
MAX_LANES = 32
VECTOR = 4
"""Partial results that a thread loads at a time, 16 bytes."""

MAX_UNROLLED = 16


def split_reduction(sch: s_tir.Schedule, main: SBlockRV, splits: int) -> tuple[SBlockRV, SBlockRV]:
    """Splits a product whose loops are batch, rows, columns and steps.

    Returns the block of the partial products, whose batch is the number of the part with the
    product's own, and the block that adds them up.
    """
    *_, steps = sch.get_loops(main)
    part, _ = sch.split(steps, [splits, None])
    partial = sch.rfactor(part, 0)
    batch, rows, columns, part, steps = sch.get_loops(partial)
    sch.reorder(part, batch, rows, columns, steps)
    sch.fuse(part, batch)
    return partial, main


def schedule_total(sch: s_tir.Schedule, total: SBlockRV) -> None:
    """Adds up partial products where all that follows the product is applied to them.

    Leaves a block of its own behind where that cannot be done at once.
    """
    while (last := only_consumer(sch, total)) and sch.get_consumers(last):
        sch.compute_inline(last)
    if last is None:
        return
    inline_other_inputs(sch, last, total)
    vector = _vector(sch, last, total)
    *outer, columns = sch.get_loops(last)
    count = (static_extent(sch.get(columns).extent) or 1) // vector
    lanes = min(MAX_LANES, 1 << max(0, count - 1).bit_length())
    rows = sch.fuse(*outer) if outer else sch.add_unit_loop(columns)
    row_block, row = sch.split(rows, [None, THREADS // lanes])
    column_block, lane, column = sch.split(columns, [None, lanes, vector])
    sch.reorder(row_block, column_block, row, lane, column)
    sch.bind(sch.fuse(row_block, column_block), "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.compute_at(total, lane)
    sch.set_scope(total, 0, "local")
    parts, *elements = sch.get_loops(total)[-2 if vector > 1 else -1 :]
    for loop in elements:
        sch.vectorize(loop)
    if (static_extent(sch.get(parts).extent) or 0) <= MAX_UNROLLED:
        sch.unroll(parts)
    start = sch.decompose_reduction(total, parts)
    if vector > 1:
        sch.vectorize(sch.get_loops(start)[-1])
        sch.vectorize(column)


def _vector(sch: s_tir.Schedule, last: SBlockRV, total: SBlockRV) -> int:
    """Neighbours that a thread adds up: those that are neighbours in the result as well."""
    block, added = sch.get(last), sch.get(total).writes[0].source
    columns = block.iter_vars[-1]
    region = next(read for read in block.reads if read.source.same_as(added))
    if not region.region[-1].min.same_as(columns.var):
        return 1
    return math.gcd(VECTOR, static_extent(columns.dom.extent) or 1)

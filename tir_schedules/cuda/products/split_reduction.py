"""A reduction in parts that blocks of threads add up on their own, and the kernel that adds these.

The parts are added in the order of their numbers, so results do not change from run to run.
"""

import math

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.cuda.products.shared_tile import inline_consumers

VECTOR = 4
"""Partial results that a thread loads at a time, 16 bytes."""

THREADS, COLUMNS = 64, 64
"""Threads of a block, and the most results of a row that they add up: they divide tiles."""

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

    What cannot be applied there stays a block of its own.
    """
    results = sch.cache_write(total, 0, "local")
    batch, rows, columns, parts = sch.get_loops(total)
    vector = _vector(sch, results)
    lanes = math.gcd(COLUMNS, static_extent(sch.get(columns).extent) or 1) // vector
    row_block, row = sch.split(rows, [None, THREADS // lanes])
    column_block, lane, neighbours = sch.split(columns, [None, lanes, vector])
    sch.reorder(batch, row_block, column_block, row, lane, parts, neighbours)
    sch.bind(sch.fuse(batch, row_block, column_block), "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.reverse_compute_at(results, lane)
    inline_consumers(sch, results)
    if vector > 1:
        sch.vectorize(neighbours)
    if (static_extent(sch.get(parts).extent) or 0) <= MAX_UNROLLED:
        sch.unroll(parts)
    start = sch.decompose_reduction(total, parts)
    if vector > 1:
        sch.vectorize(sch.get_loops(start)[-1])
        sch.vectorize(sch.get_loops(results)[-1])


def _vector(sch: s_tir.Schedule, results: SBlockRV) -> int:
    """How many neighbours are written at a time, after all that follows; ``sch`` stays as it is.

    More for a thread would be written one by one, to each sector in pieces.
    """
    trial = sch.copy()
    block = trial.get_sblock(sch.get(results).name_hint)
    inline_consumers(trial, block)
    return math.gcd(VECTOR, static_extent(trial.get(block).writes[0].source.shape[-1]) or 1)

"""A product of float32 without tensor cores: every thread adds up 8x8 results in registers.

A warp computes 32 x 64 results as 4 x 8 threads, or more of one and less of the other where a
product is narrow. For four steps of the reduction a thread loads its rows and its columns from
shared memory and does 256 multiply-adds.
"""

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.tir_schedules.cuda.products.contraction_decision import TileSizes
from tvm_ext.tir_schedules.cuda.products.lane_order import OWN, order_columns, order_rows
from tvm_ext.tir_schedules.cuda.products.shared_tile import (
    bind_blocks,
    copy_to_shared,
    pad_rows,
    write_results,
)

ROWS = COLUMNS = OWN
VECTOR, OTHER_VECTOR = 2, 4
"""Neighbours that are loaded at a time, the second where two are copied from global memory.

TVM 0.27 makes an array of vectors of one whose accesses are all of one width, and then fails on
asynchronous copies to it.
"""

STEPS = 4
"""Steps of the reduction whose operands are in registers."""

LANES = 32
REGISTER_TILES = tuple((n * ROWS, LANES // n * COLUMNS) for n in (1, 2, 4, 8, 16, 32))
"""Rows and columns that a warp may compute."""


def schedule_registers(
    sch: s_tir.Schedule,
    main: SBlockRV,
    tiles: TileSizes,
    depth_last: tuple[bool, bool],
    described: bool,
) -> None:
    """Schedules a product that is padded to whole ``tiles``.

    ``depth_last``: for A and B whether neighbours in memory are neighbours along the steps.
    ``described``: copies are not asynchronous, so that a CPU can run them.
    """
    batch, i, j, k = sch.get_loops(main)
    lane_counts = tiles.warp_rows // ROWS, tiles.warp_columns // COLUMNS
    factors = [None, tiles.rows // tiles.warp_rows, lane_counts[0], ROWS]
    row_block, row_warp, row_lane, row = sch.split(i, factors)
    factors = [None, tiles.columns // tiles.warp_columns, lane_counts[1], COLUMNS]
    column_block, column_warp, column_lane, column = sch.split(j, factors)
    steps, part, step = sch.split(k, [None, tiles.depth // STEPS, STEPS])
    blocks, warps = (batch, row_block, column_block), (row_warp, column_warp)
    lanes = (row_lane, column_lane)
    sch.reorder(*blocks, *warps, *lanes, steps, part, step, row, column)
    block = bind_blocks(sch, blocks, tiles)
    warp, lane = sch.fuse(*warps), sch.fuse(*lanes)
    sch.bind(warp, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    copied = [copy_to_shared(sch, main, operand, steps, tiles.warps) for operand in (0, 1)]
    for operand in (0, 1):
        fragment = sch.cache_read(main, operand, "local")
        sch.compute_at(fragment, part)
        _in_vectors(sch, fragment, OTHER_VECTOR if copied[operand] == VECTOR else VECTOR)
        if depth_last[operand]:
            order_rows(sch, fragment, lane_counts[operand], tiles.depth)
        else:
            order_columns(sch, fragment, "read", lane_counts[operand])
    results = sch.cache_write(main, 0, "shared.dyn")
    kept = sch.cache_write(main, 0, "local")
    sch.reverse_compute_at(kept, lane)
    sch.reverse_compute_at(results, block)
    _in_vectors(sch, kept, OTHER_VECTOR)
    order_columns(sch, kept, "write", lane_counts[1])
    for loop in (step, row, column):
        sch.unroll(loop)
    start = sch.decompose_reduction(main, steps)
    for loop in sch.get_loops(start)[-2:]:
        sch.unroll(loop)
    pad_rows(sch, kept, write_results(sch, results, tiles, OTHER_VECTOR))
    if tiles.stages > 1:
        sch.annotate(steps, "software_pipeline_stage", [0, 0, tiles.stages - 1])
        sch.annotate(steps, "software_pipeline_order", [0, 1, 2])
        if not described:
            sch.annotate(steps, "software_pipeline_async_stages", [0])


def _in_vectors(sch: s_tir.Schedule, copy: SBlockRV, lanes: int) -> None:
    """Unrolls a copy between shared memory and registers, ``lanes`` neighbours at a time."""
    *_, outer, inner = sch.get_loops(copy)
    sch.unroll(outer)
    rest, vector = sch.split(inner, [None, lanes])
    sch.unroll(rest)
    sch.vectorize(vector)

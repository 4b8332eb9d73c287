"""A product by matrix instructions: every warp loads fragments of the tiles and multiplies them.

The fragments for the next instruction are loaded while the last ones are multiplied.
"""

from collections.abc import Callable
from typing import Any

from tvm import s_tir
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.tir_schedules.cuda.products.contraction_decision import TileSizes
from tvm_ext.tir_schedules.cuda.products.matrix_fragments import (
    OPERANDS,
    TILE,
    MatrixInstruction,
    Operand,
    result_fragment,
)
from tvm_ext.tir_schedules.cuda.products.matrix_intrinsics import (
    fill_intrinsic,
    load_intrinsic,
    multiply_intrinsic,
    store_intrinsic,
)
from tvm_ext.tir_schedules.cuda.products.shared_tile import (
    bind_blocks,
    copy_to_shared,
    pad_rows,
    write_results,
)

RESULT_PADDING = 8
"""Elements after each row of results: the rows of four lanes then fill the banks."""

MIN_NESTED_STAGES = 3
"""Stages from which on fragments are loaded one instruction ahead.

With two, the first load of a tile would be in the stage of its copy, and TVM 0.27 then waits for a
copy before it commits it.
"""


def schedule_warps(
    sch: s_tir.Schedule,
    main: SBlockRV,
    tiles: TileSizes,
    instruction: MatrixInstruction,
    depth_last: tuple[bool, bool],
    described: bool,
) -> None:
    """Schedules a product that is padded to whole ``tiles``.

    ``depth_last``: for A and B whether steps are neighbours in memory. ``described``: the loops
    that each instruction stands for are left in its place.
    """
    batch, i, j, k = sch.get_loops(main)
    factors = [None, tiles.rows // tiles.warp_rows, tiles.warp_rows // TILE, TILE]
    row_block, row_warp, row_tile, row = sch.split(i, factors)
    factors = [None, tiles.columns // tiles.warp_columns, tiles.warp_columns // TILE, TILE]
    column_block, column_warp, column_tile, column = sch.split(j, factors)
    depth = instruction.depth
    steps, part, step = sch.split(k, [None, tiles.depth // depth, depth])
    blocks, warps = (batch, row_block, column_block), (row_warp, column_warp)
    sch.reorder(*blocks, *warps, steps, part, row_tile, column_tile, row, column, step)
    outer = sch.blockize(row)
    block = bind_blocks(sch, blocks, tiles)
    warp = sch.fuse(*warps)
    sch.bind(warp, "threadIdx.y")
    for operand in (0, 1):
        copy_to_shared(sch, outer, operand, steps, tiles.warps)
    fragments = [sch.cache_read(outer, operand, "local") for operand in (0, 1)]
    results = sch.cache_write(outer, 0, "shared.dyn")
    kept = sch.cache_write(outer, 0, "local")
    sch.reverse_compute_at(kept, warp)
    sch.reverse_compute_at(results, block)
    for fragment in fragments:
        sch.compute_at(fragment, part)
    for loop in (row_tile, column_tile):
        sch.unroll(loop)
    inner = [
        _operand_tiles(sch, block, instruction, name, order)
        for block, name, order in zip(fragments, OPERANDS, depth_last, strict=True)
    ]
    stored = _in_tiles(sch, kept, "read", (TILE, TILE), result_fragment)
    start = sch.decompose_reduction(outer, steps)
    for loop in sch.get_loops(start)[-2:]:
        sch.unroll(loop)
    filled = sch.get_child_blocks(start)[0]
    vector = write_results(sch, results, tiles)
    kept = sch.blockize(stored)
    pad_rows(sch, kept, max(vector, RESULT_PADDING))
    if not described:
        for loop, name, order in zip(inner, OPERANDS, depth_last, strict=True):
            sch.tensorize(loop, load_intrinsic(instruction, name, order))
        sch.tensorize(sch.get_loops(main)[-3], multiply_intrinsic(instruction))
        sch.tensorize(sch.get_loops(filled)[-2], fill_intrinsic(instruction.accumulator))
        sch.tensorize(kept, store_intrinsic(instruction.accumulator))
    if tiles.stages > 1:
        _pipeline(sch, steps, part, tiles, instruction, asynchronous=not described)


def _operand_tiles(
    sch: s_tir.Schedule,
    block: SBlockRV,
    instruction: MatrixInstruction,
    operand: Operand,
    depth_last: bool,
) -> LoopRV:
    """Cuts the copy of an operand to registers; returns the loop that one load replaces."""

    def place(x: Any, y: Any) -> tuple[Any, Any]:
        return instruction.fragment(operand, *((x, y) if depth_last else (y, x)))

    shape = (TILE, instruction.depth) if depth_last else (instruction.depth, TILE)
    return _in_tiles(sch, block, "write", shape, place)


def _in_tiles(
    sch: s_tir.Schedule,
    block: SBlockRV,
    registers: str,
    shape: tuple[int, int],
    place: Callable[[Any, Any], tuple[Any, Any]],
) -> LoopRV:
    """Cuts a copy into tiles, whose elements are in ``registers`` where ``place`` says."""
    i, j = sch.get_loops(block)[-2:]
    outer_i, inner_i = sch.split(i, [None, shape[0]])
    outer_j, inner_j = sch.split(j, [None, shape[1]])
    sch.reorder(outer_i, outer_j, inner_i, inner_j)
    sch.unroll(outer_i)
    sch.unroll(outer_j)

    def kept(*index: Any) -> list[Any]:
        *batch, x, y = index
        return [*batch, x // shape[0], y // shape[1], *place(x % shape[0], y % shape[1])]

    sch.transform_layout(block, (registers, 0), kept)
    return inner_i


def _pipeline(
    sch: s_tir.Schedule,
    steps: LoopRV,
    part: LoopRV,
    tiles: TileSizes,
    instruction: MatrixInstruction,
    asynchronous: bool,
) -> None:
    """Copies run ``stages - 1`` tiles ahead of the products, fragments one instruction ahead."""
    last = tiles.stages - 1
    if tiles.depth > instruction.depth and tiles.stages >= MIN_NESTED_STAGES:
        # The loop over the parts becomes three: the first load, loads and products, last products.
        # The first load of the next tile goes between the last two of this one.
        stages, order = [0, 0, last - 1, last, last], [0, 1, 3, 2, 4]
        sch.annotate(part, "software_pipeline_stage", [0, 0, 1])
        sch.annotate(part, "software_pipeline_order", [0, 1, 2])
    else:
        stages, order = [0, 0, last], [0, 1, 2]
    sch.annotate(steps, "software_pipeline_stage", stages)
    sch.annotate(steps, "software_pipeline_order", order)
    if asynchronous:
        sch.annotate(steps, "software_pipeline_async_stages", [0])

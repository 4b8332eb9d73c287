"""The mainloops of matmul: by ``mma.sync`` on tensor cores, and by CUDA cores for float32.

On tensor cores every warp loads fragments of the tiles and multiplies them; the fragments for
the next instruction are loaded while the last ones are multiplied.
"""

from collections.abc import Callable
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.hardware.matrix_instructions import MatrixInstruction
from tvm_ext.tir_schedules.analysis.buffer_access import element_bytes, static_extent
from tvm_ext.tir_schedules.cuda.matmul.matmul_decision import MatmulTileSizes
from tvm_ext.tir_schedules.cuda.matmul.shared_tile import (
    bind_blocks,
    copy_to_shared,
    pad_rows,
    write_results,
)
from tvm_ext.tir_schedules.cuda.warp_instructions import (
    OPERANDS,
    TILE,
    Operand,
    fill_intrinsic,
    fragment,
    load_intrinsic,
    multiply_intrinsic,
    result_fragment,
    store_intrinsic,
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
    tiles: MatmulTileSizes,
    instruction: MatrixInstruction,
    depth_last: tuple[bool, bool],
    described: bool,
) -> None:
    """Schedules a matmul that is padded to whole ``tiles``.

    ``depth_last``: for A and B whether steps are neighbours in memory. ``described``: the loops
    that each instruction stands for are left in its place.
    """
    batch, i, j, k = sch.get_loops(main)
    factors = [None, tiles.rows // tiles.warp_rows, tiles.warp_rows // TILE, TILE]
    row_block, row_warp, row_tile, row = sch.split(i, factors)
    factors = [None, tiles.columns // tiles.warp_columns, tiles.warp_columns // TILE, TILE]
    column_block, column_warp, column_tile, column = sch.split(j, factors)
    depth = instruction.k
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
    for copy in fragments:
        sch.compute_at(copy, part)
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

    def place(x: tvm.ir.Expr, y: tvm.ir.Expr) -> tuple[Any, Any]:
        return fragment(instruction, operand, *((x, y) if depth_last else (y, x)))

    shape = (TILE, instruction.k) if depth_last else (instruction.k, TILE)
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

    def kept(*index: Any) -> list[tvm.ir.Expr]:
        *batch, x, y = index
        return [*batch, x // shape[0], y // shape[1], *place(x % shape[0], y % shape[1])]

    sch.transform_layout(block, (registers, 0), kept)
    return inner_i


def _pipeline(
    sch: s_tir.Schedule,
    steps: LoopRV,
    part: LoopRV,
    tiles: MatmulTileSizes,
    instruction: MatrixInstruction,
    asynchronous: bool,
) -> None:
    """Copies run ``stages - 1`` tiles ahead of the products, fragments one instruction ahead."""
    last = tiles.stages - 1
    if tiles.depth > instruction.k and tiles.stages >= MIN_NESTED_STAGES:
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


# Where a tile in shared memory keeps the rows and columns of a matmul, by the lanes they are of.
#
# A lane of a warp multiplies ``OWN`` neighbours. Where these are neighbours in shared memory too,
# the lanes' first ones are ``OWN`` elements apart, and fall into few of the 32 banks. So four
# neighbours of every lane come first, and after them the next four of every lane; in a tile whose
# rows the lanes share, the first row of every lane, then the second. Each of these groups begins
# with another lane, so that neighbours, which are written together, are not in the same banks
# either.


OWN = 8
"""Neighbours that a lane multiplies."""

PIECE_BYTES = 16
"""Neighbours that stay neighbours: the widest copy."""


def order_columns(sch: s_tir.Schedule, block: SBlockRV, side: str, lanes: int) -> None:
    """Orders the columns of the tile that ``block`` reads or writes by the lanes that share them.

    ``side``: "read" or "write".
    """
    piece = PIECE_BYTES // element_bytes(_tile(sch, block, side))
    _order(sch, block, side, -1, lambda at: _place(at, lanes, piece, lanes // 2))


def order_rows(sch: s_tir.Schedule, reader: SBlockRV, lanes: int, row_elements: int) -> None:
    """Orders the rows, of ``row_elements``, of the tile that ``reader`` reads by lanes."""
    pieces = row_elements * element_bytes(_tile(sch, reader, "read")) // PIECE_BYTES
    _order(sch, reader, "read", -2, lambda at: _place(at, lanes, 1, max(1, pieces)))


def _order(
    sch: s_tir.Schedule, block: SBlockRV, side: str, axis: int, place: Callable[[Any], Any]
) -> None:
    """Changes the order of a tile's axis; one of unknown extent stays as it is."""
    if static_extent(_tile(sch, block, side).shape[axis]) is None:
        return

    def places(*indices: Any) -> list[tvm.ir.Expr]:
        at = list(indices)
        at[axis] = place(at[axis])
        return at

    # What TVM 0.27 cannot invert, it cannot see to be one to one.
    sch.transform_layout(block, (side, 0), places, assume_injective_transform=True)


def _tile(sch: s_tir.Schedule, block: SBlockRV, side: str) -> tirx.Buffer:
    found = sch.get(block)
    return (found.reads if side == "read" else found.writes)[0].source


def _place(at: tvm.ir.Expr, lanes: int, piece: int, turn: int) -> tvm.ir.Expr:
    """By the number of a lane's piece, the lane, and the place in the piece."""
    span = OWN * lanes
    number, lane = at % OWN // piece, at % span // OWN
    transposed = (lane + number * turn) % lanes
    return at // span * span + number * (piece * lanes) + transposed * piece + at % piece


# A matmul of float32 without tensor cores: every thread adds up 8x8 results in registers.
#
# A warp computes 32 x 64 results as 4 x 8 threads, or more of one and less of the other where a
# product is narrow. For four steps of the reduction a thread loads its rows and its columns from
# shared memory and does 256 multiply-adds.


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

REGISTER_DEPTH = 8
"""Steps of which tiles in shared memory have multiples."""


def schedule_registers(
    sch: s_tir.Schedule,
    main: SBlockRV,
    tiles: MatmulTileSizes,
    depth_last: tuple[bool, bool],
    described: bool,
) -> None:
    """Schedules a matmul that is padded to whole ``tiles``.

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

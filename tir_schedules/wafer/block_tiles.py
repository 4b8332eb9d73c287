"""Schedules a kernel block by block: each in loops of its own, with copies of what it reads."""

from collections.abc import Sequence

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.tir_schedules.block_access import read_position, static_extent
from tvm_ext.tir_schedules.inlining import kernel_blocks
from tvm_ext.tir_schedules.wafer.annotations import COMMUNICATION, HOME
from tvm_ext.tir_schedules.wafer.block_statements import with_changes
from tvm_ext.tir_schedules.wafer.dimensions import plain_block_refusal
from tvm_ext.tir_schedules.wafer.mesh_cut import Part, place_block
from tvm_ext.tir_schedules.wafer.tile_plan import BlockPlan, TilePlan


def schedule_tiles(sch: s_tir.Schedule, plan: TilePlan) -> s_tir.Schedule:
    """A schedule for the kernel in ``sch``, of which no loop was touched, as ``plan`` says."""
    changes = {i: one.change for i, one in enumerate(plan.blocks) if one.change is not None}
    if changes:
        sch = s_tir.Schedule(with_changes(sch.mod["main"], changes))
    waiting = iter(kernel_blocks(sch))
    for one in plan.blocks:
        tiles = [next(waiting) for _ in one.patterns]
        _schedule_block(sch, next(waiting), one, tiles)
    root = sch.get_sblock("root")
    for position, words in plan.homes.items():
        sch.annotate(root, f"{HOME}{position}", words)
    return sch


def _schedule_block(
    sch: s_tir.Schedule,
    block: SBlockRV,
    plan: BlockPlan,
    tiles: Sequence[SBlockRV],
) -> None:
    stmt = sch.get(block)
    loops = list(sch.get_loops(block))
    plain = plain_block_refusal(stmt) is None
    if len(loops) != len(stmt.iter_vars) and not (plain and not loops):
        # Loops written by hand, inside of the block.
        return
    parts = [
        Part(loop, position, plain and one.iter_type == tirx.IterVar.CommReduce)
        for position, (loop, one) in enumerate(zip(loops, stmt.iter_vars, strict=False))
    ]
    placed = place_block(sch, block, parts, plan.cut)
    for tile, pattern in zip(tiles, plan.patterns, strict=True):
        sch.compute_at(tile, placed.under)
        sch.annotate(tile, COMMUNICATION, pattern)
    for buffer, pattern in plan.windows:
        position = read_position(sch.get(block), buffer)
        copy = sch.cache_read(block, position, "local", [block])
        sch.compute_at(copy, placed.under)
        if any(static_extent(sch.get(loop).extent) is None for loop in sch.get_loops(copy)):
            # Its size differs from PE to PE: read where it lies.
            sch.compute_inline(copy)
            continue
        sch.annotate(copy, COMMUNICATION, pattern)

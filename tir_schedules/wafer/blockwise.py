"""The generic schedule for meshes: every block on its own, with copies of what lies elsewhere."""

from collections.abc import Sequence

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.description import WaferDescription
from tvm_ext.tir_schedules.analysis.buffer_access import kernel_blocks, read_position, static_extent
from tvm_ext.tir_schedules.analysis.dimensions import plain_block_refusal
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.template import Decisions
from tvm_ext.tir_schedules.wafer.annotations import COMMUNICATION, HOME
from tvm_ext.tir_schedules.wafer.block_statements import (
    share_loops,
    with_changes,
    with_separate_sums,
)
from tvm_ext.tir_schedules.wafer.mesh_partition import LoopShare, place_block
from tvm_ext.tir_schedules.wafer.tile_plan import TilePlan, WaferBlockPlan, plan_tiles

# Schedules a kernel block by block: each in loops of its own, with copies of what it reads.


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
    sch: s_tir.Schedule, block: SBlockRV, plan: WaferBlockPlan, tiles: Sequence[SBlockRV]
) -> None:
    stmt = sch.get(block)
    loops = list(sch.get_loops(block))
    plain = plain_block_refusal(stmt) is None
    if len(loops) != len(stmt.iter_vars) and not (plain and not loops):
        # Loops written by hand, inside of the block.
        return
    parts = [
        LoopShare(loop, position, plain and one.iter_type == tirx.IterVar.CommReduce)
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


class WaferBlockwise:
    """Any kernel made of blocks with known extents.

    The two largest loops of each block's result are cut over rows and columns. Tiles of what it
    reads come from wherever they lie; what depends on data (a gather by indices of the run) is
    left as it is.
    """

    name = "wafer blockwise"
    machine_type = WaferDescription

    def apply(
        self, func: tirx.PrimFunc, machine: WaferDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        if share_loops(func):
            raise NotApplicable("blocks share loops")
        func = with_separate_sums(func)
        sch = inlined_schedule(func)
        stmts = [sch.get(block) for block in kernel_blocks(sch)]
        extents = [static_extent(one.dom.extent) for stmt in stmts for one in stmt.iter_vars]
        if not stmts:
            raise NotApplicable("the kernel has no blocks: its loops are written by hand")
        if None in extents:
            raise NotApplicable("an extent is not known")
        if 0 in extents:
            raise NotApplicable("there is nothing to compute")
        return schedule_tiles(sch, plan_tiles(func, stmts, machine, decisions))

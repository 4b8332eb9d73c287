"""Convolution, matrix product and pooling: a tile of outputs held in vector registers.

The loops around the multiply-add become, from the outside in: tiles (over threads), the whole
reduction, the rows of the tile (unrolled), and its columns (one or two vectors). Bias, residual
and activation run where a tile is written back.
"""

import math

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import (
    BlockAccess,
    access_of,
    buffer_bytes,
    operands_of,
)
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.inlining import (
    count_calls,
    inlined_schedule,
    is_data_parallel,
    kernel_blocks,
)
from tvm_ext.tir_schedules.llvm.borders import split_at_borders
from tvm_ext.tir_schedules.llvm.column_panel import column_panel
from tvm_ext.tir_schedules.llvm.loop_nest import flatten, parallelize, schedule_data_parallel
from tvm_ext.tir_schedules.llvm.operand_stage import OperandStage, write_stage
from tvm_ext.tir_schedules.llvm.padding_stage import padding_stage
from tvm_ext.tir_schedules.llvm.register_tile_decision import TileDecision, decide_tile
from tvm_ext.tir_schedules.llvm.transposed_operand import turn_operand
from tvm_ext.tir_schedules.packing import pack_operand
from tvm_ext.tir_schedules.template import Machine, NotMine

# Steps of the innermost reduction that a tuner may unroll, in full where it has no more.
STEPS_UNROLLED = (2, 3, 4)


class RegisterTile:
    """Kernels with one reduction: matmul, convolution, pooling, sums over strided axes."""

    name = "register tile"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``.

        Decisions: those of ``decide_tile``, ``column_panel`` and ``padding_stage``;
        ``columns_first``, the order of the tiles; ``packed``; ``reduction_unroll``; ``threads``.
        """
        if not isinstance(machine, CpuDescription):
            return NotMine("the target is not a CPU")
        sch = inlined_schedule(func)
        access = _anchor_access(sch)
        if isinstance(access, NotMine):
            return access
        dtype = str(sch.get(access.block).writes[0].source.dtype)
        decision = decide_tile(access, machine, dtype, decisions)
        if isinstance(decision, NotMine):
            access = turn_operand(sch, access) or access
            decision = decide_tile(access, machine, dtype, decisions)
        if isinstance(decision, NotMine):
            return decision
        blocks = kernel_blocks(sch)
        anchor = access.block
        others = [block for block in blocks if not sch.get(block).same_as(sch.get(anchor))]
        write_back = self._write_back_block(sch, anchor, access)
        columns_first = _columns_outermost(sch, access, decision, machine)
        stage = column_panel(sch, access, decision, machine, columns_first, decisions)
        if stage is None and _has_two_orders(access, decision):
            columns_first = bool(decisions.pick("columns_first", (0, 1), int(columns_first)))
        sch = _packed(sch, access, decision, stage is None, decisions)
        if stage is None and not columns_first:
            stage = padding_stage(sch, access, decision.rows, machine, decisions)
        tile_loop = self._tile(sch, access, decision, machine, columns_first, stage, decisions)
        done = [stage.block] if stage is not None else []
        if self._place_write_back(sch, write_back, tile_loop):
            done.append(write_back)
        for block in others:
            if not any(sch.get(block).same_as(sch.get(known)) for known in done):
                schedule_beside(sch, block, machine)
        return sch

    def _write_back_block(
        self, sch: s_tir.Schedule, anchor: SBlockRV, access: BlockAccess
    ) -> SBlockRV:
        """The epilogue that reads the tile, or a copy of it to the output."""
        consumers = sch.get_consumers(anchor)
        if len(consumers) == 1 and is_data_parallel(sch, consumers[0]):
            written = access_of(sch, consumers[0])
            # Fewer results: padded channels are cropped. More, a result that is broadcast (squeeze
            # and excite), would be unrolled as often as it is repeated: such a consumer keeps a
            # loop nest of its own.
            if written is not None and written.trip_count() <= _result_count(access):
                return consumers[0]
        return sch.cache_write(anchor, 0, "global")

    def _tile(
        self,
        sch: s_tir.Schedule,
        access: BlockAccess,
        decision: TileDecision,
        machine: CpuDescription,
        columns_first: bool,
        stage: OperandStage | None,
        decisions: Decisions,
    ) -> LoopRV:
        """Splits and orders the loops; returns the loop in which one tile is finished."""
        loops = list(sch.get_loops(access.block))
        dtype = str(sch.get(access.block).writes[0].source.dtype)
        lanes = machine.vector_lanes(dtype)
        blocks: list[LoopRV] = []
        outer: list[LoopRV] = []
        rows: list[LoopRV] = []
        vector_outer, vector = sch.split(
            loops[decision.vector_axis], factors=[None, decision.columns]
        )
        for axis in access.spatial:
            if axis == decision.vector_axis:
                continue
            size = decision.rows.get(axis, 1)
            split, row = sch.split(loops[axis], factors=[None, size])
            if stage is not None and axis == stage.axis:
                block, split = sch.split(split, factors=[None, stage.tiles])
                # All that is outside of the rows of tiles.
                blocks, outer = [*outer, block], []
            outer.append(split)
            rows.append(row)
        reduction = _reduction_loops(sch, access, loops, decisions)
        if stage is not None and stage.per_column:
            blocks.append(vector_outer)
        else:
            outer.insert(0 if columns_first else len(outer), vector_outer)
        sch.reorder(*blocks, *outer, *reduction, *rows, vector)
        tiles = sch.fuse(*outer) if len(outer) > 1 else outer[0]
        parallel = tiles
        if stage is not None:
            parallel = sch.fuse(*blocks) if len(blocks) > 1 else blocks[0]
            write_stage(sch, stage, parallel, lanes)
        flatten(sch, [*rows, vector])
        parallelize(sch, [parallel], machine, access.trip_count(), lanes, decisions)
        init = sch.decompose_reduction(access.block, reduction[0])
        flatten(sch, list(sch.get_loops(init))[-len(rows) - 1 :])
        return tiles

    def _place_write_back(self, sch: s_tir.Schedule, block: SBlockRV, tile_loop: LoopRV) -> bool:
        """Moves the epilogue into the loop over tiles; False when it indexes in another order."""
        try:
            sch.reverse_compute_at(block, tile_loop)
        except ScheduleError:
            return False
        # Loops of extent 1 are gone: a tile of one element has none left.
        loops = list(sch.get_loops(block))
        around = next(
            i for i, loop in enumerate(loops) if sch.get(loop).same_as(sch.get(tile_loop))
        )
        flatten(sch, loops[around + 1 :])
        return True


def _anchor_access(sch: s_tir.Schedule) -> BlockAccess | NotMine:
    """The access of the kernel's only reduction."""
    blocks = kernel_blocks(sch)
    reductions = [block for block in blocks if not is_data_parallel(sch, block)]
    if len(reductions) != 1:
        return NotMine(f"the kernel has {len(reductions)} reductions, not one")
    access = access_of(sch, reductions[0])
    if access is None or any(access_of(sch, block) is None for block in blocks):
        return NotMine("a loop has a symbolic extent, scans, or writes several buffers")
    return access if access.trip_count() else NotMine("a loop has no iterations")


def schedule_beside(sch: s_tir.Schedule, block: SBlockRV, machine: CpuDescription) -> None:
    """A loop nest of its own for a data-parallel block that could not move into the anchor's."""
    access = access_of(sch, block)
    if access is None or not is_data_parallel(sch, block):
        return
    dtype = str(sch.get(block).writes[0].source.dtype)
    calls = count_calls(sch.get(block).body)
    branching = schedule_data_parallel(sch, access, machine, dtype, calls)
    if branching is not None:
        split_at_borders(sch, *branching)


def _reduction_loops(
    sch: s_tir.Schedule, access: BlockAccess, loops: list[LoopRV], decisions: Decisions
) -> list[LoopRV]:
    """The loops that reduce, and if so decided a few steps of the innermost, unrolled."""
    reduction = [loops[axis] for axis in access.reduction]
    repeated = [axis for axis in access.reduction if access.extents[axis] > 1]
    if not repeated:
        return reduction
    extent = access.extents[repeated[-1]]
    options = [1, *(steps for steps in STEPS_UNROLLED if extent % steps == 0)]
    steps = decisions.pick("reduction_unroll", options, 1)
    if steps == 1:
        return reduction
    outer, inner = sch.split(loops[repeated[-1]], factors=[None, steps])
    sch.unroll(inner)
    reduction[access.reduction.index(repeated[-1])] = outer
    return [*reduction, inner]


def _has_two_orders(access: BlockAccess, decision: TileDecision) -> bool:
    """Whether there are several tiles both along the columns and along other loops."""
    sizes = {**decision.rows, decision.vector_axis: decision.columns}
    tiled = [axis for axis in access.spatial if access.extents[axis] > sizes.get(axis, 1)]
    return decision.vector_axis in tiled and len(tiled) > 1


def _packed(
    sch: s_tir.Schedule,
    access: BlockAccess,
    decision: TileDecision,
    columns: bool,
    decisions: Decisions,
) -> s_tir.Schedule:
    """``sch``, or a copy of it in which an operand is packed."""
    packed = sch.copy()
    if not _pack_operands(packed, access, decision, columns):
        return sch
    return packed if decisions.pick("packed", (0, 1), 1) else sch


def _pack_operands(
    sch: s_tir.Schedule, access: BlockAccess, decision: TileDecision, columns: bool
) -> bool:
    """Packs by tiles what ``columns`` select, or else what the rows select, if it is constant.

    With channels first the columns are pixels, and the rows select weights.
    """
    axes = [(decision.vector_axis, decision.columns)] if columns else []
    for axis, size in (*axes, *decision.rows.items()):
        for index, strides in enumerate(access.read_strides):
            along = {spatial for spatial in access.spatial if strides[spatial] != 0}
            if along == {axis} and pack_operand(sch, access.block, index, axis, size):
                return True
    return False


def _result_count(access: BlockAccess) -> int:
    return math.prod(access.extents[axis] for axis in access.spatial)


def _columns_outermost(
    sch: s_tir.Schedule, access: BlockAccess, decision: TileDecision, machine: CpuDescription
) -> bool:
    """Whether the operand that the columns select (weights) is too large to stay in cache.

    If so, its part for one tile stays while all rows pass. If not, rows go outermost: a thread then
    works on one stretch of the rows, and finds what it wrote there in the kernel before.
    """
    total = 0
    operands = operands_of(sch.get(access.block))
    for read, strides in zip(operands, access.read_strides, strict=True):
        if strides[decision.vector_axis] == 1 and not any(strides[a] for a in decision.rows):
            total += buffer_bytes(read.source)
    return total > machine.l2_bytes // 2

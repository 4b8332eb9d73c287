"""Convolution, matrix product and pooling: a tile of outputs held in vector registers.

The loops around the multiply-add become, from the outside in: tiles (over threads), the whole
reduction, the rows of the tile (unrolled), and its columns (one or two vectors). Bias, residual
and activation run where a tile is written back.
"""

import math
from dataclasses import dataclass

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import BlockAccess, access_of, operands_of, static_extent
from tvm_ext.tir_schedules.llvm.inlining import (
    count_calls,
    inline_blocks,
    is_data_parallel,
    kernel_blocks,
)
from tvm_ext.tir_schedules.llvm.loop_nest import (
    largest_divisor,
    parallelize,
    schedule_data_parallel,
    vector_length,
)
from tvm_ext.tir_schedules.llvm.padding_stage import (
    PaddingStage,
    padding_stage,
    write_padding,
)
from tvm_ext.tir_schedules.packing import pack_operand
from tvm_ext.tir_schedules.template import Machine, NotMine

# Accumulators that keep the multiply-add units busy: latency times units, doubled for comfort.
ENOUGH_ACCUMULATORS = 8


@dataclass(frozen=True)
class TileDecision:
    """Shape of the register tile.

    Attributes
    ----------
    vector_axis : int
        Loop of the reduction block whose elements fill the vectors.
    columns : int
        Elements of the tile along it.
    rows : dict[int, int]
        Other spatial loops and how many of their iterations the tile holds.
    """

    vector_axis: int
    columns: int
    rows: dict[int, int]


def decide_tile(access: BlockAccess, machine: CpuDescription, dtype: str) -> TileDecision | NotMine:
    """The closed-form choice: two vectors wide, as many rows as leave registers for operands."""
    vector_axis = _vector_axis(access)
    if vector_axis is None:
        return NotMine("no data-parallel loop walks the output and the inputs without a stride")
    lanes = machine.vector_lanes(dtype)
    wide = [_tile_of(access, machine, vector_axis, lanes, vectors) for vectors in (2, 4)]
    # Few rows (small batches, a single vector): more columns, so that no sum waits for itself.
    enough = (tile for tile in wide if _accumulators(tile, lanes) >= ENOUGH_ACCUMULATORS)
    return next(enough, wide[-1])


def _tile_of(
    access: BlockAccess, machine: CpuDescription, vector_axis: int, lanes: int, registers: int
) -> TileDecision:
    """The tile with up to ``registers`` vectors of columns and as many rows as then fit."""
    columns = vector_length(access.extents[vector_axis], lanes, registers)
    vectors = max(1, -(-columns // lanes))
    # One vector a column of operands, and one for the broadcast value of a row.
    row_limit = max(1, (vector_registers(machine) - vectors - 1) // vectors)
    axes = list(reversed(_reuse_axes(access, vector_axis)))
    rows = _dividing_rows(access, axes, row_limit)
    if axes and math.prod(rows.values()) * vectors < ENOUGH_ACCUMULATORS:
        extents = {axis: access.extents[axis] for axis in axes}
        longest = max(axes, key=lambda axis: min(extents[axis], row_limit))
        rest = {longest: rows_with_rest(extents[longest], row_limit)}
        rows = max(rows, rest, key=lambda chosen: math.prod(chosen.values()))
    return TileDecision(vector_axis, columns, rows)


def _accumulators(tile: TileDecision, lanes: int) -> int:
    return math.prod(tile.rows.values()) * max(1, -(-tile.columns // lanes))


def _dividing_rows(access: BlockAccess, axes: list[int], limit: int) -> dict[int, int]:
    rows: dict[int, int] = {}
    for axis in axes:
        size = largest_divisor(access.extents[axis], limit)
        if size > 1:
            rows[axis] = size
            limit //= size
    return rows


def rows_with_rest(extent: int, limit: int) -> int:
    """Rows of the tile along a loop whose ``extent`` has no good divisor: even parts.

    Unlike columns, rows may leave a rest: the branch that skips them is the same for a whole
    vector and costs little. It takes registers, though: with two rows fewer than ``limit``, tiles
    of 38 and 161 ran at full speed, and at 45 and 70 % of it without.
    """
    tiles = -(-extent // max(limit - 2, 1))
    return -(-extent // tiles)


def vector_registers(machine: CpuDescription) -> int:
    """Vector registers of the instruction set: 32 with AVX-512 and NEON, 16 below."""
    if machine.vector_bits >= 512 or machine.architecture == "aarch64":
        return 32
    return 16


class RegisterTile:
    """Kernels with one reduction: matmul, convolution, pooling, sums over strided axes."""

    name = "register tile"

    def apply(self, func: tirx.PrimFunc, machine: Machine) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, CpuDescription):
            return NotMine("the target is not a CPU")
        sch = s_tir.Schedule(func)
        inline_blocks(sch)
        blocks = kernel_blocks(sch)
        reductions = [block for block in blocks if not is_data_parallel(sch, block)]
        if len(reductions) != 1:
            return NotMine(f"the kernel has {len(reductions)} reductions, not one")
        access = access_of(sch, reductions[0])
        if access is None or any(access_of(sch, block) is None for block in blocks):
            return NotMine("a loop has a symbolic extent, scans, or writes several buffers")
        if not access.trip_count():
            return NotMine("a loop has no iterations")
        dtype = str(sch.get(access.block).writes[0].source.dtype)
        decision = decide_tile(access, machine, dtype)
        if isinstance(decision, NotMine):
            return decision
        anchor = access.block
        others = [block for block in blocks if not sch.get(block).same_as(sch.get(anchor))]
        write_back = self._write_back_block(sch, anchor, access)
        _pack_columns(sch, access, decision)
        columns_first = _columns_outermost(sch, access, decision, machine)
        stage = None if columns_first else padding_stage(sch, access, decision.rows, machine)
        tile_loop = self._tile(sch, access, decision, machine, columns_first, stage)
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
        stage: PaddingStage | None,
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
        reduction = [loops[axis] for axis in access.reduction]
        outer.insert(0 if columns_first else len(outer), vector_outer)
        sch.reorder(*blocks, *outer, *reduction, *rows, vector)
        tiles = sch.fuse(*outer) if len(outer) > 1 else outer[0]
        parallel = tiles
        if stage is not None:
            parallel = sch.fuse(*blocks) if len(blocks) > 1 else blocks[0]
            write_padding(sch, stage, parallel, lanes)
        sch.vectorize(vector)
        for row in rows:
            sch.unroll(row)
        parallelize(sch, [parallel], machine, access.trip_count(), lanes)
        init = sch.decompose_reduction(access.block, reduction[0])
        self._flatten_tile_loops(sch, init, len(rows) + 1)
        return tiles

    def _flatten_tile_loops(self, sch: s_tir.Schedule, block: SBlockRV, count: int) -> None:
        """Vectorises the innermost of the last ``count`` loops and unrolls the others."""
        *rows, vector = list(sch.get_loops(block))[-count:]
        sch.vectorize(vector)
        for row in rows:
            sch.unroll(row)

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
        inside = loops[around + 1 :]
        if inside:
            sch.vectorize(inside[-1])
        for row in inside[:-1]:
            sch.unroll(row)
        return True


def schedule_beside(sch: s_tir.Schedule, block: SBlockRV, machine: CpuDescription) -> None:
    """A loop nest of its own for a data-parallel block that could not move into the anchor's."""
    access = access_of(sch, block)
    if access is None or not is_data_parallel(sch, block):
        return
    dtype = str(sch.get(block).writes[0].source.dtype)
    schedule_data_parallel(sch, access, machine, dtype, count_calls(sch.get(block).body))


def _pack_columns(sch: s_tir.Schedule, access: BlockAccess, decision: TileDecision) -> None:
    """Packs constant operands that only the columns select (weights) by tiles."""
    for index, strides in enumerate(access.read_strides):
        along = {axis for axis in access.spatial if strides[axis] != 0}
        if along == {decision.vector_axis}:
            pack_operand(sch, access.block, index, decision.vector_axis, decision.columns)
            return


def _result_count(access: BlockAccess) -> int:
    return math.prod(access.extents[axis] for axis in access.spatial)


def _vector_axis(access: BlockAccess) -> int | None:
    """The longest spatial loop with unit stride in the output and stride 0 or 1 in all inputs."""
    fitting = [
        axis
        for axis in access.spatial
        if access.write_strides[axis] == 1
        and access.extents[axis] > 1
        and all(strides[axis] in (0, 1) for strides in access.read_strides)
    ]
    return max(fitting, key=lambda axis: access.extents[axis], default=None)


def _reuse_axes(access: BlockAccess, vector_axis: int) -> list[int]:
    """Spatial loops along which a vector that was loaded once serves several outputs."""
    vectors = [strides for strides in access.read_strides if strides[vector_axis] == 1]
    return [
        axis
        for axis in access.spatial
        if axis != vector_axis and any(strides[axis] == 0 for strides in vectors)
    ]


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
            sizes = [static_extent(size) or 1 for size in read.source.shape]
            total += math.prod(sizes) * tvm.DataType(str(read.source.dtype)).bits // 8
    return total > machine.l2_bytes // 2

"""Convolution, matmul and pooling: a tile of outputs held in vector registers.

The loops around the multiply-add become, from the outside in: tiles (over threads), the whole
reduction, the rows of the tile (unrolled), and its columns (one or two vectors). Bias, residual
and activation run where a tile is written back.
"""

import math
from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV, ScheduleError

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    BlockAccess,
    access_of,
    buffer_bytes,
    count_calls,
    is_data_parallel,
    kernel_blocks,
    only_reduction,
    operands_of,
    read_position,
    same_block,
    static_extent,
    writer_of,
)
from tvm_ext.tir_schedules.cpu.blockwise import schedule_block
from tvm_ext.tir_schedules.cpu.parallel_vectorize import (
    borders_of,
    flatten,
    parallelize,
    schedule_data_parallel,
    split_at_borders,
)
from tvm_ext.tir_schedules.cpu.reduction_blocking import (
    decide_reduction_blocking,
    split_reduction,
)
from tvm_ext.tir_schedules.cpu.register_blocking import (
    OperandStage,
    RegisterTileDecision,
    column_panel,
    decide_tile,
    transpose_operand,
    write_stage,
)
from tvm_ext.tir_schedules.cpu.row_blocking import RowBlock, decide_row_block
from tvm_ext.tir_schedules.inlining import inlined_schedule
from tvm_ext.tir_schedules.packing import move_outermost, pack_operand
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Where a convolution's padded input is written: a few rows at a time, right before they are read.
#
# Padded as a whole, the input goes out to the next cache and comes back, and the threads meet
# once more. Padded by blocks of rows, it stays in L2; rows that two blocks need are written
# twice.


# Rows written for each row read, at most, and at most in what a tuner may try.
MAX_REPEATED, MAX_REPEATED_TRIED = 1.6, 2.5


def padding_stage(
    sch: s_tir.Schedule,
    access: BlockAccess,
    tile: RegisterTileDecision,
    machine: CpuDescription,
    decisions: Decisions = DEFAULT_DECISIONS,
) -> OperandStage | None:
    """The stage for the only padded operand of ``access``; None where it would not pay.

    The decision ``padding_tiles`` is the number of register tiles that a piece of the operand is
    for, 0 without a stage.
    """
    found = [
        (index, block)
        for index, read in enumerate(operands_of(sch.get(access.block)))
        if (block := writer_of(sch, access.block, read.source)) is not None
    ]
    if len(found) != 1 or not _is_padding(sch, found[0][1]):
        return None
    index, block = found[0]
    axis = _row_axis(access, index)
    # The rows of an image that is one pixel wide are what vectors run along: no piece holds tiles.
    if axis is None or axis == tile.vector_axis:
        return None
    pieces = _pieces(sch, access, index, axis, tile.rows.get(axis, 1))
    tried = [
        piece.tiles
        for piece in pieces
        if piece.blocks >= machine.cores
        and piece.nbytes <= machine.l2_bytes
        and piece.repeated <= MAX_REPEATED_TRIED
    ]
    tiles = decisions.pick("padding_tiles", (0, *tried), _default_heuristic(pieces, machine))
    return OperandStage(block, axis, tiles) if tiles else None


@dataclass(frozen=True)
class _Piece:
    """What is padded at a time: for how many register tiles, of how many blocks of them in all, its
    size, and the rows it has for each row of the input that it adds.
    """

    tiles: int
    blocks: int
    nbytes: int
    repeated: float


def _is_padding(sch: s_tir.Schedule, block: SBlockRV) -> bool:
    """Whether it copies, with branches that are the same for all channels of a position."""
    if not is_data_parallel(sch, block) or len(sch.get_consumers(block)) != 1:
        return False
    return count_calls(sch.get(block).body) == 1 and not borders_of(sch, block)[-1]


def _row_axis(access: BlockAccess, operand: int) -> int | None:
    """The outermost spatial loop, but for the images, along which only the input moves."""
    others = [s for i, s in enumerate(access.read_strides) if i != operand]
    moving = [
        axis
        for axis in access.spatial[1:]
        if access.extents[axis] > 1
        and access.read_strides[operand][axis]
        and all(strides[axis] == 0 for strides in others)
    ]
    return moving[0] if moving else None


def _pieces(
    sch: s_tir.Schedule, access: BlockAccess, operand: int, axis: int, rows: int
) -> list[_Piece]:
    """Ways to cut the tiles along ``axis`` into equal blocks, the largest blocks first."""
    region = operands_of(sch.get(access.block))[operand]
    sizes = [static_extent(size) or 1 for size in region.source.shape]
    steps = -(-access.extents[axis] // rows)
    per_row = buffer_bytes(region.source) // (sizes[0] * sizes[axis])
    # Rows of input from the first to the last that one row of output reads, and its step.
    strides = access.read_strides[operand]
    unit = math.prod(sizes[axis + 1 :])
    step = (strides[axis] or 0) // unit
    reach = 1 + sum((access.extents[r] - 1) * ((strides[r] or 0) // unit) for r in access.reduction)
    pieces = []
    for tiles in range(steps, 0, -1):
        if steps % tiles == 0:
            needed = (tiles * rows - 1) * step + reach
            blocks = access.extents[0] * (steps // tiles)
            repeated = needed / (tiles * rows * step) if step > 0 else math.inf
            pieces.append(_Piece(tiles, blocks, needed * per_row, repeated))
    return pieces


def _default_heuristic(pieces: list[_Piece], machine: CpuDescription) -> int:
    """As many tiles as L2 holds and the threads share evenly; 0 when too many rows repeat."""
    for piece in pieces:
        shared = piece.blocks % machine.cores == 0 or piece.blocks >= 4 * machine.cores
        if shared and piece.nbytes <= machine.l2_bytes // 4:
            return piece.tiles if piece.repeated <= MAX_REPEATED else 0
    return 0


# Steps of the innermost reduction that a tuner may unroll, in full where it has no more.
STEPS_UNROLLED = (2, 3, 4)


class RegisterTile:
    """Kernels with one reduction: matmul, convolution, pooling, sums over strided axes."""

    name = "register tile"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``.

        Decisions: those of ``decide_tile``, ``decide_reduction_blocking``, ``column_panel``,
        ``padding_stage`` and ``decide_row_block``; ``columns_first``, the order of the tiles;
        ``packed``; ``packed_columns``; ``reduction_unroll``; ``threads``.
        """
        sch = inlined_schedule(func)
        access = _anchor_access(sch)
        dtype = str(sch.get(access.block).writes[0].source.dtype)
        try:
            decision = decide_tile(access, machine, dtype, decisions)
        except NotApplicable:
            access = transpose_operand(sch, access) or access
            decision = decide_tile(access, machine, dtype, decisions)
        blocks = kernel_blocks(sch)
        anchor = access.block
        others = [block for block in blocks if not same_block(sch, block, anchor)]
        lengths = decide_reduction_blocking(access, decision, machine, decisions)
        # Sums of blocks are added up where they are written.
        write_back = None if lengths else self._write_back_block(sch, anchor, access)
        columns_first = bool(lengths) or _columns_outermost(sch, access, decision, machine)
        stage = column_panel(sch, access, decision, machine, columns_first, decisions)
        if stage is None and _has_two_orders(access, decision):
            columns_first = bool(decisions.pick("columns_first", (0, 1), int(columns_first)))
        sch = _packed(sch, access, decision, stage is None, decisions)
        has_panel = stage is not None
        if not has_panel and not columns_first:
            stage = padding_stage(sch, access, decision, machine, decisions)
        if not has_panel:
            sch, copies = _with_packed_columns(sch, access, decision, decisions)
            others += copies
        cut: OperandStage | RowBlock | None = stage
        if columns_first and stage is None and not lengths:
            cut = decide_row_block(sch, access, decision, machine, decisions)
        tile_loop = self._tile(
            sch, access, decision, machine, columns_first, cut, lengths, decisions
        )
        done = [stage.block] if stage is not None else []
        if lengths and machine.cores == 1:
            sch, staged = _staged_by_blocks(sch, anchor, others, machine.vector_lanes(dtype))
            done += staged
        if write_back is not None and self._place_write_back(sch, write_back, tile_loop):
            done.append(write_back)
        for block in others:
            if not any(same_block(sch, block, known) for known in done):
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
        decision: RegisterTileDecision,
        machine: CpuDescription,
        columns_first: bool,
        cut: OperandStage | RowBlock | None,
        lengths: dict[int, int],
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
            if cut is not None and axis == cut.axis:
                block, split = sch.split(split, factors=[None, cut.tiles])
                # All that is outside of the rows of tiles.
                blocks, outer = [*outer, block], []
            outer.append(split)
            rows.append(row)
        around, reduction = split_reduction(sch, access, loops, lengths)
        reduction = _unrolled(sch, access, reduction, decisions) if not around else reduction
        stage = cut if isinstance(cut, OperandStage) else None
        if stage is not None and stage.per_column:
            blocks.append(vector_outer)
        else:
            outer.insert(0 if columns_first else len(outer), vector_outer)
        if stage is None:
            blocks, outer = [], [*blocks, *outer]
        sch.reorder(*around, *blocks, *outer, *reduction, *rows, vector)
        tiles = sch.fuse(*outer) if len(outer) > 1 else outer[0]
        parallel = tiles
        if stage is not None:
            parallel = sch.fuse(*blocks) if len(blocks) > 1 else blocks[0]
            write_stage(sch, stage.block, parallel, lanes)
        flatten(sch, [*rows, vector])
        parallelize(sch, [parallel], machine, access.trip_count(), lanes, decisions)
        init = sch.decompose_reduction(access.block, [*around, *reduction][0])
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


def _anchor_access(sch: s_tir.Schedule) -> BlockAccess:
    """The access of the kernel's only reduction."""
    access = access_of(sch, only_reduction(sch))
    others = [block for block in kernel_blocks(sch) if access_of(sch, block) is None]
    # What follows may be an image whose size a run decides, scaled by what is summed up.
    if access is None or not all(is_data_parallel(sch, block) for block in others):
        raise NotApplicable("a loop has a symbolic extent, scans, or writes several buffers")
    if not access.trip_count():
        raise NotApplicable("a loop has no iterations")
    return access


def schedule_beside(sch: s_tir.Schedule, block: SBlockRV, machine: CpuDescription) -> None:
    """A loop nest of its own for a data-parallel block that could not move into the anchor's."""
    access = access_of(sch, block)
    if access is None:
        schedule_block(sch, block, machine)
        return
    if not is_data_parallel(sch, block):
        return
    dtype = str(sch.get(block).writes[0].source.dtype)
    calls = count_calls(sch.get(block).body)
    branching = schedule_data_parallel(sch, access, machine, dtype, calls)
    if branching is not None:
        split_at_borders(sch, *branching)


def _unrolled(
    sch: s_tir.Schedule, access: BlockAccess, reduction: list[LoopRV], decisions: Decisions
) -> list[LoopRV]:
    """The loops that reduce, and if so decided a few steps of the innermost, unrolled."""
    repeated = [place for place, a in enumerate(access.reduction) if access.extents[a] > 1]
    if not repeated:
        return reduction
    place = repeated[-1]
    extent = access.extents[access.reduction[place]]
    options = [1, *(steps for steps in STEPS_UNROLLED if extent % steps == 0)]
    steps = decisions.pick("reduction_unroll", options, 1)
    if steps == 1:
        return reduction
    outer, inner = sch.split(reduction[place], factors=[None, steps])
    sch.unroll(inner)
    return [*reduction[:place], outer, *reduction[place + 1 :], inner]


def _has_two_orders(access: BlockAccess, decision: RegisterTileDecision) -> bool:
    """Whether there are several tiles both along the columns and along other loops."""
    sizes = {**decision.rows, decision.vector_axis: decision.columns}
    tiled = [axis for axis in access.spatial if access.extents[axis] > sizes.get(axis, 1)]
    return decision.vector_axis in tiled and len(tiled) > 1


def _packed(
    sch: s_tir.Schedule,
    access: BlockAccess,
    decision: RegisterTileDecision,
    columns: bool,
    decisions: Decisions,
) -> s_tir.Schedule:
    """``sch``, or a copy of it in which an operand is packed."""
    packed = sch.copy()
    if not _pack_operands(packed, access, decision, columns):
        return sch
    return packed if decisions.pick("packed", (0, 1), 1) else sch


def _pack_operands(
    sch: s_tir.Schedule, access: BlockAccess, decision: RegisterTileDecision, columns: bool
) -> bool:
    """Packs by tiles what ``columns`` select, or else what the rows select, if it is constant.

    With channels first the columns are pixels, and the rows select weights.
    """
    axes = [(decision.vector_axis, decision.columns)] if columns else []
    tiled = {decision.vector_axis, *decision.rows}
    for axis, size in (*axes, *decision.rows.items()):
        for index, strides in enumerate(access.read_strides):
            along = {spatial for spatial in tiled if strides[spatial] != 0}
            if along == {axis} and pack_operand(sch, access.block, index, axis, size):
                return True
            others = [a for a in access.spatial if a not in tiled and strides[a] not in (0, 1)]
            # A group that has no more columns than the tile: its weights follow each other.
            is_group = along == {axis} and size == access.extents[axis] and len(others) == 1
            if is_group and move_outermost(sch, access.block, index, others[0]):
                return True
    return False


# Register tiles that read each column of an operand, at least, for a packed copy of it to pay.
_LEAST_READERS = 16


def _with_packed_columns(
    sch: s_tir.Schedule, access: BlockAccess, decision: RegisterTileDecision, decisions: Decisions
) -> tuple[s_tir.Schedule, list[SBlockRV]]:
    """A schedule in which what the columns select was packed in the run, and the block that does.

    Weights that are trained are no constants. They lie in rows, of which a tile reads a few columns
    each: these share few sets of L1, and leave it before the next tile wants them.
    """
    axis, size = decision.vector_axis, decision.columns
    for index, strides in enumerate(access.read_strides):
        others = [a for a in access.spatial if a != axis and access.extents[a] > 1]
        if access.constant_reads[index] or strides[axis] != 1:
            continue
        # A stride that is not one number is None.
        if any(strides[a] != 0 for a in others):
            continue
        source = operands_of(sch.get(access.block))[index].source
        tiles = math.prod(-(-access.extents[a] // decision.rows.get(a, 1)) for a in others)
        if writer_of(sch, access.block, source) is not None or access.extents[axis] % size:
            continue
        packed = sch.copy()
        position = read_position(packed.get(access.block), source)
        copy = packed.cache_read(access.block, position, "global")
        if not pack_operand(packed, access.block, index, axis, size):
            continue
        if decisions.pick("packed_columns", (0, 1), int(tiles >= _LEAST_READERS)):
            return packed, [copy]
    return sch, []


def _staged_by_blocks(
    sch: s_tir.Schedule, anchor: SBlockRV, others: list[SBlockRV], lanes: int
) -> tuple[s_tir.Schedule, list[SBlockRV]]:
    """A schedule in which copies of operands hold what the outermost blocks of the reduction read.

    Also the copies that do. They are made anew for each block, where that makes no element twice:
    they stay in cache, and take a part of the memory. Threads would have to meet around each.
    """
    around = sch.get_loops(anchor)[0]
    staged: list[SBlockRV] = []
    for block in others:
        if not any(same_block(sch, block, one) for one in sch.get_producers(anchor)):
            continue
        moved = sch.copy()
        try:
            write_stage(moved, block, around, lanes)
        except ScheduleError:
            continue
        if _iterations(moved, block) <= _iterations(sch, block):
            sch, staged = moved, [*staged, block]
    return sch, staged


def _iterations(sch: s_tir.Schedule, block: SBlockRV) -> int:
    return math.prod(static_extent(sch.get(one).extent) or 1 for one in sch.get_loops(block))


def _result_count(access: BlockAccess) -> int:
    return math.prod(access.extents[axis] for axis in access.spatial)


def _columns_outermost(
    sch: s_tir.Schedule,
    access: BlockAccess,
    decision: RegisterTileDecision,
    machine: CpuDescription,
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

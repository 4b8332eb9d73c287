"""Winograd convolution: both transforms and the products of a few tiles while they are in cache.

The kernel consists of blocks that are annotated with their part in the algorithm: input_tile,
input_rows, input_transform, products, output_rows, output; elementwise blocks may follow.
"""

import math
from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import (
    access_of,
    is_data_parallel,
    kernel_blocks,
    operands_of,
    same_block,
    schedule_of,
    static_extent,
)
from tvm_ext.tir_schedules.cpu.blockwise import schedule_others
from tvm_ext.tir_schedules.cpu.parallel_vectorize import (
    flatten,
    largest_divisor,
    parallelize,
    vector_length,
)
from tvm_ext.tir_schedules.cpu.register_blocking import (
    ENOUGH_ACCUMULATORS,
    column_options,
    row_limit,
    row_options,
    rows_in_l1,
    rows_with_tail,
)
from tvm_ext.tir_schedules.cpu.register_tile import schedule_beside
from tvm_ext.tir_schedules.cpu.symbolic_contraction import with_code
from tvm_ext.tir_schedules.cpu.winograd_symbolic_image import winograd_image, winograd_image_code
from tvm_ext.tir_schedules.inlining import inline_blocks
from tvm_ext.tir_schedules.packing import pack_operand
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# How the work of a Winograd convolution is cut by default, from registers and caches.


# How much longer the last turn of few blocks may make the others wait.
_FEW_IDLE = 1.1

# Multiplications and additions for one element of a transform, along the rows and the columns.
_TRANSFORM_OPERATIONS = 5


@dataclass(frozen=True)
class WinogradShape:
    """Extents of the products: positions in a tile, tiles by image, row and column, channels."""

    positions: int
    images: int
    tile_rows: int
    tile_columns: int
    inputs: int
    outputs: int

    @property
    def tiles(self) -> int:
        """All tiles."""
        return self.images * self.tile_rows * self.tile_columns

    @property
    def tile_bytes(self) -> int:
        """Transformed inputs and products of one tile, float32."""
        return 4 * self.positions * (self.inputs + self.outputs)


@dataclass(frozen=True)
class WinogradDecision:
    """How the work is cut.

    Attributes
    ----------
    rows : tuple[int, int]
        Tiles, along their rows and columns, that are the rows of one register tile.
    columns : int
        Output channels of a register tile.
    blocks : tuple[int, int] or None
        Tiles that pass through all stages together; None when each stage handles all tiles before
        the next one starts.
    """

    rows: tuple[int, int]
    columns: int
    blocks: tuple[int, int] | None


def decide_winograd(
    shape: WinogradShape, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
) -> WinogradDecision:
    """The default heuristic, or the tuner's.

    Decisions: ``columns``, ``rows_across`` and ``rows_down`` of the register tile; ``block_across``
    and ``block_down``, the tiles of a block. Without blocks ``block_across`` is 0.
    """
    lanes = machine.vector_lanes("float32")
    tried = column_options(shape.outputs, lanes)
    columns = decisions.pick("columns", tried, _closed_columns(shape, machine, lanes))
    rows = _picked_rows(shape, machine, columns, decisions)
    return WinogradDecision(rows, columns, _picked_blocks(shape, machine, rows, decisions))


def _closed_columns(shape: WinogradShape, machine: CpuDescription, lanes: int) -> int:
    """Two vectors wide unless a single one has room for many more rows."""
    two, one = (vector_length(shape.outputs, lanes, vectors) for vectors in (2, 1))
    sizes = [
        math.prod(_closed_rows(shape, machine, columns)) * max(1, columns // lanes)
        for columns in (two, one)
    ]
    return one if sizes[1] > 1.5 * sizes[0] else two


def _closed_rows(shape: WinogradShape, machine: CpuDescription, columns: int) -> tuple[int, int]:
    """Tiles down and across that are one register tile."""
    lanes = machine.vector_lanes("float32")
    limit = min(row_limit(machine, columns, lanes, 1), rows_in_l1(4 * shape.inputs))
    across = largest_divisor(shape.tile_columns, limit)
    down = largest_divisor(shape.tile_rows, limit // across)
    if across * down * max(1, columns // lanes) >= ENOUGH_ACCUMULATORS:
        return down, across
    # No good divisors: along the longer side, with a rest.
    if shape.tile_rows > shape.tile_columns:
        across = largest_divisor(shape.tile_columns, limit // 8) if limit >= 16 else 1
        return rows_with_tail(shape.tile_rows, limit // across), across
    return 1, rows_with_tail(shape.tile_columns, limit)


def _picked_rows(
    shape: WinogradShape, machine: CpuDescription, columns: int, decisions: Decisions
) -> tuple[int, int]:
    limit = row_limit(machine, columns, machine.vector_lanes("float32"), 0)
    closed_down, closed_across = _closed_rows(shape, machine, columns)
    across = decisions.pick("rows_across", row_options(shape.tile_columns, limit), closed_across)
    limit //= across
    default = closed_down if across == closed_across else largest_divisor(shape.tile_rows, limit)
    return decisions.pick("rows_down", row_options(shape.tile_rows, limit), default), across


def _closed_blocks(
    shape: WinogradShape, machine: CpuDescription, rows: tuple[int, int]
) -> tuple[int, int] | None:
    """Blocks of tiles, so that what is between the stages stays in L2.

    Weights in L3 are read again for every block: measured as fast as weights in L2. All tiles at a
    time where weights come from main memory, or where no size of blocks keeps the threads busy.
    """
    weights = 4 * shape.positions * shape.inputs * shape.outputs
    room = max(1, machine.l2_bytes // 2 // shape.tile_bytes)
    wide = (rows[0] * max(1, room // (rows[0] * shape.tile_columns)), shape.tile_columns)
    sizes = [(down, wide[1]) for down in range(min(wide[0], shape.tile_rows), rows[0], -rows[0])]
    sizes = [size for size in (*sizes, rows) if _threads_are_busy(shape, machine, size)]
    fits = shape.tiles * shape.tile_bytes <= max(machine.l3_bytes // 4, machine.l2_bytes)
    from_memory = weights > max(machine.l3_bytes, machine.l2_bytes) // 2
    if fits and (from_memory or not sizes):
        return None
    return sizes[0] if sizes else rows


def _threads_are_busy(
    shape: WinogradShape, machine: CpuDescription, blocks: tuple[int, int]
) -> bool:
    """Whether blocks of this size are many, or share out evenly."""
    extents = (shape.tile_rows, shape.tile_columns)
    count = shape.images * math.prod(
        -(-extent // size) for extent, size in zip(extents, blocks, strict=True)
    )
    turns = -(-count // machine.cores)
    return (
        machine.cores == 1
        or count >= 4 * machine.cores
        or (turns > 1 and turns * machine.cores <= _FEW_IDLE * count)
    )


def _picked_blocks(
    shape: WinogradShape, machine: CpuDescription, rows: tuple[int, int], decisions: Decisions
) -> tuple[int, int] | None:
    closed = _closed_blocks(shape, machine, rows)
    closed_down, closed_across = closed or (rows[0], 0)
    fits = shape.tiles * shape.tile_bytes <= max(machine.l3_bytes, machine.l2_bytes)
    # What is larger than a register tile has to stay in L2.
    room = machine.l2_bytes // shape.tile_bytes
    widths = {rows[1], *([0] if fits else [])}
    if rows[0] * shape.tile_columns <= room:
        widths.add(shape.tile_columns)
    across = decisions.pick("block_across", widths, closed_across)
    if across == 0:
        return None
    sizes = {rows[0] * 2**n for n in range(shape.tile_rows.bit_length())}
    largest = min(room // across, shape.tile_rows)
    options = {rows[0], *(size for size in sizes if size <= largest)}
    default = closed_down if across == closed_across else rows[0]
    return decisions.pick("block_down", options, default), across


STAGE_ANNOTATION = "tvm_ext.winograd"
# Sides of a tile of outputs.
TILE_ANNOTATION = "tvm_ext.winograd_tile"
STAGES = (
    "input_tile",
    "input_rows",
    "input_transform",
    "products",
    "output_rows",
    "output",
)


class Winograd:
    """Kernels made of the stages of Winograd's convolution."""

    name = "winograd"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``.

        Decisions: those of ``decide_winograd``, and ``threads``; where each stage handles all tiles
        ``threads`` is for the products, ``input_threads`` and ``output_threads`` for the others.
        """
        sch = schedule_of(func)
        stages = _stages(sch)
        if sorted(stages) != sorted(STAGES):
            raise NotApplicable("its blocks are not the stages of a Winograd convolution")
        inline_blocks(sch, keep=lambda block: STAGE_ANNOTATION in sch.get(block).annotations)
        shape = _shape(sch, stages["products"])
        if shape is None:
            return _of_symbolic_image(sch, stages, machine)
        _Scheduler(sch, machine, shape, decisions).run(stages)
        return sch


def _of_symbolic_image(
    sch: s_tir.Schedule, stages: dict[str, SBlockRV], machine: CpuDescription
) -> s_tir.Schedule:
    """The kernel where a run decides how many tiles there are. It asks for no decision."""
    high, wide = (int(n) for n in sch.get(stages["output"]).annotations[TILE_ANNOTATION])
    image, _ = winograd_image(sch, stages, (high, wide))
    columns = vector_length(image.products, machine.vector_lanes("float32"), 2)
    pack_operand(sch, stages["products"], 1, 5, columns)
    image, done = winograd_image(sch, stages, (high, wide))
    code, views = winograd_image_code(image, columns, machine, sch.mod["main"].params)
    schedule_others(sch, done, machine)
    return with_code(sch, code, done, views)


def _stages(sch: s_tir.Schedule) -> dict[str, SBlockRV]:
    annotations = [(block, sch.get(block).annotations) for block in kernel_blocks(sch)]
    return {
        str(noted[STAGE_ANNOTATION]): block
        for block, noted in annotations
        if STAGE_ANNOTATION in noted
    }


def _shape(sch: s_tir.Schedule, products: SBlockRV) -> WinogradShape | None:
    access = access_of(sch, products)
    if access is None:
        return None
    down, across, images, rows, columns, outputs, inputs = access.extents
    return WinogradShape(down * across, images, rows, columns, inputs, outputs)


class _Scheduler:
    """Schedules one kernel; the methods go backwards, from the output to the input."""

    def __init__(
        self,
        sch: s_tir.Schedule,
        machine: CpuDescription,
        shape: WinogradShape,
        decisions: Decisions,
    ) -> None:
        self.sch = sch
        self.machine = machine
        self.decisions = decisions
        self.decision: WinogradDecision = decide_winograd(shape, machine, decisions)
        self.lanes = machine.vector_lanes("float32")
        self.work = shape.positions * shape.tiles * shape.inputs * shape.outputs
        elements = _TRANSFORM_OPERATIONS * shape.positions * shape.tiles
        self.input_work, self.output_work = (elements * n for n in (shape.inputs, shape.outputs))

    def run(self, stages: dict[str, SBlockRV]) -> None:
        """Writes the schedule."""
        last = self._last_block(stages["output"])
        others = [
            block
            for block in kernel_blocks(self.sch)
            if not any(same_block(self.sch, block, known) for known in (*stages.values(), last))
        ]
        block_loop = self._output(last, stages)
        self._products(stages["products"], block_loop)
        self._input(stages, block_loop)
        for block in others:
            schedule_beside(self.sch, block, self.machine)

    def _last_block(self, output: SBlockRV) -> SBlockRV:
        """The elementwise block that ends the kernel when it goes the way of the output."""
        consumers = self.sch.get_consumers(output)
        if len(consumers) != 1 or not is_data_parallel(self.sch, consumers[0]):
            return output
        access, own = access_of(self.sch, consumers[0]), access_of(self.sch, output)
        if access is None or own is None or access.extents != own.extents:
            return output
        written = self.sch.get(output).writes[0].source
        stmt = self.sch.get(consumers[0])
        position = next(
            i for i, read in enumerate(operands_of(stmt)) if read.source.same_as(written)
        )
        in_order = access.read_strides[position] == access.write_strides == own.write_strides
        return consumers[0] if in_order else output

    def _output(self, last: SBlockRV, stages: dict[str, SBlockRV]) -> LoopRV | None:
        """Loops over blocks of tiles around the output; returns the one that holds a block."""
        sch, decision = self.sch, self.decision
        image, height, width, channel = sch.get_loops(last)
        high, wide = (int(side) for side in sch.get(stages["output"]).annotations[TILE_ANNOTATION])
        tile_row, y = sch.split(height, [None, high])
        tile_column, x = sch.split(width, [None, wide])
        down, across = decision.blocks or (1, 1)
        block_row, tile_row = sch.split(tile_row, [None, down])
        block_column, tile_column = sch.split(tile_column, [None, across])
        extent = static_extent(sch.get(channel).extent) or 1
        channel, vector = sch.split(channel, [None, vector_length(extent, self.lanes, 1)])
        sch.reorder(image, block_row, block_column, tile_row, tile_column, channel, y, x, vector)
        flatten(sch, [y, x, vector])
        blocks = sch.fuse(image, block_row, block_column)
        if not same_block(self.sch, last, stages["output"]):
            sch.compute_at(stages["output"], channel, preserve_unit_loops=True)
            flatten(sch, list(sch.get_loops(stages["output"]))[-4:])
        sch.compute_at(stages["output_rows"], channel, preserve_unit_loops=True)
        flatten(sch, list(sch.get_loops(stages["output_rows"]))[-6:])
        if decision.blocks is None:
            self._threads([blocks], self.output_work, "output_threads")
            return None
        self._threads([blocks], self.work)
        return blocks

    def _threads(self, loops: list[LoopRV], work: int, name: str = "threads") -> None:
        parallelize(self.sch, loops, self.machine, work, self.lanes, self.decisions, name)

    def _products(self, products: SBlockRV, block_loop: LoopRV | None) -> None:
        sch, (down, across) = self.sch, self.decision.rows
        pack_operand(sch, products, 1, 5, self.decision.columns)
        # The accumulators are a buffer of their own, which becomes registers.
        copy = sch.cache_write(products, 0, "global")
        if block_loop is not None:
            sch.compute_at(copy, block_loop, preserve_unit_loops=True)
        i, j, image, tile_row, tile_column, channel = sch.get_loops(copy)[-6:]
        channel, vector = sch.split(channel, [None, self.decision.columns])
        tile_row, row = sch.split(tile_row, [None, down])
        tile_column, column = sch.split(tile_column, [None, across])
        sch.reorder(i, j, channel, image, tile_row, tile_column, row, column, vector)
        sch.compute_at(products, tile_column, preserve_unit_loops=True)
        flatten(sch, [row, column, vector])
        *tile, depth = sch.get_loops(products)[-7:]
        sch.reorder(*tile[:2], depth, *tile[2:])
        flatten(sch, tile[2:])
        if block_loop is None:
            self._threads([i, j, channel], self.work)
        start = sch.decompose_reduction(products, depth)
        flatten(sch, list(sch.get_loops(start))[-6:])

    def _input(self, stages: dict[str, SBlockRV], block_loop: LoopRV | None) -> None:
        sch = self.sch
        transform = stages["input_transform"]
        if block_loop is not None:
            sch.compute_at(transform, block_loop, preserve_unit_loops=True)
        i, j, image, tile_row, tile_column, channel = sch.get_loops(transform)[-6:]
        extent = static_extent(sch.get(channel).extent) or 1
        channel, vector = sch.split(channel, [None, vector_length(extent, self.lanes, 1)])
        sch.reorder(image, tile_row, tile_column, channel, i, j, vector)
        flatten(sch, [i, j, vector])
        rows = stages["input_rows"]
        sch.compute_at(rows, channel, preserve_unit_loops=True)
        *outer, i, j, vector = sch.get_loops(rows)[-6:]
        sch.reorder(*outer, j, i, vector)
        # A column of the tile at a time: six vectors, which stay in registers.
        sch.compute_at(stages["input_tile"], j, preserve_unit_loops=True)
        flatten(sch, [*outer, j, i, vector])
        flatten(sch, list(sch.get_loops(stages["input_tile"]))[-6:])
        if block_loop is None:
            outer = [image, tile_row, tile_column, channel]
            self._threads(outer, self.input_work, "input_threads")

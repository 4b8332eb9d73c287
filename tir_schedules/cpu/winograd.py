"""Winograd convolution: how many tiles pass through both transforms and the products together.

The kernel consists of blocks that are annotated with their part in the algorithm: input_tile,
input_rows, input_transform, products, output_rows, output; elementwise blocks may follow.
"""

import math
from dataclasses import dataclass

from tvm import s_tir, tirx
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import kernel_blocks, schedule_of
from tvm_ext.tir_schedules.cpu.blockwise import schedule_others
from tvm_ext.tir_schedules.cpu.parallel_vectorize import vector_length, worth_threads
from tvm_ext.tir_schedules.cpu.register_blocking import column_options, row_limit
from tvm_ext.tir_schedules.cpu.symbolic_contraction import with_code
from tvm_ext.tir_schedules.cpu.winograd_code import (
    WinogradDecision,
    WinogradImage,
    winograd_code,
    winograd_image,
)
from tvm_ext.tir_schedules.inlining import inline_blocks
from tvm_ext.tir_schedules.packing import pack_operand
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Tiles that are the rows of a register tile, at most.
_MOST_ROWS = 8

# Register tiles of a block, at most.
_MOST_REGISTER_TILES = 8


@dataclass(frozen=True)
class WinogradShape:
    """Extents of the products: positions in a tile, channels, and tiles where these are known."""

    positions: int
    inputs: int
    outputs: int
    tiles: int | None = None

    @property
    def tile_bytes(self) -> int:
        """Transformed inputs and products of one tile, float32."""
        return 4 * self.positions * (self.inputs + self.outputs)

    @property
    def weight_bytes(self) -> int:
        """Transformed weights, float32."""
        return 4 * self.positions * self.inputs * self.outputs


def decide_winograd(
    shape: WinogradShape, machine: CpuDescription, decisions: Decisions = DEFAULT_DECISIONS
) -> WinogradDecision:
    """The default heuristic, or the tuner's.

    Decisions: ``columns`` and ``rows`` of the register tile, ``block_tiles``, and ``threads``,
    which is none where there is one core. Where a run decides how many tiles there are, none is
    asked for: there are no sizes to measure with.
    """
    if shape.tiles is None:
        decisions = DEFAULT_DECISIONS
    lanes = machine.vector_lanes("float32")
    widest = vector_length(shape.outputs, lanes, 2)
    columns = decisions.pick("columns", column_options(shape.outputs, lanes), widest)
    limit = row_limit(machine, columns, lanes, 1)
    rows = decisions.pick("rows", set(range(1, limit + 1)), min(_MOST_ROWS, limit))
    threads = machine.cores > 1
    if threads and shape.tiles is not None:
        products = shape.positions * shape.tiles * shape.inputs * shape.outputs
        worth = int(worth_threads(machine, products, lanes))
        threads = bool(decisions.pick("threads", (0, 1), worth))
    closed, streamed = _closed_block(shape, machine, rows)
    options = {closed, *(rows << n for n in range(_MOST_REGISTER_TILES.bit_length()))}
    block = decisions.pick("block_tiles", options, closed)
    return WinogradDecision(columns, rows, block, streamed, threads)


def _closed_block(shape: WinogradShape, machine: CpuDescription, rows: int) -> tuple[int, bool]:
    """Tiles of a block, and whether the weights come from beyond L2 for each block anew.

    As many tiles as L2 holds beside what else is read; or as L3 holds, where all are written there
    and read again, if that is less than to read the weights for more blocks.
    """
    most = _MOST_REGISTER_TILES
    if shape.tiles is not None:
        most = min(most, -(-shape.tiles // rows))

    def tiles(cache: int) -> int:
        return rows * max(1, min(cache // shape.tile_bytes // rows, most))

    near, far = tiles(machine.l2_bytes // 2), tiles(machine.l3_bytes // 4)
    if shape.weight_bytes <= machine.l2_bytes:
        return near, False
    moved = shape.weight_bytes / far + 2 * shape.tile_bytes
    return (far, True) if moved < shape.weight_bytes / near else (near, near == far)


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
        """See ``Template.apply``. Decisions: those of ``decide_winograd``."""
        sch = schedule_of(func)
        stages = _stages(sch)
        if sorted(stages) != sorted(STAGES):
            raise NotApplicable("its blocks are not the stages of a Winograd convolution")
        inline_blocks(sch, keep=lambda block: STAGE_ANNOTATION in sch.get(block).annotations)
        high, wide = (int(n) for n in sch.get(stages["output"]).annotations[TILE_ANNOTATION])
        image, _ = winograd_image(sch, stages, (high, wide))
        decision = decide_winograd(_shape(image), machine, decisions)
        pack_operand(sch, stages["products"], 1, 5, decision.columns)
        image, done = winograd_image(sch, stages, (high, wide))
        code, views = winograd_code(image, decision, machine, sch.mod["main"].params)
        schedule_others(sch, done, machine)
        return with_code(sch, code, done, views)


def _stages(sch: s_tir.Schedule) -> dict[str, SBlockRV]:
    annotations = [(block, sch.get(block).annotations) for block in kernel_blocks(sch)]
    return {
        str(noted[STAGE_ANNOTATION]): block
        for block, noted in annotations
        if STAGE_ANNOTATION in noted
    }


def _shape(image: WinogradImage) -> WinogradShape:
    counts = image.tile_counts
    tiles = None if None in counts else math.prod(count or 0 for count in counts)
    return WinogradShape(math.prod(image.sides), image.inputs, image.products, tiles)

"""Operands whose rows are not aligned, copied to rows that are before they are multiplied.

Asynchronous copies move 4, 8 or 16 aligned bytes. Rows of an odd number of float16 values have
none, and every element would go through a register, waited for. A kernel that reads the operand
once and writes it with rows padded to whole tiles is cheaper where a product is large.
"""

import math
from dataclasses import dataclass

from tvm import s_tir
from tvm.s_tir.schedule import SBlockRV

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import buffer_bytes, element_bytes, static_extent
from tvm_ext.tir_schedules.cuda.products.contraction_decision import (
    Product,
    TileSizes,
    rounds_of,
    steps_of_block,
)
from tvm_ext.tir_schedules.cuda.products.shared_tile import inline_producers, widest_copy
from tvm_ext.tir_schedules.decisions import Decisions

ASYNCHRONOUS_BYTES = 4
"""The narrowest asynchronous copy."""

# What a block waits for elements that come through registers, for each tile. Estimate.
WAIT_SECONDS = 0.6e-6

MAX_GROWTH = 2
"""Times as large as the operand that its copy may be: windows of an image overlap."""

LANES, ROWS, UNROLLED = 32, 8, 8


@dataclass(frozen=True)
class Operands:
    """For each operand of a product how it lies in memory.

    Attributes
    ----------
    narrow : tuple[bool, bool]
        Whether it has no aligned pieces that can be copied asynchronously.
    source_bytes : tuple[int, int]
        Bytes of the operand itself.
    staged_bytes : tuple[int, int]
        Bytes of a copy of it with padded rows.
    """

    narrow: tuple[bool, bool]
    source_bytes: tuple[int, int]
    staged_bytes: tuple[int, int]


def operands_of(sch: s_tir.Schedule, main: SBlockRV) -> Operands:
    """The operands of a product that is padded to whole tiles; ``sch`` stays as it is."""
    narrow, source, staged = [], [], []
    for operand in (0, 1):
        trial = sch.copy()
        copy = trial.cache_read(trial.get_sblock(sch.get(main).name_hint), operand, "shared.dyn")
        inline_producers(trial, copy)
        block = trial.get(copy)
        written = block.writes[0].source
        narrow.append(widest_copy(block) * element_bytes(written) < ASYNCHRONOUS_BYTES)
        source.append(sum(buffer_bytes(read.source) for read in block.reads))
        staged.append(buffer_bytes(written))
    return Operands(*(tuple(values) for values in (narrow, source, staged)))  # type: ignore[arg-type]


def decide_staging(
    operands: Operands,
    product: Product,
    tiles: TileSizes,
    machine: GpuDescription,
    decisions: Decisions,
) -> tuple[bool, bool]:
    """Which operands are copied first. Decisions: ``stage_a`` and ``stage_b``, if they are narrow.

    A copy reads and writes the operand once, and costs a launch; without it a block waits for every
    tile.
    """
    chosen = []
    waits = rounds_of(tiles, product, machine) * steps_of_block(tiles, product) * WAIT_SECONDS
    for name, narrow, source, staged in zip(
        ("stage_a", "stage_b"),
        operands.narrow,
        operands.source_bytes,
        operands.staged_bytes,
        strict=True,
    ):
        if not narrow or staged > MAX_GROWTH * source:
            chosen.append(False)
            continue
        copied = source + staged
        seconds = copied / machine.bandwidth(copied) + machine.kernel_overhead_us * 1e-6
        chosen.append(bool(decisions.pick(name, (0, 1), int(seconds < waits))))
    return chosen[0], chosen[1]


def stage_operand(sch: s_tir.Schedule, main: SBlockRV, operand: int) -> None:
    """Copies an operand to padded rows in a kernel of its own."""
    staged = sch.get(main).reads[operand].source
    block = next(
        producer
        for producer in sch.get_producers(main)
        if sch.get(producer).writes[0].source.same_as(staged)
    )
    inline_producers(sch, block)
    *outer, columns = sch.get_loops(block)
    row_block, row = sch.split(sch.fuse(*outer), [None, ROWS])
    tiles = (static_extent(sch.get(columns).extent) or 1) // LANES
    unrolled = math.gcd(UNROLLED, max(1, tiles))
    column_block, element, lane = sch.split(columns, [None, unrolled, LANES])
    sch.reorder(row_block, column_block, row, lane, element)
    sch.bind(sch.fuse(row_block, column_block), "blockIdx.x")
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")
    sch.unroll(element)

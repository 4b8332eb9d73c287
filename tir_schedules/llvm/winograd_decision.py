"""How the work of a Winograd convolution is cut, in closed form from registers and caches."""

import math
from dataclasses import dataclass

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.llvm.loop_nest import largest_divisor, vector_length
from tvm_ext.tir_schedules.llvm.register_tile_decision import (
    ENOUGH_ACCUMULATORS,
    column_options,
    row_limit,
    row_options,
    rows_in_l1,
    rows_with_rest,
)


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
    shape: WinogradShape, machine: CpuDescription, decisions: Decisions = CLOSED_FORM
) -> WinogradDecision:
    """The closed-form choice, or the tuner's.

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
        return rows_with_rest(shape.tile_rows, limit // across), across
    return 1, rows_with_rest(shape.tile_columns, limit)


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
    time where weights come from main memory, or where there are too few blocks for the threads.
    """
    weights = 4 * shape.positions * shape.inputs * shape.outputs
    room = max(1, machine.l2_bytes // 2 // shape.tile_bytes)
    blocks = (rows[0] * max(1, room // (rows[0] * shape.tile_columns)), rows[1])
    if blocks[0] > rows[0]:
        blocks = (min(blocks[0], shape.tile_rows), shape.tile_columns)
    count = shape.images * math.prod(
        -(-extent // size)
        for extent, size in zip((shape.tile_rows, shape.tile_columns), blocks, strict=True)
    )
    fits = shape.tiles * shape.tile_bytes <= max(machine.l3_bytes // 4, machine.l2_bytes)
    from_memory = weights > max(machine.l3_bytes, machine.l2_bytes) // 2
    if fits and (from_memory or count < 4 * machine.cores > 4):
        return None
    return rows if count < 4 * machine.cores else blocks


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

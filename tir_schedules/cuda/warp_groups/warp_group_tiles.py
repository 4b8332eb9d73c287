"""The tiles of a product by warp groups: sizes, and what they take of shared memory."""

import math
from dataclasses import dataclass

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.products.contraction_decision import PARTIAL_BYTES, Product
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_map import SWIZZLED_ROW_BYTES

GROUP_ROWS = 64
"""Rows of results of one warp group: those of its instructions."""

TILE_ROWS = (64, 128)
TILE_COLUMNS = (64, 128, 192, 256)

MAX_STAGES = 8
BARRIER_BYTES = 16
"""Two barriers for each stage."""

ALIGNMENT = 1024
"""Bytes after which the pattern of a swizzle by 128 bytes repeats."""


@dataclass(frozen=True)
class GroupTiles:
    """Tiles of a product by warp groups.

    Attributes
    ----------
    rows, columns : int
        Results that a block of threads computes.
    stages : int
        Pairs of operand tiles, of ``row_bytes`` of steps, that are in flight or in use.
    group : int
        Rows of tiles that are worked through column by column, before the next rows: blocks that
        run at the same time then share operands in L2.
    split_blocks : int
        Blocks that share the steps of the tiles of a last round that has not one for every
        block; 0 where each of them is one block's.
    row_bytes : int
        Bytes of the steps whose operands are brought at a time: 128, 64 or 32, of which swizzled
        rows are.
    cluster : int
        Blocks with tiles below each other that run at the same time and bring each other parts of
        the columns' operand, which they share.
    """

    rows: int
    columns: int
    stages: int = 1
    group: int = 1
    split_blocks: int = 0
    row_bytes: int = SWIZZLED_ROW_BYTES
    cluster: int = 1

    @property
    def multiplying(self) -> int:
        """Warp groups that multiply."""
        return self.rows // GROUP_ROWS

    @property
    def first_bytes(self) -> int:
        """Bytes of a tile of A."""
        return self.rows * self.row_bytes

    @property
    def stage_bytes(self) -> int:
        """Bytes of one pair of operand tiles."""
        return (self.rows + self.columns) * self.row_bytes

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        return self.stages * (self.stage_bytes + BARRIER_BYTES) + ALIGNMENT

    @property
    def partial_bytes(self) -> int:
        """Bytes of a tile's partial results."""
        return self.rows * self.columns * PARTIAL_BYTES

    def most_stages(self, machine: GpuDescription) -> int:
        """Stages that shared memory has room for."""
        room = machine.dynamic_shared_memory_bytes - ALIGNMENT
        return min(MAX_STAGES, room // (self.stage_bytes + BARRIER_BYTES))

    def count(self, product: Product) -> int:
        """Tiles of all products."""
        down, along = math.ceil(product.rows / self.rows), math.ceil(product.columns / self.columns)
        return product.batch * down * along

    def depth(self, product: Product) -> int:
        """Pairs of operand tiles of each tile of results."""
        return math.ceil(product.steps * product.element_bytes / self.row_bytes)

    def shared(self, product: Product, machine: GpuDescription) -> int:
        """Tiles of a last round that has fewer than there are multiprocessors."""
        return self.count(product) % machine.sms

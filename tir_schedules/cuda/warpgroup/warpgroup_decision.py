"""How a matmul by warpgroups is cut by default, and when it is worth it.

Of all tiles those are taken that take the fewest cycles as ``cycles`` has them. With
each size the steps of a last round that is not full may be shared, by as many blocks as there
are multiprocessors, or by a whole number for each of its tiles. Where L2 could not give all
blocks what they ask for, clusters of two blocks ask for the operand that they share only once.
"""

import itertools
import math
from dataclasses import dataclass, replace

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.matrix_instructions import WARP_SHARE
from tvm_ext.tir_schedules.cuda.matmul.matmul_decision import (
    BANKS_BYTES,
    PARTIAL_BYTES,
    MatmulProblem,
)
from tvm_ext.tir_schedules.cuda.warpgroup.tma import SWIZZLED_ROW_BYTES
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_instructions import ROWS
from tvm_ext.tir_schedules.template import Decisions, pick_each

# The tiles of a matmul by warpgroups: sizes, and what they take of shared memory.


TILE_ROWS = (64, 128)
TILE_COLUMNS = (64, 128, 192, 256)

MAX_STAGES = 8
BARRIER_BYTES = 16
"""Two barriers for each stage."""

ALIGNMENT = 1024
"""Bytes after which the pattern of a swizzle by 128 bytes repeats."""


@dataclass(frozen=True)
class WarpgroupGemmTiles:
    """Tiles of a matmul by warpgroups.

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
        """Warpgroups that multiply."""
        return self.rows // ROWS

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

    def most_stages(self, machine: CudaDescription) -> int:
        """Stages that shared memory has room for."""
        room = machine.dynamic_shared_memory_bytes - ALIGNMENT
        return min(MAX_STAGES, room // (self.stage_bytes + BARRIER_BYTES))

    def count(self, product: MatmulProblem) -> int:
        """Tiles of all products."""
        down, along = math.ceil(product.m / self.rows), math.ceil(product.n / self.columns)
        return product.batch * down * along

    def depth(self, product: MatmulProblem) -> int:
        """Pairs of operand tiles of each tile of results."""
        return math.ceil(product.k * product.element_bytes / self.row_bytes)

    def shared(self, product: MatmulProblem, machine: CudaDescription) -> int:
        """Tiles of a last round that has fewer than there are multiprocessors."""
        return self.count(product) % machine.sms


# Estimated cycles of a matmul by warpgroups, by which its tiles are chosen.
#
# A block of threads computes ``rows x columns`` results, 64 rows in each warpgroup that
# multiplies, while another one brings 64 steps' worth of operands at a time. For every step that
# takes, in cycles of a multiprocessor, the longest of
#
# - the multiply-adds, ``rows * columns`` at the rate of the tensor cores;
# - what goes through shared memory at 128 bytes a cycle: both operands are written once, B is read
#   by each of the groups, A once;
# - the way of ``rows + columns`` elements to the multiprocessor. Blocks that run at a time ask for
#   the same elements at about the same time, so that this is the multiprocessor's own connection;
#   where blocks share steps and are not at the same step of their tiles, it is also their share of
#   what L2 gives.
#
# For 4096 x 4096 x 4096 in float16 on an H100 (132 multiprocessors, 1.83 GHz, 989 TFLOP/s) and
# tiles of 128 x 256 these are, for 64 steps, 1024 cycles of arithmetic, 128 KiB or 1024 cycles of
# shared memory and 48 KiB from L2, 48 bytes a cycle. 512 tiles are 4 rounds of 132, of which 3.88
# are full.
#
# Where blocks share the steps of the last round's tiles, that round takes as long as its longest
# range of steps. Added to it are the parts' way to memory, at most two for each block, and a
# second kernel that reads all of them.


# Bytes that one multiprocessor takes from L2 in a cycle: 64 (NVIDIA A100 white paper, 2020, "A100
# L2 cache"), of which copies reach this much when all multiprocessors ask. Estimate.
_CONNECTION_BYTES = 48

# Cycles until the first operands are there, once for a block: a launch and a round trip to memory.
_START_CYCLES = 2000


def cycles(tiles: WarpgroupGemmTiles, product: MatmulProblem, machine: CudaDescription) -> float:
    """Estimated cycles of the whole matmul."""
    depth, each = tiles.depth(product), tiles.row_bytes // product.element_bytes
    step = _step(tiles, product, machine, _CONNECTION_BYTES)
    store = tiles.rows * tiles.columns * product.element_bytes / _from_l2(machine, machine.sms)
    whole = depth * each * step + store
    left = tiles.shared(product, machine)
    time = _START_CYCLES + tiles.count(product) // machine.sms * whole
    if not left:
        return time
    if not tiles.split_blocks:
        return time + whole
    blocks = tiles.split_blocks
    parts_of_block = 1
    if blocks % left or depth % (blocks // left):
        # Ranges of several tiles, at different steps of each.
        parts_of_block = 2
        step = _step(tiles, product, machine, _from_l2(machine, blocks))
    time += math.ceil(left * depth / blocks) * each * step
    time += parts_of_block * tiles.partial_bytes / _from_l2(machine, blocks)
    parts = blocks if parts_of_block == 1 else blocks + left - 1
    written = left * tiles.rows * tiles.columns * product.element_bytes
    return time + copying(parts * tiles.partial_bytes + written, machine)


def is_much_for_l2(
    tiles: WarpgroupGemmTiles, product: MatmulProblem, machine: CudaDescription
) -> bool:
    """Whether all blocks together ask L2 for more in a step than it gives in that time."""
    asked = machine.sms * (tiles.rows + tiles.columns) * product.element_bytes
    step = _step(tiles, product, machine, _CONNECTION_BYTES)
    return asked > step * machine.l2_gbs / machine.clock_ghz


def cycles_of_warps(product: MatmulProblem, machine: CudaDescription) -> float:
    """The same for the best tiles of instructions of single warps, which may split the steps.

    Operands go from shared memory to the registers of each of 2 x 2 warps.
    """
    found = []
    width = product.element_bytes
    sizes = itertools.product((16, 32, 64, 128), (32, 64, 128, 256), (1, 2, 4, 8, 16))
    for rows, columns, splits in sizes:
        tiles = math.ceil(product.m / rows) * math.ceil(product.n / columns)
        tiles *= product.batch * splits
        multiply_adds = rows * columns / (_rate(product, machine) * WARP_SHARE)
        loads = (rows + columns) * width
        step = max(multiply_adds, 3 * loads / BANKS_BYTES, loads / _CONNECTION_BYTES)
        steps = math.ceil(math.ceil(product.k / splits) / 32) * 32
        stored = rows * columns * (width if splits == 1 else PARTIAL_BYTES)
        store = stored / _from_l2(machine, machine.sms)
        time = _START_CYCLES + math.ceil(tiles / machine.sms) * (steps * step + store)
        found.append(time + (copying(tiles * stored, machine) if splits > 1 else 0))
    return min(found)


def copying(count: int, machine: CudaDescription) -> float:
    """Cycles for a kernel that reads and writes so many bytes; 0 where there is none."""
    if not count:
        return 0.0
    seconds = count / machine.bandwidth(count) + machine.kernel_overhead_us * 1e-6
    return seconds * machine.clock_ghz * 1e9


def _step(
    tiles: WarpgroupGemmTiles, product: MatmulProblem, machine: CudaDescription, loaded: float
) -> float:
    """One step of a tile, with ``loaded`` bytes of operands a cycle."""
    multiply_adds = tiles.rows * tiles.columns / _rate(product, machine)
    through = 2 * tiles.rows + (1 + tiles.multiplying) * tiles.columns
    loads = tiles.rows + tiles.columns
    width = product.element_bytes
    return max(multiply_adds, through * width / BANKS_BYTES, loads * width / loaded)


def _from_l2(machine: CudaDescription, blocks: int) -> float:
    """Bytes a cycle between L2 and each of ``blocks`` multiprocessors."""
    return min(_CONNECTION_BYTES, machine.l2_gbs / machine.clock_ghz / blocks)


def _rate(product: MatmulProblem, machine: CudaDescription) -> float:
    """Multiply-adds that a multiprocessor's tensor cores do in a cycle."""
    return machine.peak_flops(product.dtype) / 2 / machine.sms / (machine.clock_ghz * 1e9)


GROUP_SIZES = (1, 2, 4, 8, 16, 32)

_PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Blocks that may share one tile where every tile has as many."""

# Steps of the pipeline below which a range is over before it is full. Estimate.
_LEAST_RANGE = 4

# Numbers of shared steps times blocks have to fit into the type of indices.
_MOST_MATMUL = (1 << 31) - 1


def decide_group_tiles(
    product: MatmulProblem,
    machine: CudaDescription,
    decisions: Decisions,
    copied_bytes: int = 0,
    wanted: MatmulProblem | None = None,
    row_bytes: int = SWIZZLED_ROW_BYTES,
    across: bool = False,
) -> WarpgroupGemmTiles:
    """The tiles. Raises NotApplicable where instructions of single warps are not slower.

    ``copied_bytes``: what is read and written to align operands first. ``wanted``: the matmul
    without rows and steps that only fill boxes. ``row_bytes``: see ``WarpgroupGemmTiles``.
    ``across``: columns of B are neighbours in memory. Decisions: ``tile_rows``, ``tile_columns``,
    ``split_blocks``, ``stages``, ``cluster``, ``tile_group``.
    """
    shapes = itertools.product(TILE_ROWS, TILE_COLUMNS)
    sizes = [WarpgroupGemmTiles(rows, columns, row_bytes=row_bytes) for rows, columns in shapes]
    offered = [tiles for size in sizes for tiles in _splits(size, product, machine)]
    offered = [tiles for tiles in offered if tiles.most_stages(machine) >= 2]
    if not offered:
        raise NotApplicable("shared memory has no room for two stages")

    def cost(tiles: WarpgroupGemmTiles) -> tuple[float, int]:
        return cycles(tiles, product, machine), -tiles.columns

    needed = min(map(cost, offered))[0] + copying(copied_bytes, machine)
    if needed >= cycles_of_warps(wanted or product, machine):
        raise NotApplicable(
            "its tiles would be so empty that instructions of single warps are as fast"
        )
    names = {"tile_rows": "rows", "tile_columns": "columns", "split_blocks": "split_blocks"}
    tiles = pick_each(offered, names, cost, decisions)
    most = tiles.most_stages(machine)
    tiles = replace(tiles, stages=decisions.pick("stages", range(2, most + 1), most))
    clusters = _clusters(tiles, product, machine, across)
    pairs = max(clusters) if is_much_for_l2(tiles, product, machine) else 1
    tiles = replace(tiles, cluster=decisions.pick("cluster", clusters, pairs))
    rows = math.ceil(product.m / tiles.rows)
    groups = [size for size in GROUP_SIZES if size <= rows and size % tiles.cluster == 0]
    # The operands of a square of results are the fewest for as many blocks as run at a time.
    square = math.sqrt(machine.sms * tiles.columns / tiles.rows)
    nearest = min(groups, key=lambda size: abs(math.log2(size / square)))
    return replace(tiles, group=decisions.pick("tile_group", groups, nearest))


def _clusters(
    tiles: WarpgroupGemmTiles, product: MatmulProblem, machine: CudaDescription, across: bool
) -> list[int]:
    """Blocks that clusters may have: two need whole pairs of tiles in every column and round."""
    pairs = math.ceil(product.m / tiles.rows) % 2 == 0 and machine.sms % 2 == 0
    # Each brings half of the columns, in whole boxes.
    box = SWIZZLED_ROW_BYTES // product.element_bytes
    halves = not across or tiles.columns % (2 * box) == 0
    return [1, 2] if pairs and halves and tiles.split_blocks % 2 == 0 else [1]


def _splits(
    tiles: WarpgroupGemmTiles, product: MatmulProblem, machine: CudaDescription
) -> list[WarpgroupGemmTiles]:
    """The tiles with every number of blocks that may share a last round that is not full."""
    left, depth = tiles.shared(product, machine), tiles.depth(product)
    if not left:
        return [tiles]
    counts = {left * parts for parts in _PARTS if left * parts <= machine.sms} | {machine.sms}
    most = min(left * depth // _LEAST_RANGE, _MOST_MATMUL // (left * depth + 1) - 1)
    shared = [count for count in sorted(counts) if left < count <= most]
    return [replace(tiles, split_blocks=count) for count in (0, *shared)]

"""The tile sizes of a matrix product by warp groups, in closed form, and when they are worth it.

A block of threads computes ``128 x columns`` results, 64 rows in each of two warp groups, while a
third one brings 64 steps' worth of operands at a time. For every step that takes, in cycles of a
multiprocessor, the longest of

- the multiply-adds, ``128 * columns`` at the rate of the tensor cores;
- what goes through shared memory at 128 bytes a cycle: both operands are written once, B is read
  by each of the two groups, A once;
- the operands' way from L2, ``128 + columns`` elements.

For 4096 x 4096 x 4096 in float16 on an H100 (132 multiprocessors, 1.83 GHz, 989 TFLOP/s) and 256
columns these are, for 64 steps, 1024 cycles of arithmetic, 128 KiB or 1024 cycles of shared memory
and 48 KiB from L2, 48 bytes a cycle. 512 tiles are 4 rounds of 132, of which 3.88 are full.
"""

import itertools
import math
from dataclasses import dataclass

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.products.contraction_decision import BANKS_BYTES, Product
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_map import SWIZZLED_ROW_BYTES
from tvm_ext.tir_schedules.decisions import Decisions
from tvm_ext.tir_schedules.template import NotMine

TILE_ROWS = 128
_ROW_BYTES = SWIZZLED_ROW_BYTES
"""Bytes of the steps whose operands are brought at a time."""

TILE_COLUMNS = (64, 128, 192, 256)
MAX_STAGES = 8
BARRIER_BYTES = 16
"""Two barriers for each stage."""

ALIGNMENT = 1024
"""Bytes after which the pattern of a swizzle by 128 bytes repeats."""

GROUP_SIZES = (1, 2, 4, 8, 16, 32)

WARP_RATE = 0.63
"""Share of Hopper's arithmetic rate that instructions of single warps reach: Luo et al.,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024."""

# Steps of a part below which a second kernel that adds up parts costs more than it saves. Estimate.
_LEAST_SPLIT_STEPS = 1024

# Cycles until the first operands are there, once for a block: a launch and a round trip to memory.
_START_CYCLES = 2000


@dataclass(frozen=True)
class GroupTiles:
    """Tiles of a product by warp groups.

    Attributes
    ----------
    columns : int
        Columns of the ``TILE_ROWS`` rows of results that a block of threads computes.
    stages : int
        Pairs of operand tiles, of rows of 128 bytes, that are in flight or in use.
    group : int
        Rows of tiles that are worked through column by column, before the next rows: blocks that
        run at the same time then share operands in L2.
    """

    columns: int
    stages: int
    group: int

    @property
    def stage_bytes(self) -> int:
        """Bytes of one pair of operand tiles."""
        return (TILE_ROWS + self.columns) * _ROW_BYTES

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a block."""
        return self.stages * (self.stage_bytes + BARRIER_BYTES) + ALIGNMENT

    def count(self, product: Product) -> tuple[int, int]:
        """Tiles along the rows and the columns of one product."""
        return math.ceil(product.rows / TILE_ROWS), math.ceil(product.columns / self.columns)


def decide_group_tiles(
    product: Product,
    machine: GpuDescription,
    decisions: Decisions,
    copied_bytes: int = 0,
    wanted: Product | None = None,
) -> GroupTiles | NotMine:
    """The tiles, or why instructions of single warps are not slower.

    ``copied_bytes``: what is read and written to align operands first. ``wanted``: the product
    without rows and steps that only fill boxes. Decisions: ``tile_columns``, ``stages``,
    ``tile_group``.
    """
    offered = [columns for columns in TILE_COLUMNS if _stages(columns, machine) >= 2]
    if not offered:
        return NotMine("shared memory has no room for two stages")
    best = min(offered, key=lambda columns: (_cycles(columns, product, machine), columns))
    needed = _arithmetic(best, product, machine) + _copying(copied_bytes, machine)
    if needed >= _arithmetic_of_warps(wanted or product, machine):
        return NotMine("its tiles would be so empty that instructions of single warps are as fast")
    columns = decisions.pick("tile_columns", offered, best)
    most = _stages(columns, machine)
    stages = decisions.pick("stages", range(2, most + 1), most)
    rows = math.ceil(product.rows / TILE_ROWS)
    sizes = [size for size in GROUP_SIZES if size <= rows]
    # The operands of a square of results are the fewest for as many blocks as run at a time.
    square = math.sqrt(machine.sms * columns / TILE_ROWS)
    nearest = min(sizes, key=lambda size: abs(math.log2(size / square)))
    return GroupTiles(columns, stages, decisions.pick("tile_group", sizes, nearest))


def _stages(columns: int, machine: GpuDescription) -> int:
    one = GroupTiles(columns, 1, 1)
    room = machine.dynamic_shared_memory_bytes - ALIGNMENT
    return min(MAX_STAGES, room // (one.stage_bytes + BARRIER_BYTES))


def _cycles(columns: int, product: Product, machine: GpuDescription) -> float:
    """Estimated cycles of the whole product with tiles of so many columns."""
    clock = machine.clock_ghz * 1e9
    arithmetic = TILE_ROWS * columns / _rate(product, machine)
    through = 2 * TILE_ROWS + (1 + 2) * columns
    shared = through * product.element_bytes / BANKS_BYTES
    from_l2 = machine.l2_gbs * 1e9 / machine.sms / clock
    loads = (TILE_ROWS + columns) * product.element_bytes / from_l2
    depth = _ROW_BYTES // product.element_bytes
    steps = math.ceil(product.steps / depth) * depth
    store = TILE_ROWS * columns * product.element_bytes / from_l2
    tiles = product.batch * math.prod(GroupTiles(columns, 1, 1).count(product))
    rounds = math.ceil(tiles / machine.sms)
    return _START_CYCLES + rounds * (steps * max(arithmetic, shared, loads) + store)


def _arithmetic(columns: int, product: Product, machine: GpuDescription) -> float:
    """Cycles in which the tensor cores of the busiest multiprocessor are needed."""
    depth = _ROW_BYTES // product.element_bytes
    steps = math.ceil(product.steps / depth) * depth
    tiles = product.batch * math.prod(GroupTiles(columns, 1, 1).count(product))
    rounds = math.ceil(tiles / machine.sms)
    return rounds * steps * TILE_ROWS * columns / _rate(product, machine)


def _arithmetic_of_warps(product: Product, machine: GpuDescription) -> float:
    """The same for the best tiles of instructions of single warps, which may split the steps."""
    found = []
    sizes = itertools.product((16, 32, 64, 128), (32, 64, 128, 256), (1, 2, 4, 8, 16))
    for rows, columns, splits in sizes:
        tiles = math.ceil(product.rows / rows) * math.ceil(product.columns / columns)
        rounds = math.ceil(product.batch * tiles * splits / machine.sms)
        steps = math.ceil(math.ceil(product.steps / splits) / 32) * 32
        if splits == 1 or steps >= _LEAST_SPLIT_STEPS:
            found.append(rounds * steps * rows * columns)
    return min(found) / (_rate(product, machine) * WARP_RATE)


def _copying(count: int, machine: GpuDescription) -> float:
    """Cycles for kernels that read and write so many bytes."""
    if not count:
        return 0.0
    seconds = count / machine.bandwidth(count) + machine.kernel_overhead_us * 1e-6
    return seconds * machine.clock_ghz * 1e9


def _rate(product: Product, machine: GpuDescription) -> float:
    """Multiply-adds that a multiprocessor's tensor cores do in a cycle."""
    return machine.peak_flops(product.dtype) / 2 / machine.sms / (machine.clock_ghz * 1e9)

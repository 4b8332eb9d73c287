"""The tile sizes of a matmul on a GPU, by default from its rates and memories.

A block of threads computes a tile of ``rows x columns`` results. For every step of the reduction
that takes ``rows * columns`` multiply-adds, and ``rows + columns`` elements are brought from L2.
The longer of the two, times the number of rounds in which all multiprocessors work through the
tiles, is what a tile is chosen by: large tiles load less, small ones leave no processor idle.

Few tiles with a long reduction are split along it: several blocks add up parts, and a second
kernel adds these, always in the same order.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.template import Decisions, pick_each

BANKS_BYTES = 128
ROW_PADDING_BYTES = 16
"""Bytes after each row in shared memory: rows of eight lanes then begin in different banks."""

TILE_SIZES = (8, 16, 32, 64, 128, 256)
WARP_TILES = tuple(itertools.product((16, 32, 64), (16, 32, 64)))
"""Rows and columns that a warp may compute with matrix instructions."""

MAX_WARPS = 16
MAX_STAGES = 5

# Registers of a thread besides accumulators and fragments: addresses, loop counters, predicates.
OTHER_REGISTERS = 48
MAX_REGISTERS = 255

# Share of what is not the longest in a step that it does not hide. Estimate.
UNHIDDEN = 0.2

MAX_SPLITS = 64
MAX_GROUP = 16
MAX_BATCH = 65_535
"""Blocks of threads along y and z of a grid: CUDA C++ Programming Guide, compute capabilities."""

PARTIAL_BYTES = 4
"""Bytes of a partial result, float32 or int32."""

# What a tile takes before its first product and after its last: two trips to memory. Estimate.
START_SECONDS = 0.8e-6


@dataclass(frozen=True)
class MatmulProblem:
    """What is computed: ``batch`` products of ``m x k`` and ``k x n`` matrices.

    ``depth`` is how much of K one instruction takes, ``warp_tiles`` what a warp may compute,
    ``own`` how many rows and columns each lane loads for itself; with matrix instructions, whose
    operands the lanes of a warp share, it is 0.
    """

    batch: int
    m: int
    n: int
    k: int
    dtype: str
    element_bytes: int
    depth: int
    warp_tiles: tuple[tuple[int, int], ...] = WARP_TILES
    own: int = 0


@dataclass(frozen=True)
class MatmulTileSizes:
    """Tiles of a matmul.

    Attributes
    ----------
    rows, columns : int
        Results that a block of threads computes.
    depth : int
        Steps of the reduction whose operands are in shared memory at a time.
    warp_rows, warp_columns : int
        Results that a warp computes.
    stages : int
        Copies of the operands' tiles that are in flight or in use.
    splits : int
        Parts of the reduction, each added up by a block of its own.
    group : int
        Tiles below each other that are computed one after the other, before the next column.
    """

    rows: int
    columns: int
    depth: int
    warp_rows: int
    warp_columns: int
    stages: int
    splits: int = 1
    group: int = 1

    @property
    def warps(self) -> int:
        """Warps of a block of threads."""
        return (self.rows // self.warp_rows) * (self.columns // self.warp_columns)

    def shared_bytes(self, element_bytes: int) -> int:
        """Bytes of shared memory: the operands' tiles, or in their place the tile of results."""
        wide = ROW_PADDING_BYTES + self.depth * element_bytes
        tall = self.depth * (self.columns * element_bytes + ROW_PADDING_BYTES)
        operands = self.rows * wide + max(self.columns * wide, tall)
        results = self.rows * (self.columns * 4 + 2 * ROW_PADDING_BYTES)
        return max(self.stages * operands, results)

    def registers(self, element_bytes: int, depth: int) -> int:
        """Registers of a thread, estimated: results, two sets of fragments, and the rest."""
        results = self.warp_rows * self.warp_columns // 32
        fragments = 2 * (self.warp_rows + self.warp_columns) * depth * element_bytes // 4 // 32
        return results + fragments + OTHER_REGISTERS


def decide_tiles(
    product: MatmulProblem, machine: CudaDescription, decisions: Decisions
) -> MatmulTileSizes:
    """The tiles of a matmul.

    Decisions: ``tile_rows``, ``tile_columns``, ``tile_depth``, ``warp_rows``, ``warp_columns``,
    ``stages``, ``splits``, ``group``. Only what fits into the shared memory and the registers of a
    block is offered.
    """
    fitting = list(_fitting(product, machine))
    if not fitting:
        raise NotApplicable(f"no tile fits into {machine.dynamic_shared_memory_bytes} bytes")
    names = {f"tile_{name}": name for name in ("rows", "columns", "depth")}
    names |= {name: name for name in ("warp_rows", "warp_columns", "stages")}
    tiles = pick_each(fitting, names, lambda tile: _seconds(tile, product, machine), decisions)
    counts = _splits(tiles, product, machine)
    count = min(counts, key=lambda splits: _split_seconds(tiles, splits, product, machine))
    groups = _groups(tiles, product)
    group = decisions.pick("group", groups, _group(groups, tiles, product, machine))
    return replace(tiles, splits=decisions.pick("splits", counts, count), group=group)


def _fitting(product: MatmulProblem, machine: CudaDescription) -> Iterator[MatmulTileSizes]:
    """Tiles that are not larger than the matmul needs and that a block has room for."""
    pipelines = tuple(_pipelines(product))
    for rows, columns, warp_rows, warp_columns in _blocks(product):
        for depth, stages in pipelines:
            tile = MatmulTileSizes(rows, columns, depth, warp_rows, warp_columns, stages)
            if _fits(tile, product, machine):
                yield tile


def _blocks(product: MatmulProblem) -> Iterator[tuple[int, int, int, int]]:
    """Rows and columns of a block's tile, and of a warp's."""
    least = [min(sizes) for sizes in zip(*product.warp_tiles, strict=True)]
    for warp_rows, warp_columns in product.warp_tiles:
        if product.own:
            # What is a warp's least in one dimension is its most in the other.
            least = [warp_rows, warp_columns]
        sizes = _sizes(product.m, least[0]), _sizes(product.n, least[1])
        for rows, columns in itertools.product(*sizes):
            if warp_rows <= rows and warp_columns <= columns:
                yield rows, columns, warp_rows, warp_columns


def _pipelines(product: MatmulProblem) -> Iterator[tuple[int, int]]:
    """Depths of a tile, and how many tiles may be in flight: no more than there are.

    TVM 0.27 finds no constant for what a shorter pipeline has to wait for.
    """
    for depth in (product.depth * factor for factor in (1, 2, 4)):
        count = math.ceil(product.k / depth)
        if count == 1:
            yield depth, 1
            return
        yield from ((depth, stages) for stages in range(2, min(MAX_STAGES, count) + 1))


def _sizes(extent: int, least: int) -> list[int]:
    """Tile sizes up to the first that holds all of a dimension, and a warp's part of it."""
    return [size for size in TILE_SIZES if size >= least and size < max(2 * extent, least + 1)]


def _fits(tile: MatmulTileSizes, product: MatmulProblem, machine: CudaDescription) -> bool:
    if tile.warps > MAX_WARPS or tile.warps * machine.warp_size > machine.max_threads_per_block:
        return False
    registers = tile.registers(product.element_bytes, product.depth)
    threads = tile.warps * machine.warp_size
    return (
        tile.shared_bytes(product.element_bytes) <= machine.dynamic_shared_memory_bytes
        and registers <= MAX_REGISTERS
        and registers * threads <= machine.registers_per_block
    )


def _splits(tile: MatmulTileSizes, product: MatmulProblem, machine: CudaDescription) -> list[int]:
    """Into how many parts a reduction may go: each has a full pipeline, and none is empty."""
    parts = math.ceil(product.k / tile.depth)
    blocks = 2 * _busy_blocks(tile, product, machine) // _tiles(tile, product)
    most = min(parts // tile.stages, MAX_SPLITS, blocks, MAX_BATCH // product.batch)
    return sorted(
        {math.ceil(parts / math.ceil(parts / count)) for count in range(1, most + 1)} | {1}
    )


def _groups(tile: MatmulTileSizes, product: MatmulProblem) -> list[int]:
    rows = math.ceil(product.m / tile.rows)
    return [count for count in range(1, MAX_GROUP + 1) if rows % count == 0]


def _group(
    groups: list[int], tile: MatmulTileSizes, product: MatmulProblem, machine: CudaDescription
) -> int:
    """Tiles that run at a time read least when they are a square, which matters beyond L2."""
    operands = product.batch * (product.m + product.n) * product.k
    if operands * product.element_bytes <= machine.l2_bytes / 2:
        return 1
    square = math.sqrt(machine.sms * tile.columns / tile.rows)
    return min(groups, key=lambda count: abs(count - square))


def _tiles(tile: MatmulTileSizes, product: MatmulProblem) -> int:
    rows, columns = math.ceil(product.m / tile.rows), math.ceil(product.n / tile.columns)
    return product.batch * rows * columns


def _seconds(
    tile: MatmulTileSizes, product: MatmulProblem, machine: CudaDescription
) -> tuple[float, ...]:
    """Estimated time, and what breaks a tie: four warps, deep enough a pipeline."""
    parts = math.ceil(product.k / tile.depth)
    # As many parts as there are idle multiprocessors for each tile.
    blocks = _busy_blocks(tile, product, machine) // _tiles(tile, product)
    splits = max(1, min(blocks, parts // tile.stages, MAX_SPLITS))
    seconds = min(_split_seconds(tile, count, product, machine) for count in {1, splits})
    in_flight = (tile.stages - 1) * tile.depth * product.element_bytes
    # Three loads of 128 bytes for each row in flight hide the memory's latency; no more are needed.
    few_or_many_warps = abs(math.log2(tile.warps) - 2)
    sides = (tile.warp_rows + tile.warp_columns) * tile.warps
    return (seconds, few_or_many_warps, abs(in_flight - 192), sides, tile.depth)


def _split_seconds(
    tile: MatmulTileSizes, splits: int, product: MatmulProblem, machine: CudaDescription
) -> float:
    """Estimated time with the reduction in ``splits`` parts."""
    tile = replace(tile, splits=splits)
    rounds = rounds_of(tile, product, machine)
    rate = machine.peak_flops(product.dtype) / 2 / machine.sms
    # Four schedulers of a multiprocessor issue matrix instructions, each for a warp of its own.
    warps = tile.warps * _resident(tile, product, machine, rounds)
    rate *= min(1.0, warps / 4)
    arithmetic = tile.rows * tile.columns / rate
    # What the warps read from shared memory for each step: 128 bytes a cycle.
    shared = _fragment_bytes(tile, product) / (BANKS_BYTES * machine.clock_ghz * 1e9)
    loads = (tile.rows + tile.columns) * product.element_bytes
    transfer = loads / (machine.l2_gbs * 1e9 / machine.sms)
    parts = steps_of_block(tile, product)
    # The longest hides the others, but never all of them.
    limits = (arithmetic, shared, transfer)
    step = max(limits) + UNHIDDEN * (sum(limits) - max(limits))
    seconds = rounds * (parts * tile.depth * step + START_SECONDS)
    if splits == 1:
        return seconds
    # Each partial result is written and read once more.
    partial = splits * _tiles(tile, product) * tile.rows * tile.columns * PARTIAL_BYTES
    again = 2 * partial / machine.bandwidth(partial)
    return seconds + again + machine.kernel_overhead_us * 1e-6


def rounds_of(tile: MatmulTileSizes, product: MatmulProblem, machine: CudaDescription) -> int:
    """How often all multiprocessors compute a tile."""
    return math.ceil(_tiles(tile, product) * tile.splits / machine.sms)


def steps_of_block(tile: MatmulTileSizes, product: MatmulProblem) -> int:
    """Tiles of the operands that a block goes through."""
    return math.ceil(math.ceil(product.k / tile.depth) / tile.splits)


def _busy_blocks(tile: MatmulTileSizes, product: MatmulProblem, machine: CudaDescription) -> int:
    """Blocks that give every multiprocessor work: four warps where lanes add up for themselves."""
    return machine.sms * (max(1, 4 // tile.warps) if product.own else 1)


def _resident(
    tile: MatmulTileSizes, product: MatmulProblem, machine: CudaDescription, rounds: int
) -> int:
    """Blocks that a multiprocessor works on at a time; large tiles of instructions are alone."""
    if not product.own:
        return 1
    shared = machine.dynamic_shared_memory_bytes // tile.shared_bytes(product.element_bytes)
    registers = tile.registers(product.element_bytes, product.depth) * tile.warps
    return max(1, min(rounds, shared, machine.registers_per_block // (registers * 32)))


def _fragment_bytes(tile: MatmulTileSizes, product: MatmulProblem) -> int:
    """What the warps of a block load from shared memory for each step."""
    if product.own:
        return 32 * 2 * product.own * product.element_bytes * tile.warps
    return (tile.warp_rows + tile.warp_columns) * product.element_bytes * tile.warps

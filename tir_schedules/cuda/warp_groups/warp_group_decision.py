"""How a matrix product by warp groups is cut, in closed form, and when they are worth it.

Of all tiles those are taken that take the fewest cycles as ``warp_group_cycles`` has them. With
each size the steps of a last round that is not full may be shared, by as many blocks as there are
multiprocessors, or by a whole number for each of its tiles. Where L2 could not give all blocks what
they ask for, clusters of two blocks ask for the operand that they share only once.
"""

import itertools
import math
from dataclasses import replace

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.products.contraction_decision import Product
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_map import SWIZZLED_ROW_BYTES
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_cycles import (
    copying,
    cycles,
    cycles_of_warps,
    is_much_for_l2,
)
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_tiles import (
    TILE_COLUMNS,
    TILE_ROWS,
    GroupTiles,
)
from tvm_ext.tir_schedules.decisions import Decisions
from tvm_ext.tir_schedules.template import NotMine

GROUP_SIZES = (1, 2, 4, 8, 16, 32)

_PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Blocks that may share one tile where every tile has as many."""

# Steps of the ring below which a range is over before its pipeline is full. Estimate.
_LEAST_RANGE = 4

# Numbers of shared steps times blocks have to fit into the type of indices.
_MOST_PRODUCT = (1 << 31) - 1


def decide_group_tiles(
    product: Product,
    machine: GpuDescription,
    decisions: Decisions,
    copied_bytes: int = 0,
    wanted: Product | None = None,
    row_bytes: int = SWIZZLED_ROW_BYTES,
    across: bool = False,
) -> GroupTiles | NotMine:
    """The tiles, or why instructions of single warps are not slower.

    ``copied_bytes``: what is read and written to align operands first. ``wanted``: the product
    without rows and steps that only fill boxes. ``row_bytes``: see ``GroupTiles``. ``across``:
    columns of B are neighbours in memory. Decisions: ``tile_rows``, ``tile_columns``,
    ``split_blocks``, ``stages``, ``cluster``, ``tile_group``.
    """
    shapes = itertools.product(TILE_ROWS, TILE_COLUMNS)
    sizes = [GroupTiles(rows, columns, row_bytes=row_bytes) for rows, columns in shapes]
    offered = [tiles for size in sizes for tiles in _splits(size, product, machine)]
    offered = [tiles for tiles in offered if tiles.most_stages(machine) >= 2]
    if not offered:
        return NotMine("shared memory has no room for two stages")

    def best() -> GroupTiles:
        return min(offered, key=lambda tiles: (cycles(tiles, product, machine), -tiles.columns))

    needed = cycles(best(), product, machine) + copying(copied_bytes, machine)
    if needed >= cycles_of_warps(wanted or product, machine):
        return NotMine("its tiles would be so empty that instructions of single warps are as fast")
    for name, knob in (("rows", "tile_rows"), ("columns", "tile_columns"), ("split_blocks",) * 2):
        options = {getattr(tiles, name) for tiles in offered}
        picked = decisions.pick(knob, options, getattr(best(), name))
        offered = [tiles for tiles in offered if getattr(tiles, name) == picked]
    tiles = offered[0]
    most = tiles.most_stages(machine)
    tiles = replace(tiles, stages=decisions.pick("stages", range(2, most + 1), most))
    clusters = _clusters(tiles, product, machine, across)
    pairs = max(clusters) if is_much_for_l2(tiles, product, machine) else 1
    tiles = replace(tiles, cluster=decisions.pick("cluster", clusters, pairs))
    rows = math.ceil(product.rows / tiles.rows)
    groups = [size for size in GROUP_SIZES if size <= rows and size % tiles.cluster == 0]
    # The operands of a square of results are the fewest for as many blocks as run at a time.
    square = math.sqrt(machine.sms * tiles.columns / tiles.rows)
    nearest = min(groups, key=lambda size: abs(math.log2(size / square)))
    return replace(tiles, group=decisions.pick("tile_group", groups, nearest))


def _clusters(
    tiles: GroupTiles, product: Product, machine: GpuDescription, across: bool
) -> list[int]:
    """Blocks that clusters may have: two need whole pairs of tiles in every column and round."""
    pairs = math.ceil(product.rows / tiles.rows) % 2 == 0 and machine.sms % 2 == 0
    # Each brings half of the columns, in whole boxes.
    box = SWIZZLED_ROW_BYTES // product.element_bytes
    halves = not across or tiles.columns % (2 * box) == 0
    return [1, 2] if pairs and halves and tiles.split_blocks % 2 == 0 else [1]


def _splits(tiles: GroupTiles, product: Product, machine: GpuDescription) -> list[GroupTiles]:
    """The tiles with every number of blocks that may share a last round that is not full."""
    left, depth = tiles.shared(product, machine), tiles.depth(product)
    if not left:
        return [tiles]
    counts = {left * parts for parts in _PARTS if left * parts <= machine.sms} | {machine.sms}
    most = min(left * depth // _LEAST_RANGE, _MOST_PRODUCT // (left * depth + 1) - 1)
    shared = [count for count in sorted(counts) if left < count <= most]
    return [replace(tiles, split_blocks=count) for count in (0, *shared)]

"""Estimated cycles of a product by warp groups, by which its tiles are chosen.

A block of threads computes ``rows x columns`` results, 64 rows in each warp group that multiplies,
while another one brings 64 steps' worth of operands at a time. For every step that takes, in cycles
of a multiprocessor, the longest of

- the multiply-adds, ``rows * columns`` at the rate of the tensor cores;
- what goes through shared memory at 128 bytes a cycle: both operands are written once, B is read
  by each of the groups, A once;
- the way of ``rows + columns`` elements to the multiprocessor. Blocks that run at a time ask for
  the same elements at about the same time, so that this is the multiprocessor's own connection;
  where blocks share steps and are not at the same step of their tiles, it is also their share of
  what L2 gives.

For 4096 x 4096 x 4096 in float16 on an H100 (132 multiprocessors, 1.83 GHz, 989 TFLOP/s) and tiles
of 128 x 256 these are, for 64 steps, 1024 cycles of arithmetic, 128 KiB or 1024 cycles of shared
memory and 48 KiB from L2, 48 bytes a cycle. 512 tiles are 4 rounds of 132, of which 3.88 are full.

Where blocks share the steps of the last round's tiles, that round takes as long as its longest
range of steps. Added to it are the parts' way to memory, at most two for each block, and a second
kernel that reads all of them.
"""

import itertools
import math

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.products.contraction_decision import (
    BANKS_BYTES,
    PARTIAL_BYTES,
    Product,
)
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_tiles import GroupTiles

WARP_RATE = 0.63
"""Share of Hopper's arithmetic rate that instructions of single warps reach: Luo et al.,
"Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking", 2024."""

# Bytes that one multiprocessor takes from L2 in a cycle: 64 (NVIDIA A100 white paper, 2020, "A100
# L2 cache"), of which copies reach this much when all multiprocessors ask. Estimate.
_CONNECTION_BYTES = 48

# Cycles until the first operands are there, once for a block: a launch and a round trip to memory.
_START_CYCLES = 2000


def cycles(tiles: GroupTiles, product: Product, machine: GpuDescription) -> float:
    """Estimated cycles of the whole product."""
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


def is_much_for_l2(tiles: GroupTiles, product: Product, machine: GpuDescription) -> bool:
    """Whether all blocks together ask L2 for more in a step than it gives in that time."""
    asked = machine.sms * (tiles.rows + tiles.columns) * product.element_bytes
    step = _step(tiles, product, machine, _CONNECTION_BYTES)
    return asked > step * machine.l2_gbs / machine.clock_ghz


def cycles_of_warps(product: Product, machine: GpuDescription) -> float:
    """The same for the best tiles of instructions of single warps, which may split the steps.

    Operands go from shared memory to the registers of each of 2 x 2 warps.
    """
    found = []
    width = product.element_bytes
    sizes = itertools.product((16, 32, 64, 128), (32, 64, 128, 256), (1, 2, 4, 8, 16))
    for rows, columns, splits in sizes:
        tiles = math.ceil(product.rows / rows) * math.ceil(product.columns / columns)
        tiles *= product.batch * splits
        multiply_adds = rows * columns / (_rate(product, machine) * WARP_RATE)
        loads = (rows + columns) * width
        step = max(multiply_adds, 3 * loads / BANKS_BYTES, loads / _CONNECTION_BYTES)
        steps = math.ceil(math.ceil(product.steps / splits) / 32) * 32
        stored = rows * columns * (width if splits == 1 else PARTIAL_BYTES)
        store = stored / _from_l2(machine, machine.sms)
        time = _START_CYCLES + math.ceil(tiles / machine.sms) * (steps * step + store)
        found.append(time + (copying(tiles * stored, machine) if splits > 1 else 0))
    return min(found)


def copying(count: int, machine: GpuDescription) -> float:
    """Cycles for a kernel that reads and writes so many bytes; 0 where there is none."""
    if not count:
        return 0.0
    seconds = count / machine.bandwidth(count) + machine.kernel_overhead_us * 1e-6
    return seconds * machine.clock_ghz * 1e9


def _step(tiles: GroupTiles, product: Product, machine: GpuDescription, loaded: float) -> float:
    """One step of a tile, with ``loaded`` bytes of operands a cycle."""
    multiply_adds = tiles.rows * tiles.columns / _rate(product, machine)
    through = 2 * tiles.rows + (1 + tiles.multiplying) * tiles.columns
    loads = tiles.rows + tiles.columns
    width = product.element_bytes
    return max(multiply_adds, through * width / BANKS_BYTES, loads * width / loaded)


def _from_l2(machine: GpuDescription, blocks: int) -> float:
    """Bytes a cycle between L2 and each of ``blocks`` multiprocessors."""
    return min(_CONNECTION_BYTES, machine.l2_gbs / machine.clock_ghz / blocks)


def _rate(product: Product, machine: GpuDescription) -> float:
    """Multiply-adds that a multiprocessor's tensor cores do in a cycle."""
    return machine.peak_flops(product.dtype) / 2 / machine.sms / (machine.clock_ghz * 1e9)

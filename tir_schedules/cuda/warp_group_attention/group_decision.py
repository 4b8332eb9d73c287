"""The tiles of attention by warp groups in closed form, and when they are worth it.

Operations and bytes. ``B`` sequences of ``S`` queries and keys, ``H`` heads of ``D`` elements of 16
bits, no causal mask, on a multiprocessor that does 2048 multiply-adds a cycle by instructions of
warp groups (989 TFLOP/s of 132 at 1.83 GHz) and 16 exponentials:

- products: ``2 B H S^2 D`` multiply-adds; for 128 queries and 128 keys 1024 cycles where D is 64,
  2048 where it is 128;
- exponentials: ``B H S^2``; for 128 x 128 scores 1024 cycles;
- other arithmetic of the softmax: a score is compared (at half rate), scaled, added and rounded,
  5 operations of 128 a cycle: 640 cycles;
- shared memory, 128 bytes a cycle: a warp group reads its 64 queries and all keys for the scores
  and all values for the results, keys and values are written once. For 128 x 128 and D = 128 this
  is 2 x (16 + 32 + 32) + 64 KiB, 1792 cycles, and half of it for D = 64;
- L2: keys and values once for every tile of rows, 64 KiB for 128 x 128 and D = 128. At 640 TFLOP/s,
  which kernels were measured at that share no copies between blocks, that is 5 TB/s for all
  multiprocessors: near what L2 gives, so it is no term of the estimate;
- memory: query, keys, values and result once, ``8 B H S D`` bytes.

For B = 2, H = 16, S = 8192, D = 128 in float16 on an H200 that is 1.10e12 operations, 2.15e9
exponentials and 0.27 GB: 1.11 ms of products, 0.56 ms of exponentials, 0.06 ms of memory. The floor
is 1.11 ms, 989 TFLOP/s, if everything overlaps, and 1.67 ms, 660 TFLOP/s, if exponentials overlap
with nothing. For D = 64 both take 0.56 ms, and the floor without overlap is 1.11 ms, 494 TFLOP/s.
Instructions of single warps reach 0.63 of the rate: 1.77 ms for D = 128 alone, 620 TFLOP/s, and
2.3 ms, 470 TFLOP/s, with exponentials that do not overlap. Kernels of this form were measured at
up to 740 TFLOP/s, those of single warps at 350 to 400: Shah et al., "FlashAttention-3" (2024).

A thread keeps ``keys / 2`` scores, as many weights of half the size, and ``width / 2`` results.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.cuda.attention.attention_decision import EXPONENTIALS, best_seconds
from tvm_ext.tir_schedules.cuda.attention.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.cuda.products.contraction_decision import BANKS_BYTES
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_shape import (
    GroupAttentionTiles,
    GroupLayout,
    in_pairs,
    row_tiles,
    work_units,
)
from tvm_ext.tir_schedules.cuda.warp_groups.warp_group_instructions import ROWS
from tvm_ext.tir_schedules.decisions import Decisions
from tvm_ext.tir_schedules.template import NotMine

REGISTERS = {2: (40, 232), 3: (32, 160)}
"""By multiplying groups: registers of a thread that copies and of one that multiplies.

Multiples of 8, and for all warp groups no more than the 512 that a multiprocessor has for each of
their 128 threads.
"""

# Registers of a thread for row sums, addresses and what is in flight.
_OTHER_REGISTERS = 32

_KEYS = (32, 48, 64, 80, 96, 112, 128, 144, 160, 176)
_STAGES = (2, 3, 4)
_MAX_WIDTH = 256
"""Columns of one product: PTX ISA, "wgmma.mma_async", "Matrix Shape"."""

# Operations of a score besides the exponential, as the docstring counts them.
_SCORE_OPERATIONS = 5

# Cycles of a step for barriers and for what waits for the one before. Estimate.
_STEP_CYCLES = 300

# Cycles of a tile of rows before its first products and after the last ones; and of a block from
# its launch until the query and the first keys are there. Estimates.
_TILE_CYCLES, _START_CYCLES = 1200, 1800


def decide_group_attention(
    problem: AttentionProblem, machine: GpuDescription, decisions: Decisions
) -> GroupAttentionTiles | NotMine:
    """The tiles, or why instructions of single warps are not slower.

    Decisions: ``groups``, ``keys``, ``stages``, ``lasting``, ``turns``.
    """
    if problem.width > _MAX_WIDTH:
        return NotMine(f"values have {problem.width} elements, more than {_MAX_WIDTH}")
    fitting = list(_fitting(problem, machine))
    if not fitting:
        return NotMine("no tile fits into the registers and the shared memory of a block")

    def time(tiles: GroupAttentionTiles) -> tuple[float, ...]:
        return _seconds(GroupLayout(problem, tiles), machine), -tiles.stages, -tiles.keys

    closed = min(fitting, key=time)
    if time(closed)[0] >= best_seconds(problem, machine):
        return NotMine("instructions of single warps are as fast for so few rows or keys")
    for name in ("groups", "keys", "stages"):
        best = closed if closed in fitting else min(fitting, key=time)
        options = {getattr(tiles, name) for tiles in fitting}
        picked = decisions.pick(name, options, getattr(best, name))
        fitting = [tiles for tiles in fitting if getattr(tiles, name) == picked]
    chosen = fitting[0]
    layout = GroupLayout(problem, chosen)
    faster = _cycles(layout, machine, True) <= _cycles(layout, machine, False)
    lasting = decisions.pick("lasting", (0, 1), int(faster))
    turns = decisions.pick("turns", (0, 1), int(problem.width <= _MAX_WIDTH // 2))
    chosen = replace(chosen, lasting=bool(lasting), turns=bool(turns))
    even = problem.compute.causal is None or (lasting and in_pairs(problem, chosen))
    return chosen if even else replace(chosen, section=_section(problem, machine))


def _fitting(problem: AttentionProblem, machine: GpuDescription) -> Iterator[GroupAttentionTiles]:
    for groups, (_, registers) in REGISTERS.items():
        for keys in _KEYS:
            if keys > _KEYS[0] and keys >= 2 * problem.keys:
                continue
            for stages in _STAGES:
                tiles = GroupAttentionTiles(groups, keys, stages)
                layout = GroupLayout(problem, tiles)
                held = layout.held_registers + _OTHER_REGISTERS
                shared = layout.shared_bytes <= machine.dynamic_shared_memory_bytes
                if held <= registers and shared:
                    yield tiles


def _section(problem: AttentionProblem, machine: GpuDescription) -> int:
    """Heads of keys whose keys and values half of L2 holds."""
    size = problem.query.element_bytes
    one = problem.keys * (problem.depth + problem.width) * size
    return max(1, min(machine.l2_bytes // 2 // one, problem.batch * problem.key.size("h")))


def _seconds(layout: GroupLayout, machine: GpuDescription) -> float:
    """Estimated time."""
    times = [_cycles(layout, machine, lasting) for lasting in (False, True)]
    return min(times) / (machine.clock_ghz * 1e9)


def _cycles(layout: GroupLayout, machine: GpuDescription, lasting: bool) -> float:
    """Of all tiles: the busiest unit, a quarter of the others, and all starts and ends.

    Blocks of one tile are dealt out by the hardware, to who is done first; those that last have as
    many units of work each, and only the first start in their way.
    """
    problem, tiles = layout.problem, replace(layout.tiles, lasting=lasting)
    lengths = [_steps(problem, tiles, tile) for tile in range(row_tiles(problem, tiles))]
    step, units = _step_cycles(layout, machine), work_units(problem, tiles)
    even = problem.compute.causal is None or in_pairs(problem, tiles)
    total = sum(lengths) * problem.heads * problem.batch
    count = len(lengths) * problem.heads * problem.batch
    if lasting:
        rounds = math.ceil(units / machine.sms)
        worst = total / units if even else max(lengths)
        return rounds * (worst * step + count / units * _TILE_CYCLES) + _START_CYCLES
    mean = total / count
    filled = float(math.ceil(count / machine.sms))
    if problem.compute.causal is not None:
        # Short tiles come last, and fill the last round up.
        filled = max(count / machine.sms, max(lengths) / mean)
    return filled * (mean * step + _TILE_CYCLES + _START_CYCLES)


def _steps(problem: AttentionProblem, tiles: GroupAttentionTiles, tile: int) -> int:
    """Tiles of keys that a tile of rows looks at."""
    seen, causal = problem.keys, problem.compute.causal
    if causal is not None:
        last = min((tile + 1) * tiles.rows, problem.queries)
        seen = min(seen, max(last + causal, 1))
    return math.ceil(seen / tiles.keys)


def _step_cycles(layout: GroupLayout, machine: GpuDescription) -> float:
    problem, tiles = layout.problem, layout.tiles
    clock = machine.clock_ghz * 1e9
    scores = tiles.rows * tiles.keys
    rate = machine.peak_flops(problem.query.dtype) / 2 / machine.sms / clock
    products = scores * (layout.depth + layout.width) / rate
    softmax = (
        max(scores / EXPONENTIALS, scores * _SCORE_OPERATIONS / machine.fp32_lanes_per_sm)
        + tiles.rows * layout.width / machine.fp32_lanes_per_sm
    )
    moved = tiles.keys * (layout.depth + layout.width)
    read = tiles.groups * (ROWS * layout.depth + moved)
    shared = (read + moved) * problem.query.element_bytes / BANKS_BYTES
    busy = (products, softmax, shared)
    return max(busy) + (sum(busy) - max(busy)) / 4 + _STEP_CYCLES

"""The tiles of attention by warpgroups by default, and when they are worth it.

Operations and bytes. ``B`` sequences of ``S`` queries and keys, ``H`` heads of ``D`` elements
of 16 bits, no causal mask, on a multiprocessor that does 2048 multiply-adds a cycle by
instructions of warpgroups (989 TFLOP/s of 132 at 1.83 GHz) and 16 exponentials:

- products: ``2 B H S^2 D`` multiply-adds; for 128 queries and 128 keys 1024 cycles where D is 64,
  2048 where it is 128;
- exponentials: ``B H S^2``; for 128 x 128 scores 1024 cycles;
- other arithmetic of the softmax: a score is compared (at half rate), scaled, added and rounded,
  5 operations of 128 a cycle: 640 cycles;
- shared memory, 128 bytes a cycle: a warpgroup reads its 64 queries and all keys for the scores
  and all values for the results, keys and values are written once. For 128 x 128 and D = 128 this
  is 2 x (16 + 32 + 32) + 64 KiB, 1792 cycles, and half of it for D = 64;
- L2: keys and values once for every tile of rows, 64 KiB for 128 x 128 and D = 128. At 640 TFLOP/s,
  which kernels were measured at that share no copies between blocks, that is 5 TB/s for all
  multiprocessors: near what L2 gives, so it is no term of the estimate;
- memory: query, keys, values and result once, ``8 B H S D`` bytes.

For B = 2, H = 16, S = 8192, D = 128 in float16 on an H200 that is 1.10e12 operations, 2.15e9
exponentials and 0.27 GB: 1.11 ms of products, 0.56 ms of exponentials, 0.06 ms of memory. The
floor is 1.11 ms, 989 TFLOP/s, if everything overlaps, and 1.67 ms, 660 TFLOP/s, if exponentials
overlap with nothing. For D = 64 both take 0.56 ms, and the floor without overlap is 1.11 ms,
494 TFLOP/s. Instructions of single warps reach 0.63 of the rate: 1.77 ms for D = 128 alone, 620
TFLOP/s, and 2.3 ms, 470 TFLOP/s, with exponentials that do not overlap. Kernels of this form
were measured at up to 740 TFLOP/s, those of single warps at 350 to 400: Shah et al.,
"FlashAttention-3" (2024).

A thread keeps ``keys / 2`` scores, as many weights of half the size, and ``width / 2`` results.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.cuda.attention.attention_decision import EXPONENTIALS, best_seconds
from tvm_ext.tir_schedules.cuda.matmul.matmul_decision import BANKS_BYTES
from tvm_ext.tir_schedules.cuda.warpgroup.tma import (
    SWIZZLED_ROW_BYTES,
    OperandTensor,
    TensorMapDimension,
)
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_instructions import (
    BASE_ALIGNMENT,
    DEPTH,
    ROWS,
    WARPGROUP,
)
from tvm_ext.tir_schedules.operators.attention_problem import AttentionProblem, NamedTensor
from tvm_ext.tir_schedules.template import Decisions, pick_each

# Query, keys and values as tensors of which TMA copies bring boxes to shared memory.


BOX_ELEMENTS = SWIZZLED_ROW_BYTES // 2
"""Elements of 16 bits of a position that a box has."""


@dataclass(frozen=True)
class HeadBoxes:
    """The boxes of a tensor: ``BOX_ELEMENTS`` elements of some positions of one head.

    Attributes
    ----------
    operand : OperandTensor
        Elements are its steps, positions its rows, heads and sequences its batch.
    letters : str
        Which of "b" and "h" the batch's dimensions are, slowest first.
    """

    operand: OperandTensor
    letters: str

    @staticmethod
    def of(tensor: NamedTensor) -> "HeadBoxes":
        """The boxes of a tensor whose elements of a head are neighbours."""

        def dimension(letter: str) -> TensorMapDimension:
            behind = tensor.shape[tensor.axes.index(letter) + 1 :]
            return TensorMapDimension(tensor.size(letter), math.prod(behind))

        letters = "".join(letter for letter in "bh" if tensor.size(letter) > 1)
        batch = tuple(dimension(letter) for letter in letters)
        operand = OperandTensor(tensor.buffer, dimension("s"), dimension("d"), batch)
        return HeadBoxes(operand, letters)

    @property
    def count(self) -> int:
        """Boxes side by side that hold all elements of a position."""
        return -(-self.operand.steps.extent // BOX_ELEMENTS)

    def encoded(self, tensor_map: tirx.Var, positions: int) -> tirx.Stmt:
        """What the host does before the launch."""
        return self.operand.encoded(tensor_map, (BOX_ELEMENTS, positions))

    def at(self, box: int, position: tvm.ir.Expr, **place: Any) -> list[tvm.ir.Expr]:
        """The first element of a box, fastest dimension first; ``place``: b and h."""
        first = [tirx.const(box * BOX_ELEMENTS, "int32"), position]
        return [*first, *(place[letter] for letter in reversed(self.letters))]


# How attention by warpgroups cuts rows and keys, and what lies where in shared memory.


# Columns of a product come in multiples of this: PTX ISA, "wgmma.mma_async", "Matrix Shape".
_COLUMN_UNIT = 8

_BARRIER_BYTES = 8

# For the addresses of two rows of a mask.
_MASK_REGISTERS = 8


@dataclass(frozen=True)
class WarpgroupAttentionTiles:
    """Tiles of attention by warpgroups.

    Attributes
    ----------
    groups : int
        Warpgroups that multiply, each with 64 rows of the query; one more copies.
    keys : int
        Keys, and values, of a tile.
    stages : int
        Tiles of keys, and as many of values, that are in flight or in use.
    lasting : bool
        Whether a block takes one tile of rows after the other, as many blocks as fit at a time.
    turns : bool
        Whether groups take turns in starting products, so that one computes its weights while
        another one's products are under way.
    section : int
        Heads of keys whose tiles of rows are worked through together, those with most keys first.
    """

    groups: int
    keys: int
    stages: int
    lasting: bool = False
    turns: bool = False
    section: int = 1

    splits = 1
    packed = False

    @property
    def rows(self) -> int:
        """Rows of the query that a block has at a time."""
        return self.groups * ROWS

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return (self.groups + 1) * WARPGROUP


@dataclass(frozen=True)
class WarpgroupAttentionLayout:
    """Sizes and places in shared memory, in bytes; ``BASE_ALIGNMENT`` are for rounding up."""

    problem: AttentionProblem
    tiles: WarpgroupAttentionTiles

    @property
    def depth(self) -> int:
        """Elements of a query and of a key that are multiplied: those beyond the last are zero."""
        return -(-self.problem.depth // DEPTH) * DEPTH

    @property
    def width(self) -> int:
        """Elements of a value."""
        return -(-self.problem.width // _COLUMN_UNIT) * _COLUMN_UNIT

    @property
    def query_bytes(self) -> int:
        """Of all boxes of the query's tile."""
        return self._boxes(self.problem.depth) * self.query_box_bytes

    @property
    def query_box_bytes(self) -> int:
        """Of one box of the query."""
        return self.tiles.rows * SWIZZLED_ROW_BYTES

    @property
    def box_bytes(self) -> int:
        """Of one box of keys or values."""
        return self.tiles.keys * SWIZZLED_ROW_BYTES

    @property
    def key_bytes(self) -> int:
        """Of a tile of keys."""
        return self._boxes(self.problem.depth) * self.box_bytes

    @property
    def value_bytes(self) -> int:
        """Of a tile of values."""
        return self._boxes(self.problem.width) * self.box_bytes

    @property
    def keys_start(self) -> int:
        """Where the tiles of keys begin."""
        return self.query_bytes

    @property
    def values_start(self) -> int:
        """Where the tiles of values begin."""
        return self.keys_start + self.tiles.stages * self.key_bytes

    @property
    def barriers_start(self) -> int:
        """Where the barriers begin: of the query, of the keys' stages, of the values' stages."""
        return self.values_start + self.tiles.stages * self.value_bytes

    @property
    def shared_bytes(self) -> int:
        """Of a block."""
        barriers = 2 * (1 + 2 * self.tiles.stages)
        return self.barriers_start + barriers * _BARRIER_BYTES + BASE_ALIGNMENT

    @property
    def held_registers(self) -> int:
        """Registers of a thread for scores, weights, results and what is loaded of masks.

        Of a mask all elements for both rows of a thread are loaded ahead, or as many addresses are
        there; of several masks one after the other. Each has places of its own to begin at.
        """
        scores, masks = self.tiles.keys // 2, len(self.problem.masks)
        loaded = scores + _MASK_REGISTERS * masks if masks else 0
        return scores + scores // 2 + self.width // 2 + loaded

    def _boxes(self, elements: int) -> int:
        return -(-elements // BOX_ELEMENTS)


def row_tiles(problem: AttentionProblem, tiles: WarpgroupAttentionTiles) -> int:
    """Tiles of rows of one head."""
    return -(-problem.queries // tiles.rows)


def in_pairs(problem: AttentionProblem, tiles: WarpgroupAttentionTiles) -> bool:
    """Whether blocks that last take tiles of rows two by two: see ``AttentionTileScheduler``."""
    return problem.compute.causal is not None and row_tiles(problem, tiles) % 2 == 0


def work_units(problem: AttentionProblem, tiles: WarpgroupAttentionTiles) -> int:
    """Tiles of rows, or pairs of them, that blocks take at a time."""
    count = row_tiles(problem, tiles) * problem.heads * problem.batch
    return count // 2 if tiles.lasting and in_pairs(problem, tiles) else count


REGISTERS = {2: (40, 232), 3: (32, 160)}
"""By multiplying groups: registers of a thread that copies and of one that multiplies.

Multiples of 8, and for all warpgroups no more than the 512 that a multiprocessor has for each of
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
    problem: AttentionProblem, machine: CudaDescription, decisions: Decisions
) -> WarpgroupAttentionTiles:
    """The tiles. Raises NotApplicable where instructions of single warps are not slower.

    Decisions: ``groups``, ``keys``, ``stages``, ``lasting``, ``turns``.
    """
    if problem.width > _MAX_WIDTH:
        raise NotApplicable(f"values have {problem.width} elements, more than {_MAX_WIDTH}")
    fitting = list(_fitting(problem, machine))
    if not fitting:
        raise NotApplicable("no tile fits into the registers and the shared memory of a block")

    def time(tiles: WarpgroupAttentionTiles) -> tuple[float, ...]:
        return (
            _seconds(WarpgroupAttentionLayout(problem, tiles), machine),
            -tiles.stages,
            -tiles.keys,
        )

    if min(map(time, fitting))[0] >= best_seconds(problem, machine):
        raise NotApplicable("instructions of single warps are as fast for so few rows or keys")
    names = {name: name for name in ("groups", "keys", "stages")}
    chosen = pick_each(fitting, names, time, decisions)
    layout = WarpgroupAttentionLayout(problem, chosen)
    faster = _cycles(layout, machine, True) <= _cycles(layout, machine, False)
    lasting = decisions.pick("lasting", (0, 1), int(faster))
    turns = decisions.pick("turns", (0, 1), int(problem.width <= _MAX_WIDTH // 2))
    chosen = replace(chosen, lasting=bool(lasting), turns=bool(turns))
    even = problem.compute.causal is None or (lasting and in_pairs(problem, chosen))
    return chosen if even else replace(chosen, section=_section(problem, machine))


def _fitting(
    problem: AttentionProblem, machine: CudaDescription
) -> Iterator[WarpgroupAttentionTiles]:
    for groups, (_, registers) in REGISTERS.items():
        for keys in _KEYS:
            if keys > _KEYS[0] and keys >= 2 * problem.keys:
                continue
            for stages in _STAGES:
                tiles = WarpgroupAttentionTiles(groups, keys, stages)
                layout = WarpgroupAttentionLayout(problem, tiles)
                held = layout.held_registers + _OTHER_REGISTERS
                shared = layout.shared_bytes <= machine.dynamic_shared_memory_bytes
                if held <= registers and shared:
                    yield tiles


def _section(problem: AttentionProblem, machine: CudaDescription) -> int:
    """Heads of keys whose keys and values half of L2 holds."""
    size = problem.query.element_bytes
    one = problem.keys * (problem.depth + problem.width) * size
    return max(1, min(machine.l2_bytes // 2 // one, problem.batch * problem.key.size("h")))


def _seconds(layout: WarpgroupAttentionLayout, machine: CudaDescription) -> float:
    """Estimated time."""
    times = [_cycles(layout, machine, lasting) for lasting in (False, True)]
    return min(times) / (machine.clock_ghz * 1e9)


def _cycles(layout: WarpgroupAttentionLayout, machine: CudaDescription, lasting: bool) -> float:
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


def _steps(problem: AttentionProblem, tiles: WarpgroupAttentionTiles, tile: int) -> int:
    """Tiles of keys that a tile of rows looks at."""
    seen, causal = problem.keys, problem.compute.causal
    if causal is not None:
        last = min((tile + 1) * tiles.rows, problem.queries)
        seen = min(seen, max(last + causal, 1))
    return math.ceil(seen / tiles.keys)


def _step_cycles(layout: WarpgroupAttentionLayout, machine: CudaDescription) -> float:
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

"""How attention kernels lay out a tile, and the default heuristic for its sizes."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.matrix_instructions import THREAD_INSTRUCTIONS, WARP_INSTRUCTIONS
from tvm_ext.tir_schedules.cuda.matmul.matmul_decision import (
    BANKS_BYTES,
    MAX_REGISTERS,
    OTHER_REGISTERS,
    ROW_PADDING_BYTES,
)
from tvm_ext.tir_schedules.operators.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.template import Decisions, pick_each

# How the two kinds of attention kernels lay out a tile, and what that takes.
#
# On tensor cores a warp has rows by the 16, as matrix instructions do. On CUDA cores, for
# float32, it has rows by the 4: eight lanes share a row, each with every eighth key of a tile.


WARP = 32

# Registers up to which a thread keeps the query: more would leave none for loads ahead.
_KEPT_QUERY_REGISTERS = 190


@dataclass(frozen=True)
class KernelKind:
    """What the instructions of a kernel ask of a tile.

    Attributes
    ----------
    rows : int
        Rows of a warp come in multiples of this.
    depth, width : int
        Elements of a query, and of a value, are filled up to multiples of these.
    lanes : int
        Lanes that share a row.
    row_tiles, keys : tuple[int, ...]
        What a kernel may choose: multiples of ``rows`` for a warp, and keys of a tile.
    """

    rows: int
    depth: int
    width: int
    lanes: int
    row_tiles: tuple[int, ...]
    keys: tuple[int, ...]
    on_tensor_cores: bool


TENSOR_CORES = KernelKind(16, 16, 16, 4, (1, 2), (16, 32, 64, 128), True)
CUDA_CORES = KernelKind(4, 8, 32, 8, (1, 2, 4, 8), (8, 16, 32, 64), False)


@dataclass(frozen=True)
class AttentionTiles:
    """Tiles of an attention kernel.

    Attributes
    ----------
    kind : KernelKind
        What computes them.
    warps : int
        Warps of a block, each with rows of its own.
    row_tiles : int
        Multiples of ``kind.rows`` that a warp has.
    keys : int
        Keys, and values, that are in shared memory at a time, for each stage.
    stages : int
        Tiles of keys and values that are in flight or in use.
    splits : int
        Parts into which the keys are cut; a second kernel combines their results.
    packed : bool
        Whether rows of all heads that share keys are in one tile.
    """

    kind: KernelKind
    warps: int
    row_tiles: int
    keys: int
    stages: int
    splits: int = 1
    packed: bool = False

    @property
    def warp_rows(self) -> int:
        """Rows of the query that a warp has."""
        return self.row_tiles * self.kind.rows

    @property
    def rows(self) -> int:
        """Rows of the query that a block has."""
        return self.warps * self.warp_rows

    @property
    def thread_rows(self) -> int:
        """Rows of which a thread has a part."""
        return self.warp_rows * self.kind.lanes // WARP

    def with_splits(self, splits: int) -> "AttentionTiles":
        """The same with the keys cut into so many parts."""
        return replace(self, splits=splits)


@dataclass(frozen=True)
class TileLayout:
    """The arrays of a kernel: sizes with what fills them up, and places in shared memory.

    Counted in elements. Rows begin an odd multiple of 16 bytes apart: those that eight lanes name
    then lie in different banks.
    """

    problem: AttentionProblem
    tiles: AttentionTiles

    @property
    def depth(self) -> int:
        """Elements of a query and of a key."""
        return _rounded(self.problem.depth, self.tiles.kind.depth)

    @property
    def width(self) -> int:
        """Elements of a value."""
        return _rounded(self.problem.width, self.tiles.kind.width)

    @property
    def _padding(self) -> int:
        return ROW_PADDING_BYTES // self.problem.query.element_bytes

    @property
    def key_stride(self) -> int:
        """Between rows of queries, and of keys."""
        return self.depth + self._padding

    @property
    def value_stride(self) -> int:
        """Between rows of values."""
        return self.width + self._padding

    @property
    def weight_stride(self) -> int:
        """Between rows of weights, which only kernels on CUDA cores have in shared memory."""
        return self.tiles.keys + self._padding

    @property
    def weights_start(self) -> int:
        """Where the weights begin: behind the queries."""
        return self.tiles.rows * self.key_stride

    @property
    def stages_start(self) -> int:
        """Where the stages begin."""
        weights = 0 if self.tiles.kind.on_tensor_cores else self.tiles.rows * self.weight_stride
        return self.weights_start + weights

    @property
    def stage_size(self) -> int:
        """Of one stage: keys, then values."""
        return self.tiles.keys * (self.key_stride + self.value_stride)

    @property
    def shared_elements(self) -> int:
        """Of all shared memory."""
        return self.stages_start + self.tiles.stages * self.stage_size

    @property
    def shared_bytes(self) -> int:
        """The same in bytes."""
        return self.shared_elements * self.problem.query.element_bytes

    @property
    def keeps_query(self) -> bool:
        """Whether the query's fragments stay in registers."""
        if not self.tiles.kind.on_tensor_cores:
            return False
        return self._registers(self.depth // self.tiles.kind.depth) <= _KEPT_QUERY_REGISTERS

    @property
    def registers(self) -> int:
        """Registers of a thread, estimated: results, scores, fragments and the rest."""
        return self._registers(self.depth // self.tiles.kind.depth if self.keeps_query else 1)

    def _registers(self, query_steps: int) -> int:
        tiles, rows = self.tiles, self.tiles.thread_rows
        held = rows * (self.width + tiles.keys) // tiles.kind.lanes + OTHER_REGISTERS
        for mask in self.problem.masks:
            held += tiles.keys // tiles.kind.lanes * mask.element_bytes // 4
        if not tiles.kind.on_tensor_cores:
            # Four neighbours of every operand at a time.
            return held + 4 * (rows + max(tiles.keys // tiles.kind.lanes, self.width // WARP))
        return held + tiles.row_tiles * 4 * (query_steps + 1)


def _rounded(extent: int, unit: int) -> int:
    return -(-extent // unit) * unit


_KINDS = {"float16": TENSOR_CORES, "bfloat16": TENSOR_CORES, "float32": CUDA_CORES}

_WARPS = (1, 2, 4, 8)
_STAGES = (2, 3)

# Tiles of keys that a part of them has at least: fewer are not worth a second step.
_LEAST_TILES = 2

# Cycles, rounded, that a warp takes for a matrix instruction, a load of fragments, a score and the
# copy of 16 bytes; and of a step for barriers, shuffles and whatever waits for the one before.
_MATMUL_CYCLES = 8
_LOAD_CYCLES = 16
_SCORE_CYCLES = 10
_COPY_CYCLES = 8
_STEP_LATENCY = 600

# Cycles until what each of eight warps loads of one part has come from memory.
_COMBINING_LATENCY = 600

_MOST_SPLITS = 128

EXPONENTIALS = 16
"""Exponentials that a multiprocessor starts in a cycle: CUDA C++ Programming Guide, "Throughput of
native arithmetic instructions".
"""

_MOST_BLOCKS = 16
MAX_GRID = 65_535
"""Blocks along y and z of a grid: CUDA C++ Programming Guide, "Compute capabilities"."""


def decide_attention(
    problem: AttentionProblem, machine: CudaDescription, decisions: Decisions
) -> AttentionTiles:
    """The tiles. Decisions: ``warps``, ``row_tiles``, ``keys``, ``stages``, ``splits``."""
    dtype = problem.query.dtype
    if dtype not in _KINDS:
        raise NotApplicable(f"there is no kernel for {dtype}")
    if problem.compute.cap is not None:
        raise NotApplicable("there is no kernel for scores that are capped")
    if problem.sink is not None:
        raise NotApplicable("there is no kernel for a sink of the softmax")
    fitting = list(_fitting(problem, machine, _KINDS[dtype]))
    if not fitting:
        raise NotApplicable("no tile fits into the registers and the shared memory of a block")

    def time(tiles: AttentionTiles) -> tuple[float, ...]:
        return _seconds(TileLayout(problem, tiles), machine)

    names = ("warps", "row_tiles", "keys", "stages", "splits")
    return pick_each(fitting, {name: name for name in names}, time, decisions)


def best_seconds(problem: AttentionProblem, machine: CudaDescription) -> float:
    """Estimated time with the best tiles; infinity where none fits."""
    kind = _KINDS[problem.query.dtype]
    fitting = _fitting(problem, machine, kind)
    times = (_seconds(TileLayout(problem, tiles), machine)[0] for tiles in fitting)
    return min(times, default=math.inf)


def blocks(problem: AttentionProblem, tiles: AttentionTiles) -> tuple[int, int, int]:
    """Tiles of rows, heads and sequences: the grid, not counting parts of the keys."""
    rows = problem.queries * (problem.group if tiles.packed else 1)
    heads = problem.heads // (problem.group if tiles.packed else 1)
    return -(-rows // tiles.rows), heads, problem.batch


def _fitting(
    problem: AttentionProblem, machine: CudaDescription, kind: KernelKind
) -> Iterator[AttentionTiles]:
    """Tiles that are not larger than needed and that a block has room for."""
    for warps, row_tiles, keys, stages in itertools.product(
        _WARPS, kind.row_tiles, kind.keys, _STAGES
    ):
        tiles = AttentionTiles(kind, warps, row_tiles, keys, stages)
        tiles = replace(tiles, packed=problem.group > 1 and problem.queries < tiles.rows)
        rows = problem.queries * (problem.group if tiles.packed else 1)
        too_large = tiles.rows > kind.rows and tiles.rows >= 2 * rows
        too_long = keys > kind.keys[0] and keys >= 2 * problem.keys
        if too_large or too_long or max(blocks(problem, tiles)[1:]) > MAX_GRID:
            continue
        layout = TileLayout(problem, tiles)
        threads = warps * machine.warp_size
        if layout.registers > MAX_REGISTERS:
            continue
        if layout.registers * threads > machine.registers_per_block:
            continue
        if layout.shared_bytes > machine.dynamic_shared_memory_bytes:
            continue
        for splits in _splits(problem, machine, tiles):
            yield tiles.with_splits(splits)


def _splits(
    problem: AttentionProblem, machine: CudaDescription, tiles: AttentionTiles
) -> Iterator[int]:
    """Into how many parts the keys may be cut: one, or what gives each processor some blocks."""
    yield 1
    steps = math.ceil(problem.keys / tiles.keys)
    count = math.prod(blocks(problem, tiles))
    for rounds in (1, 2, 4):
        parts = min(steps // _LEAST_TILES, rounds * machine.sms // count, _MOST_SPLITS)
        if count < machine.sms and parts > 1:
            # No part of the keys is empty.
            yield math.ceil(steps / math.ceil(steps / parts))


def _seconds(layout: TileLayout, machine: CudaDescription) -> tuple[float, ...]:
    """Estimated time, and what breaks a tie.

    For a tile of keys, the blocks that share a multiprocessor take as long as what is busiest:
    products, exponentials, reads of shared memory, or copies from L2 or memory, and a quarter of
    the rest, which overlaps in part only; or as long as one block takes that has it for itself.
    """
    problem, tiles = layout.problem, layout.tiles
    size, cycles = problem.query.element_bytes, machine.clock_ghz * 1e9
    both = layout.depth + layout.width
    count = math.prod(blocks(problem, tiles)) * tiles.splits
    resident = max(1, min(_resident(layout, machine), math.ceil(count / machine.sms)))
    steps = math.ceil(math.ceil(problem.keys / tiles.keys) / tiles.splits)
    if problem.compute.causal is not None and problem.queries > tiles.rows:
        steps = math.ceil((steps + 1) / 2)
    heads = problem.batch * problem.key.size("h")
    loaded = heads * problem.keys * (problem.depth + problem.width) * size
    rate_of_loads = machine.bandwidth(loaded) / machine.sms
    busy = (
        tiles.rows * tiles.keys * both / (_rate(problem.query.dtype, machine) / 2 / machine.sms),
        tiles.rows * tiles.keys / (EXPONENTIALS * cycles),
        _shared_reads(layout) / (BANKS_BYTES * cycles),
        tiles.keys * both * size / rate_of_loads,
    )
    shared = resident * (max(busy) + (sum(busy) - max(busy)) / 4)
    step = max(shared, _alone(layout, machine) / cycles)
    start = resident * tiles.rows * layout.depth * size / rate_of_loads
    groups = math.ceil(count / (machine.sms * resident))
    total = groups * (steps * step + start) + _combining(layout, machine)
    return (total, tiles.stages, -tiles.keys, tiles.warps)


def _rate(dtype: str, machine: CudaDescription) -> float:
    """Operations a second by the instructions of single warps."""
    table = WARP_INSTRUCTIONS if _KINDS[dtype].on_tensor_cores else THREAD_INSTRUCTIONS
    return machine.instruction_flops(table[dtype])


def _alone(layout: TileLayout, machine: CudaDescription) -> float:
    """Cycles of a step of one warp, whose instructions are issued one after the other."""
    tiles, both = layout.tiles, layout.depth + layout.width
    scores = tiles.thread_rows * tiles.keys // tiles.kind.lanes
    size = layout.problem.query.element_bytes
    copies = tiles.keys * both * size // (16 * WARP * tiles.warps)
    cycles = _STEP_LATENCY + _SCORE_CYCLES * scores + _COPY_CYCLES * copies
    if not tiles.kind.on_tensor_cores:
        lanes = machine.fp32_lanes_per_sm // 4
        return cycles + tiles.warp_rows * tiles.keys * both / lanes
    instructions = tiles.row_tiles * tiles.keys * both / 128
    return cycles + _MATMUL_CYCLES * instructions + _LOAD_CYCLES * tiles.keys * both / 256


def _shared_reads(layout: TileLayout) -> float:
    """Bytes that the warps of a block read from shared memory for one tile of keys."""
    problem, tiles = layout.problem, layout.tiles
    both = layout.depth + layout.width
    if tiles.kind.on_tensor_cores:
        query = 0 if layout.keeps_query else tiles.warp_rows * layout.depth
        return tiles.warps * (tiles.keys * both + query) * problem.query.element_bytes
    # For four elements of depth, or four keys, a lane reads 16 bytes of each of its rows and
    # columns; those of the same address count as well, since only eight lanes are served at a time.
    scores = (tiles.thread_rows + tiles.keys // tiles.kind.lanes) * layout.depth / 4
    results = (tiles.thread_rows + layout.width // tiles.kind.lanes) * tiles.keys / 4
    return tiles.warps * WARP * 16 * (scores + results)


def _combining(layout: TileLayout, machine: CudaDescription) -> float:
    problem, splits = layout.problem, layout.tiles.splits
    if splits == 1:
        return 0.0
    rows = problem.batch * problem.heads * problem.queries
    partial = splits * rows * (problem.width + 2) * 4
    waits = _COMBINING_LATENCY * math.ceil(splits / 8) / (machine.clock_ghz * 1e9)
    return machine.kernel_overhead_us * 1e-6 + 2 * partial / machine.bandwidth(partial) + waits


def _resident(layout: TileLayout, machine: CudaDescription) -> int:
    """Blocks that a multiprocessor has at the same time."""
    threads = layout.tiles.warps * machine.warp_size
    by_registers = machine.registers_per_block // (layout.registers * threads)
    by_memory = machine.dynamic_shared_memory_bytes // layout.shared_bytes
    return min(by_registers, by_memory, _MOST_BLOCKS)

"""Which tiles, and which steps of their sums, the blocks of a matmul by warpgroups work on.

Blocks stay on their multiprocessor. In each round every block computes one tile. When the last
round has too few tiles for all blocks, their steps can be shared instead: the steps of those
tiles, one tile after the other, are cut into equal ranges, one for each of ``split_blocks``
blocks (Osama et al., "Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix
Multiplication on the GPU", 2023; rounds of whole tiles before them: section 5). No block waits
for another one: what it adds up goes to memory, and a second kernel adds these in the order of
their steps.

With ``S`` steps of tiles shared by ``G`` blocks, block ``b`` has those from ``b S // G``, and
step ``s`` belongs to block ``((s + 1) G - 1) // S``. A range and a tile that meet are a part;
along all steps either of their numbers grows from part to part, so that their sum is the part's
number.

Blocks of a cluster have the same steps of tiles below each other: so these are cut, and
numbered, as one tile would be.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.cuda.launch import Arrays, bound, repeated
from tvm_ext.tir_schedules.cuda.warpgroup import warpgroup_instructions as hopper
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_decision import WarpgroupGemmTiles
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_epilogue import (
    COLUMNS,
    GROUP_COLUMNS,
    ResultPosition,
    WarpgroupEpilogue,
)
from tvm_ext.tir_schedules.cuda.warpgroup.warpgroup_operands import TmaOperand
from tvm_ext.tir_schedules.statements import sequence


@dataclass(frozen=True)
class WarpgroupGemm:
    """A GEMM to write a kernel for.

    Attributes
    ----------
    operands : (OperandTensor or ImageTensor, OperandTensor)
        A and B.
    batch, m, n, k : int
        Sizes.
    dtype : str
        Of the operands.
    tiles : WarpgroupGemmTiles
        How it is cut.
    blocks : int
        Blocks of threads that fit on the GPU at a time.
    """

    operands: tuple[TmaOperand, TmaOperand]
    batch: int
    m: int
    n: int
    k: int
    dtype: str
    tiles: WarpgroupGemmTiles
    blocks: int

    @property
    def depth(self) -> int:
        """Steps of the pipeline for one tile."""
        return math.ceil(self.k / self.step)

    @property
    def step(self) -> int:
        """How much of K one step of the pipeline takes."""
        return self.tiles.row_bytes * 8 // tvm.DataType(self.dtype).bits


@dataclass(frozen=True)
class StepRange:
    """Some neighbouring steps of a tile, as expressions.

    Attributes
    ----------
    tile : Expr
        Number of the tile.
    first, steps : Expr
        Its steps, counted in those of the pipeline.
    before : Expr
        Steps of the pipeline that the block has done before, int32.
    part : Expr or None
        Number of the part, for a tile whose steps are shared.
    """

    tile: tirx.Expr
    first: tirx.Expr
    steps: tirx.Expr
    before: tirx.Expr
    part: tirx.Expr | None = None


class WarpgroupTileScheduler:
    """How the tiles of ``product`` are spread over blocks; ``dtype``: of indices."""

    def __init__(self, product: WarpgroupGemm, dtype: str) -> None:
        self.product, self.dtype, tiles = product, dtype, product.tiles
        self.down = math.ceil(product.m / tiles.rows)
        self.along = math.ceil(product.n / tiles.columns)
        self.count = product.batch * self.down * self.along
        self.sharing = tiles.split_blocks
        self.shared = self.count % product.blocks if self.sharing else 0
        self.whole = self.count - self.shared
        self.grid = min(self.whole, product.blocks) or self.sharing
        self.cluster = tiles.cluster
        self.ranges, self.stacks = self.sharing // self.cluster, self.shared // self.cluster
        """Ranges of steps, one for each cluster, and tiles below each other that have one."""
        self.parts = (self.ranges + self.stacks - 1) * self.cluster if self.sharing else 0
        """The most parts there can be."""

    def for_each(self, block: tvm.ir.Expr, body: Callable[[StepRange], tirx.Stmt]) -> tirx.Stmt:
        """``body`` for all pieces of a block: whole tiles, then its range of shared ones."""
        loops = []
        if self.whole:
            loops.append(self._whole_tiles(block, body))
        if self.shared:
            loops.append(self._shared_tiles(block, body))
        return sequence(loops)

    def _whole_tiles(self, block: tvm.ir.Expr, body: Callable[[StepRange], tirx.Stmt]) -> tirx.Stmt:
        depth = self.product.depth

        def tile(turn: tvm.ir.Expr) -> tirx.Stmt:
            before = turn.astype("int32") * depth
            return body(StepRange(block + turn * self.grid, self._int(0), self._int(depth), before))

        rest = self._int(self.whole + self.grid - 1) - block
        turns = rest // self._int(self.grid) if self.whole > self.grid else self._int(1)
        return loop(turns, self.dtype, tile)

    def _shared_tiles(
        self, block: tvm.ir.Expr, body: Callable[[StepRange], tirx.Stmt]
    ) -> tirx.Stmt:
        depth = self.product.depth
        begin, end = (tirx.Var(name, self.dtype) for name in ("begin", "end"))
        own, rank = block // self.cluster, block % self.cluster
        borders = [tirx.Bind(begin, self.border(own)), tirx.Bind(end, self.border(own + 1))]

        def piece(turn: tvm.ir.Expr) -> tirx.Stmt:
            stack, first = tirx.Var("stack", self.dtype), tirx.Var("first", self.dtype)
            binds = [
                tirx.Bind(stack, begin // depth + turn),
                tirx.Bind(first, tirx.Max(begin - stack * depth, self._int(0))),
            ]
            steps = tirx.Min(end - stack * depth, self._int(depth)) - first
            whole = self.whole // self.grid * depth
            before = (whole + tirx.Max(stack * depth - begin, self._int(0))).astype("int32")
            tile = self._int(self.whole) + stack * self.cluster + rank
            number = self.part(own, stack, rank)
            return sequence([*binds, body(StepRange(tile, first, steps, before, number))])

        turns = (end - 1) // depth - begin // depth + 1
        if self.grid > self.sharing:
            takes_part = tirx.LT(block, self._int(self.sharing))
            turns = tirx.Select(takes_part, turns, self._int(0))
        return sequence([*borders, loop(turns, self.dtype, piece)])

    def border(self, number: tvm.ir.Expr) -> tvm.ir.Expr:
        """The first step of a range."""
        return number * (self.stacks * self.product.depth) // self.ranges

    def owner(self, step: tvm.ir.Expr) -> tvm.ir.Expr:
        """The range to which a shared step belongs."""
        return ((step + 1) * self.ranges - 1) // (self.stacks * self.product.depth)

    def part(self, number: tvm.ir.Expr, stack: tvm.ir.Expr, rank: tvm.ir.Expr) -> tvm.ir.Expr:
        """The number of the part of a range in one of a ``stack`` of tiles, the ``rank``-th."""
        return (number + stack) * self.cluster + rank

    def place(self, tile: tvm.ir.Expr) -> tuple[Any, Any, Any]:
        """Batch, row and column, counted in tiles, of a tile's number."""
        batch, index = tile // (self.down * self.along), tile % (self.down * self.along)
        rows = self.product.tiles.group
        first = index // (rows * self.along) * rows
        inside = index % (rows * self.along)
        height: Any = self._int(rows)
        if self.down % rows:
            height = tirx.Min(height, self._int(self.down) - first)
        return batch, first + inside % height, inside // height

    def results_of(self, tile: tvm.ir.Expr, thread: tvm.ir.Expr) -> tuple[Any, Any, Any]:
        """Batch, row and column where the results of a tile's multiplying ``thread`` begin."""
        batch, row, column = self.place(tile)
        inside = thread // 32 * 16 + thread % 32 // 4
        rows, columns = self.product.tiles.rows, self.product.tiles.columns
        return batch, row * rows + inside, column * columns + thread % 4 * COLUMNS

    def _int(self, value: int) -> tvm.ir.Expr:
        return tirx.const(value, self.dtype)


def loop(extent: tvm.ir.Expr, dtype: str, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
    """A loop that is not written out, even if it runs once: it scopes its variables."""
    if isinstance(extent, int):
        return repeated(extent, dtype, body, tirx.ForKind.SERIAL)
    var = tirx.Var("turn", dtype)
    return tirx.For(var, tirx.const(0, dtype), extent, tirx.ForKind.SERIAL, body(var))


# Sums of tiles whose steps several blocks share: what a block leaves, and what adds it up.
#
# A block writes all results of a part, as float32 or int32, 8 neighbouring columns of a thread as
# two vectors and neighbouring threads side by side. A second kernel has a thread for each 8
# columns; it adds the parts of their tile in the order of steps and does what follows the
# product.


_VECTOR = 4
"""Neighbouring results of 4 bytes that are stored at once, 16 bytes."""

_HALVES = 2
_PLACES = (_HALVES, COLUMNS // _VECTOR)
"""Halves of a thread's rows, and vectors of its columns."""


class WarpgroupFixup:
    """Writes and adds up the parts of ``work``; their array goes to ``arrays``."""

    def __init__(
        self, work: WarpgroupTileScheduler, epilogue: WarpgroupEpilogue, arrays: Arrays
    ) -> None:
        self.work, self.epilogue, self.arrays = work, epilogue, arrays
        self.dtype = arrays.index_dtype
        self.total = hopper.results_dtype(work.product.dtype)
        tiles = work.product.tiles
        self.groups = tiles.columns // GROUP_COLUMNS
        self.threads = tiles.multiplying * hopper.WARPGROUP
        size = work.parts * tiles.rows * tiles.columns
        self.partial = arrays.allocated("partial", (size,), self.total, "global")

    def stored(self, results: tirx.Buffer, part: tvm.ir.Expr, thread: tvm.ir.Expr) -> tirx.Stmt:
        """Writes ``results`` of a multiplying thread to where they are of ``part``."""
        owners = [(thread, self.threads)]
        held = self.arrays.registers("held", _VECTOR, self.total, owners)
        found = []
        for group, half, vector in itertools.product(*map(range, (self.groups, *_PLACES))):
            start = self._start(part, group, half, vector, thread)
            first = vector * _VECTOR
            for lane in range(_VECTOR):
                place = hopper.position(group, half, first + lane)
                found.append(held.put(self._int(lane), tirx.BufferLoad(results, [place])))

            def put(lane: tvm.ir.Expr, start: tvm.ir.Expr = start) -> tirx.BufferStore:
                return tirx.BufferStore(self.partial, held.at(lane), [start + lane])

            found.append(self._vectors(put))
        return sequence(found)

    def statement(self) -> tirx.Stmt:
        """The kernel that adds up parts and does what follows."""
        transposed = self.work.shared * self.groups * _HALVES * self.work.product.tiles.multiplying
        threads = hopper.WARPGROUP
        return bound(
            "blockIdx.x",
            transposed,
            self.dtype,
            lambda b: bound("threadIdx.x", threads, self.dtype, lambda t: self._added(b, t)),
        )

    def _added(self, block: tvm.ir.Expr, thread: tvm.ir.Expr) -> tirx.Stmt:
        """The sum of 8 columns."""
        multiplying, depth = self.work.product.tiles.multiplying, self.work.product.depth
        names = [tirx.Var(name, self.dtype) for name in ("upper", "group", "tile", "number")]
        half, group, tile, number = names
        rest = block // multiplying
        values = (
            rest % _HALVES,
            rest // _HALVES % self.groups,
            rest // (_HALVES * self.groups),
            block % multiplying * hopper.WARPGROUP + thread,
        )
        owners = [(thread, hopper.WARPGROUP)]
        sums = self.arrays.registers("sums", COLUMNS, self.total, owners)
        stack, rank = tile // self.work.cluster, tile % self.work.cluster
        first, last = (self.work.owner(stack * depth + step) for step in (0, depth - 1))

        def start(column: tvm.ir.Expr) -> tirx.Stmt:
            return sums.put(column, tirx.const(0, self.total))

        def part(turn: tvm.ir.Expr) -> tirx.Stmt:
            place = self.work.part(first + turn, stack, rank)
            return self._part_added(sums, place, group, half, number)

        corner = [tirx.Var(name, self.dtype) for name in ("batch", "row", "column")]
        places = self.work.results_of(tile + self.work.whole, number)
        binds = zip((*names, *corner), (*values, *places), strict=True)
        written = self.epilogue.row(
            ResultPosition(*corner),
            group,
            half,
            lambda _, __, column: sums.at(column),
            self.arrays,
            owners,
        )
        return sequence(
            [
                *[tirx.Bind(var, value) for var, value in binds],
                repeated(COLUMNS, self.dtype, start),
                loop(last - first + 1, self.dtype, part),
                written,
            ]
        )

    def _part_added(
        self,
        sums: Any,
        part: tvm.ir.Expr,
        group: tvm.ir.Expr,
        half: tvm.ir.Expr,
        number: tvm.ir.Expr,
    ) -> tirx.Stmt:
        found = []
        for vector in range(COLUMNS // _VECTOR):
            start = self._start(part, group, half, vector, number)

            def add(
                lane: tvm.ir.Expr, start: tvm.ir.Expr = start, first: int = vector * _VECTOR
            ) -> tirx.Stmt:
                more = tirx.BufferLoad(self.partial, [start + lane])
                return sums.put(first + lane, sums.at(first + lane) + more)

            found.append(self._vectors(add))
        return sequence(found)

    def _int(self, value: int) -> tvm.ir.Expr:
        return tirx.const(value, self.dtype)

    def _vectors(self, body: Any) -> tirx.Stmt:
        return repeated(_VECTOR, self.dtype, body, tirx.ForKind.VECTORIZED)

    def _start(
        self, part: tvm.ir.Expr, group: Any, half: Any, vector: int, thread: tvm.ir.Expr
    ) -> tvm.ir.Expr:
        """Where a vector of a thread's results begins."""
        row = (part * self.groups + group) * _HALVES + half
        return ((row * (COLUMNS // _VECTOR) + vector) * self.threads + thread) * _VECTOR

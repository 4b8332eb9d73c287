"""The mainloop of attention along the keys, whatever computes its products."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention.attention_decision import (
    WARP,
    AttentionTiles,
    TileLayout,
    blocks,
)
from tvm_ext.tir_schedules.cuda.attention.attention_split_kv import PartialResults
from tvm_ext.tir_schedules.cuda.attention.online_softmax import (
    INDEX,
    ZERO,
    RowPlace,
    RowTile,
    ScorePlaces,
    ThreadScores,
    number,
)
from tvm_ext.tir_schedules.cuda.launch import Arrays, Body, bound, guarded, repeated
from tvm_ext.tir_schedules.cuda.warp_instructions import (
    await_copies,
    block_barrier,
    commit_copies,
    copy_asynchronously,
    without_added_barriers,
)
from tvm_ext.tir_schedules.operators.attention_problem import AttentionProblem, NamedTensor
from tvm_ext.tir_schedules.statements import sequence

# The place of a block and its threads: rows of the query, and the keys that they look at.


class AttentionRows(RowTile):
    """A grid of tiles of rows (and parts of the keys), heads and sequences."""

    tiles: AttentionTiles

    def __init__(self, problem: AttentionProblem, tiles: AttentionTiles) -> None:
        super().__init__(problem, tiles)
        self.layout = TileLayout(problem, tiles)
        self.warp: Any
        self.lane: Any

    @property
    def thread(self) -> tvm.ir.Expr:
        """The number of the thread in its block."""
        return self.warp * number(WARP) + self.lane

    def grid(self, body: Body) -> tirx.Stmt:
        """``body`` for every thread of the grid; it is given the lane."""
        x, y, z = blocks(self.problem, self.tiles)

        def threads(warp: tvm.ir.Expr) -> tirx.Stmt:
            self.warp = warp

            def iteration(lane: tvm.ir.Expr) -> tirx.Stmt:
                self.lane = lane
                return body(lane)

            return bound("threadIdx.x", WARP, INDEX, iteration)

        def tile(index: tvm.ir.Expr) -> tirx.Stmt:
            # Of a causal mask the last rows have most to do: they go first.
            splits = number(self.tiles.splits)
            self.tile = number(x - 1) - tirx.floordiv(index, splits)
            self.split = tirx.floormod(index, splits)
            return bound("threadIdx.y", self.tiles.warps, INDEX, threads)

        def head(index: tvm.ir.Expr) -> tirx.Stmt:
            self.head = index
            return bound("blockIdx.x", x * self.tiles.splits, INDEX, tile)

        def sequence_of(index: tvm.ir.Expr) -> tirx.Stmt:
            self.batch = index
            return bound("blockIdx.y", y, INDEX, head)

        return bound("blockIdx.z", z, INDEX, sequence_of)


# What an attention kernel copies to shared memory: rows of the query, keys and values.


_COPY_BYTES = 16
_LEAST_COPY_BYTES = 4
_MOST_UNROLLED = 16


class AttentionCopies(AttentionRows):
    """The copies of a block: all of its threads take part."""

    shared: Any

    def stage(self, tile: tvm.ir.Expr) -> tvm.ir.Expr:
        """Where the stage of a tile of keys begins in shared memory."""
        place = tirx.floormod(tile, number(self.tiles.stages))
        return number(self.layout.stages_start) + place * number(self.layout.stage_size)

    def fill_padding(self) -> list[tirx.Stmt]:
        """Zeros behind queries and keys whose size is no multiple of an instruction's."""
        depth, layout, tiles = self.problem.depth, self.layout, self.tiles
        columns = layout.depth - depth
        if not columns:
            return []
        places = [(0, tiles.rows)]
        for stage in range(tiles.stages):
            places.append((layout.stages_start + stage * layout.stage_size, tiles.keys))
        zero = tirx.const(0.0, self.problem.query.dtype)
        statements = []
        for start, rows in places:

            def iteration(at: tvm.ir.Expr, start: int = start) -> tirx.Stmt:
                row, column = tirx.floordiv(at, number(columns)), tirx.floormod(at, number(columns))
                address = number(start + depth) + row * number(layout.key_stride) + column
                return tirx.BufferStore(self.shared, zero, [address])

            statements.append(self._by_all_threads(rows * columns, iteration))
        return statements

    def copy_rows(self) -> tirx.Stmt:
        """The rows of the query."""

        def address(row: tvm.ir.Expr) -> tvm.ir.Expr:
            place, _ = self.row(row)
            return self.problem.query.address(b=place.batch, h=place.head, s=place.query)

        stride, rows = self.layout.key_stride, self.tiles.rows
        return self._copy(self.problem.query, address, number(0), stride, rows)

    def copy_keys(self, tile: tvm.ir.Expr) -> tirx.Stmt:
        """Keys and values of a tile, to its stage."""
        problem, tiles, layout = self.problem, self.tiles, self.layout
        head = self.head
        if not tiles.packed and problem.group > 1:
            head = tirx.floordiv(self.head, number(problem.group))
        start = self.stage(tile)
        values = start + number(tiles.keys * layout.key_stride)
        statements = []
        for tensor, to, stride in (
            (problem.key, start, layout.key_stride),
            (problem.value, values, layout.value_stride),
        ):

            def address(row: tvm.ir.Expr, tensor: NamedTensor = tensor) -> tvm.ir.Expr:
                at = tile * number(tiles.keys) + row
                if problem.keys % tiles.keys:
                    # What is beyond the last key has weight zero, whatever stands there.
                    at = tirx.min(at, number(problem.keys - 1))
                return tensor.address(b=self.batch, h=head, s=at)

            statements.append(self._copy(tensor, address, to, stride, tiles.keys))
        return sequence(statements)

    def copy_ahead(self, begin: tvm.ir.Expr, end: tvm.ir.Expr) -> list[tirx.Stmt]:
        """The copies that are in flight when the walk along the keys begins, each a group."""
        statements = []
        for ahead in range(self.tiles.stages - 1):
            tile = begin + number(ahead)
            statements += [guarded(tile < end, self.copy_keys(tile)), commit_copies()]
        return statements

    def _copy(
        self, tensor: NamedTensor, address: Any, start: tvm.ir.Expr, stride: int, rows: int
    ) -> tirx.Stmt:
        """Copies rows of a tensor to shared memory, in pieces of up to 16 bytes."""
        extent, size = tensor.size("d"), tensor.element_bytes
        piece = math.gcd(extent, _COPY_BYTES // size)
        pieces = extent // piece

        def iteration(at: tvm.ir.Expr) -> tirx.Stmt:
            row, column = tirx.floordiv(at, number(pieces)), tirx.floormod(at, number(pieces))
            column = column * number(piece)
            to, source = start + row * number(stride) + column, address(row) + column
            if piece * size < _LEAST_COPY_BYTES:
                value = tirx.BufferLoad(tensor.buffer, [source])
                return tirx.BufferStore(self.shared, value, [to])
            return copy_asynchronously((self.shared, to), (tensor.buffer, source), piece * size)

        return self._by_all_threads(rows * pieces, iteration)

    def _by_all_threads(self, count: int, body: Any) -> tirx.Stmt:
        """``body`` for ``count`` numbers, dealt to the threads of the block."""
        threads = self.tiles.warps * WARP

        def iteration(i: tvm.ir.Expr) -> tirx.Stmt:
            at = i * number(threads) + self.thread
            return guarded(at < number(count) if count % threads else None, body(at))

        times = -(-count // threads)
        # Written out, their addresses would all be computed ahead, and take registers.
        kind = tirx.ForKind.UNROLLED if times <= _MOST_UNROLLED else tirx.ForKind.SERIAL
        return repeated(times, INDEX, iteration, kind)


class AttentionWalk(AttentionCopies, ABC):
    """The statements of a kernel, but for its products.

    A thread has, of each of its rows, ``result_columns`` of the results: ``column(j)`` says which.
    """

    result_columns: int
    neighbours: int
    """Results that are neighbours in memory and in registers."""

    def __init__(self, problem: AttentionProblem, tiles: AttentionTiles, arrays: Arrays) -> None:
        super().__init__(problem, tiles)
        self.arrays = arrays
        dtype = problem.query.dtype
        size = self.layout.shared_elements
        self.shared = arrays.allocated("tiles", [size], dtype, "shared.dyn")
        self.parts = PartialResults(problem, tiles.splits, arrays) if tiles.splits > 1 else None
        count = tiles.thread_rows * self.layout.width // tiles.kind.lanes
        self.results = arrays.registers("results", count, "float32", ())
        self.result_count = count

    def write(self) -> list[tirx.Stmt]:
        """The grid, and that which combines parts of the keys."""
        combine = [] if self.parts is None else [self.parts.combine()]
        return [self.grid(self._thread), *combine]

    @abstractmethod
    def score_places(self) -> ScorePlaces:
        """Which scores a thread has."""

    @abstractmethod
    def load_queries(self) -> list[tirx.Stmt]:
        """What comes before the walk."""

    @abstractmethod
    def products(self, stage: Any) -> list[tirx.Stmt]:
        """The scores: products of queries and keys."""

    @abstractmethod
    def weighted_values(self, stage: Any) -> list[tirx.Stmt]:
        """Adds the products of weights and values to the results."""

    @abstractmethod
    def result(self, row: int, j: Any) -> Any:
        """The register of result ``j`` of a row."""

    @abstractmethod
    def result_column(self, j: int) -> Any:
        """The element of a value that result ``j`` is."""

    def _thread(self, _lane: tvm.ir.Expr) -> tirx.Stmt:
        self.scores = ThreadScores(
            self.problem, self.score_places(), self.tiles.packed, self.arrays
        )
        found = [self.row(self.scores.places.row(number(i))) for i in range(self.tiles.thread_rows)]
        self.rows = [place for place, _ in found]
        begin, end = self.key_range()
        clear = repeated(self.result_count, INDEX, lambda at: self.results.put(at, ZERO))
        body = [
            *self.fill_padding(),
            self.copy_rows(),
            *self.copy_ahead(begin, end),
            *self.load_queries(),
            self.scores.start(),
            clear,
            self._walk(begin, end),
            self.scores.finish(),
            *self._write_results([inside for _, inside in found]),
        ]
        return without_added_barriers(sequence(body))

    def _walk(self, begin: tvm.ir.Expr, end: tvm.ir.Expr) -> tirx.Stmt:
        index = tirx.Var("step", INDEX)
        count = tirx.max(end - begin, number(0))
        body = self._step(begin + index, end)
        return tirx.For(index, number(0), count, tirx.ForKind.SERIAL, body)

    def _step(self, tile: tvm.ir.Expr, end: tvm.ir.Expr) -> tirx.Stmt:
        first_key = tile * number(self.tiles.keys)
        later = tile + number(self.tiles.stages - 1)
        hides = self.hides(tile)
        hidden = [] if hides is None else [guarded(hides, self.scores.hide(self.rows, first_key))]
        return sequence(
            [
                await_copies(self.tiles.stages - 2),
                # All copies of this tile are there, and none reads what is copied over next.
                block_barrier(),
                guarded(later < end, self.copy_keys(later)),
                commit_copies(),
                self.scores.clear(),
                *self.products(self.stage(tile)),
                *self.scores.mask(self.rows, first_key),
                *hidden,
                self.scores.update(),
                self._rescale(),
                *self.weighted_values(self.stage(tile)),
            ]
        )

    def _rescale(self) -> tirx.Stmt:
        """Multiplies every result by the factor of its row."""
        statements = []
        for row in range(self.tiles.thread_rows):

            def iteration(j: tvm.ir.Expr, row: int = row) -> tirx.Stmt:
                at = self.result(row, j)
                factor = self.scores.factors.at(number(row))
                return self.results.put(at, self.results.at(at) * factor)

            statements.append(repeated(self.result_columns, INDEX, iteration))
        return sequence(statements)

    def _write_results(self, inside: Sequence[tirx.Expr | None]) -> list[tirx.Stmt]:
        """The results, divided by the sums of the weights; of a part of the keys, as they are."""
        statements = [] if self.parts else [self.scores.divisors(), self._rescale()]
        for row, (place, exists) in enumerate(zip(self.rows, inside, strict=True)):
            stores = self._results_of(row, place) if self.parts is None else self._part(row, place)
            statements.append(guarded(exists, stores))
        return statements

    def _results_of(self, row: int, place: RowPlace) -> tirx.Stmt:
        output = self.problem.output
        start = output.address(b=place.batch, h=place.head, s=place.query)
        return self._stores(row, lambda column: (output.buffer, [start + column]))

    def _part(self, row: int, place: RowPlace) -> tirx.Stmt:
        parts: Any = self.parts
        at = [self.split, parts.row(place)]
        first = tirx.floormod(self.lane, number(self.tiles.kind.lanes)) == number(0)
        facts = [
            tirx.BufferStore(parts.highest, self.scores.highest.at(number(row)), at),
            tirx.BufferStore(parts.totals, self.scores.totals.at(number(row)), at),
        ]
        sums = self._stores(row, lambda column: (parts.sums, [*at, column]))
        return sequence([guarded(first, sequence(facts)), sums])

    def _stores(self, row: int, place: Any) -> tirx.Stmt:
        """Stores the thread's results of a row at ``place(column)``: a buffer and indices."""
        width, vector = self.problem.width, self.neighbours
        while width % vector:
            vector //= 2
        stores = []
        for first in range(0, self.result_columns, vector):
            column = self.result_column(first)

            def iteration(
                i: tvm.ir.Expr, column: tvm.ir.Expr = column, first: int = first
            ) -> tirx.Stmt:
                buffer, indices = place(column + i)
                value = self.results.at(self.result(row, number(first) + i))
                return tirx.BufferStore(buffer, value.astype(str(buffer.dtype)), indices)

            store = repeated(vector, INDEX, iteration, tirx.ForKind.VECTORIZED)
            beyond = width < self.layout.width
            stores.append(guarded(column < number(width) if beyond else None, store))
        return sequence(stores)

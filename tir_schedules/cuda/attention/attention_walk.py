"""The walk of an attention kernel along the keys, whatever computes its products."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention.attention_combining import PartialResults
from tvm_ext.tir_schedules.cuda.attention.attention_copies import AttentionCopies
from tvm_ext.tir_schedules.cuda.attention.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.cuda.attention.attention_scores import (
    INDEX,
    ZERO,
    RowPlace,
    ScorePlaces,
    ThreadScores,
    number,
)
from tvm_ext.tir_schedules.cuda.attention.attention_shape import AttentionTiles
from tvm_ext.tir_schedules.cuda.launch import Arrays, guarded, repeated
from tvm_ext.tir_schedules.cuda.warp_code import (
    await_copies,
    block_barrier,
    commit_copies,
    without_added_barriers,
)
from tvm_ext.tir_schedules.statements import sequence


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

    def _thread(self, _lane: Any) -> tirx.Stmt:
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

    def _walk(self, begin: Any, end: Any) -> tirx.Stmt:
        index = tirx.Var("step", INDEX)
        count = tirx.max(end - begin, number(0))
        body = self._step(begin + index, end)
        return tirx.For(index, number(0), count, tirx.ForKind.SERIAL, body)

    def _step(self, tile: Any, end: Any) -> tirx.Stmt:
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

            def one(j: Any, row: int = row) -> tirx.Stmt:
                at = self.result(row, j)
                factor = self.scores.factors.at(number(row))
                return self.results.put(at, self.results.at(at) * factor)

            statements.append(repeated(self.result_columns, INDEX, one))
        return sequence(statements)

    def _write_results(self, inside: Sequence[Any]) -> list[tirx.Stmt]:
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

            def one(i: Any, column: Any = column, first: int = first) -> tirx.Stmt:
                buffer, indices = place(column + i)
                value = self.results.at(self.result(row, number(first) + i))
                return tirx.BufferStore(buffer, value.astype(str(buffer.dtype)), indices)

            store = repeated(vector, INDEX, one, tirx.ForKind.VECTORIZED)
            beyond = width < self.layout.width
            stores.append(guarded(column < number(width) if beyond else None, store))
        return sequence(stores)

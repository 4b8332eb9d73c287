"""Attention of float32 on CUDA cores: a thread multiplies a tile of rows and columns.

Eight lanes share rows. Each has every eighth key of the scores, and of the results four neighbours
of every 32 elements. Weights go through shared memory to the lanes that need them.
"""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.cuda.attention.attention_scores import INDEX, ScorePlaces, number
from tvm_ext.tir_schedules.cuda.attention.attention_shape import WARP, AttentionTiles
from tvm_ext.tir_schedules.cuda.attention.attention_walk import AttentionWalk
from tvm_ext.tir_schedules.cuda.launch import Arrays, ThreadArray, repeated, warp_barrier
from tvm_ext.tir_schedules.statements import sequence

_VECTOR = 4


class LaneAttention(AttentionWalk):
    """Each warp has 4, 8, 16 or 32 rows."""

    neighbours = _VECTOR

    def __init__(self, problem: AttentionProblem, tiles: AttentionTiles, arrays: Arrays) -> None:
        super().__init__(problem, tiles, arrays)
        self.result_columns = self.layout.width // tiles.kind.lanes
        rows, columns = tiles.thread_rows, tiles.keys // tiles.kind.lanes
        self.left = arrays.registers("left", rows * _VECTOR, "float32", ())
        self.right = arrays.registers("right", columns * _VECTOR, "float32", ())
        self.values = arrays.registers("values", self.result_columns, "float32", ())

    @property
    def _first_column(self) -> Any:
        return tirx.floormod(self.lane, number(self.tiles.kind.lanes))

    def score_places(self) -> ScorePlaces:
        """See ``AttentionWalk.score_places``."""
        lanes = self.tiles.kind.lanes
        columns = self.tiles.keys // lanes

        def column(j: Any) -> Any:
            return j * number(lanes) + self._first_column

        def register(i: Any, j: Any) -> Any:
            return i * number(columns) + j

        return ScorePlaces(self.tiles.thread_rows, columns, self._row, column, register, (1, 2, 4))

    def _row(self, i: Any) -> Any:
        first = self.warp * number(self.tiles.warp_rows)
        group = tirx.floordiv(self.lane, number(self.tiles.kind.lanes))
        return first + i * number(WARP // self.tiles.kind.lanes) + group

    def result(self, row: int, j: Any) -> Any:
        """See ``AttentionWalk.result``."""
        return number(row * self.result_columns) + j

    def result_column(self, j: int) -> Any:
        """See ``AttentionWalk.result_column``."""
        first = number(j // _VECTOR * WARP + j % _VECTOR)
        return first + self._first_column * number(_VECTOR)

    def load_queries(self) -> list[tirx.Stmt]:
        """See ``AttentionWalk.load_queries``: they stay in shared memory."""
        return []

    def products(self, stage: Any) -> list[tirx.Stmt]:
        """See ``AttentionWalk.products``: four elements of queries and keys at a time."""
        places, stride = self.scores.places, self.layout.key_stride

        def step(at: Any) -> tirx.Stmt:
            depth = at * number(_VECTOR)
            rows = [
                self._load(self.left, i, self._row(number(i)) * number(stride) + depth)
                for i in range(places.rows)
            ]
            keys = [
                self._load(self.right, j, stage + places.column(number(j)) * number(stride) + depth)
                for j in range(places.columns)
            ]

            def multiply(i: Any, j: Any, k: Any) -> tirx.Stmt:
                at = places.register(i, j)
                product = self.left.at(i * number(_VECTOR) + k) * self.right.at(
                    j * number(_VECTOR) + k
                )
                return self.scores.scores.put(at, self.scores.scores.at(at) + product)

            return sequence([*rows, *keys, _nested(places.rows, places.columns, _VECTOR, multiply)])

        return [_loop("depth", self.layout.depth // _VECTOR, step)]

    def weighted_values(self, stage: Any) -> list[tirx.Stmt]:
        """See ``AttentionWalk.weighted_values``: four keys at a time."""
        values = stage + number(self.tiles.keys * self.layout.key_stride)
        columns = self.result_columns

        def step(at: Any) -> tirx.Stmt:
            key = at * number(_VECTOR)
            weights = [
                self._load(self.left, i, self._weights_of(number(i)) + key)
                for i in range(self.tiles.thread_rows)
            ]

            def of_key(k: int) -> tirx.Stmt:
                row = values + (key + number(k)) * number(self.layout.value_stride)
                loads = [
                    self._load(self.values, j // _VECTOR, row + self.result_column(j))
                    for j in range(0, columns, _VECTOR)
                ]

                def multiply(i: Any, j: Any, _: Any) -> tirx.Stmt:
                    at = i * number(columns) + j
                    product = self.left.at(i * number(_VECTOR) + number(k)) * self.values.at(j)
                    return self.results.put(at, self.results.at(at) + product)

                return sequence([*loads, _nested(self.tiles.thread_rows, columns, 1, multiply)])

            return sequence([*weights, *(of_key(k) for k in range(_VECTOR))])

        return [
            # The lanes of the warp have read the weights of the tile before.
            warp_barrier(),
            *self._store_weights(),
            warp_barrier(),
            _loop("key", self.tiles.keys // _VECTOR, step),
        ]

    def _weights_of(self, i: Any) -> Any:
        start = number(self.layout.weights_start)
        return start + self._row(i) * number(self.layout.weight_stride)

    def _store_weights(self) -> list[tirx.Stmt]:
        places = self.scores.places

        def one(i: Any, j: Any, _: Any) -> tirx.Stmt:
            value = self.scores.scores.at(places.register(i, j))
            return tirx.BufferStore(self.shared, value, [self._weights_of(i) + places.column(j)])

        return [_nested(places.rows, places.columns, 1, one)]

    def _load(self, array: ThreadArray, place: int, address: Any) -> tirx.Stmt:
        """Four neighbours from shared memory."""

        def one(i: Any) -> tirx.Stmt:
            value = tirx.BufferLoad(self.shared, [address + i])
            return array.put(number(place * _VECTOR) + i, value)

        return repeated(_VECTOR, INDEX, one, tirx.ForKind.VECTORIZED)


def _nested(rows: int, columns: int, steps: int, body: Any) -> tirx.Stmt:
    """``body(row, column, step)``, all written out."""

    def of_row(i: Any, k: Any) -> tirx.Stmt:
        return repeated(columns, INDEX, lambda j: body(i, j, k))

    return repeated(steps, INDEX, lambda k: repeated(rows, INDEX, lambda i: of_row(i, k)))


def _loop(name: str, count: int, body: Any) -> tirx.Stmt:
    """A loop that stays one: written out, its code would not fit the instruction cache."""
    var = tirx.Var(name, INDEX)
    return tirx.For(var, number(0), number(count), tirx.ForKind.SERIAL, body(var))

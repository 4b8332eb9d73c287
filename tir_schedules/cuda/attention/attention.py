"""Attention with online softmax: by warps on tensor cores, by lanes of CUDA cores for float32."""

from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.matrix_instructions import WARP_INSTRUCTIONS
from tvm_ext.tir_schedules.cuda.attention.attention_decision import (
    WARP,
    AttentionTiles,
    decide_attention,
)
from tvm_ext.tir_schedules.cuda.attention.attention_mainloop import AttentionWalk
from tvm_ext.tir_schedules.cuda.attention.online_softmax import (
    INDEX,
    RESULTS,
    ScorePlaces,
    fragment_column,
    fragment_places,
    fragment_register,
    number,
)
from tvm_ext.tir_schedules.cuda.launch import Arrays, ThreadArray, repeated, warp_barrier
from tvm_ext.tir_schedules.cuda.warp_instructions import (
    TILE,
    await_copies,
    block_barrier,
    load_matrices,
    multiply_matrices,
    per_thread,
)
from tvm_ext.tir_schedules.operators.attention_problem import AttentionProblem, read_problem
from tvm_ext.tir_schedules.statements import FlatViews, sequence
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Attention of float32 on CUDA cores: a thread multiplies a tile of rows and columns.
#
# Eight lanes share rows. Each has every eighth key of the scores, and of the results four
# neighbours of every 32 elements. Weights go through shared memory to the lanes that need them.


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
    def _first_column(self) -> tvm.ir.Expr:
        return tirx.floormod(self.lane, number(self.tiles.kind.lanes))

    def score_places(self) -> ScorePlaces:
        """See ``AttentionWalk.score_places``."""
        lanes = self.tiles.kind.lanes
        columns = self.tiles.keys // lanes

        def column(j: tvm.ir.Expr) -> tvm.ir.Expr:
            return j * number(lanes) + self._first_column

        def register(i: tvm.ir.Expr, j: tvm.ir.Expr) -> tvm.ir.Expr:
            return i * number(columns) + j

        return ScorePlaces(self.tiles.thread_rows, columns, self._row, column, register, (1, 2, 4))

    def _row(self, i: tvm.ir.Expr) -> tvm.ir.Expr:
        first = self.warp * number(self.tiles.warp_rows)
        group = tirx.floordiv(self.lane, number(self.tiles.kind.lanes))
        return first + i * number(WARP // self.tiles.kind.lanes) + group

    def result(self, row: int, j: tvm.ir.Expr) -> tvm.ir.Expr:
        """See ``AttentionWalk.result``."""
        return number(row * self.result_columns) + j

    def result_column(self, j: int) -> tvm.ir.Expr:
        """See ``AttentionWalk.result_column``."""
        first = number(j // _VECTOR * WARP + j % _VECTOR)
        return first + self._first_column * number(_VECTOR)

    def load_queries(self) -> list[tirx.Stmt]:
        """See ``AttentionWalk.load_queries``: they stay in shared memory."""
        return []

    def products(self, stage: tvm.ir.Expr) -> list[tirx.Stmt]:
        """See ``AttentionWalk.products``: four elements of queries and keys at a time."""
        places, stride = self.scores.places, self.layout.key_stride

        def step(at: tvm.ir.Expr) -> tirx.Stmt:
            depth = at * number(_VECTOR)
            rows = [
                self._load(self.left, i, self._row(number(i)) * number(stride) + depth)
                for i in range(places.rows)
            ]
            keys = [
                self._load(self.right, j, stage + places.column(number(j)) * number(stride) + depth)
                for j in range(places.columns)
            ]

            def multiply(i: tvm.ir.Expr, j: tvm.ir.Expr, k: tvm.ir.Expr) -> tirx.Stmt:
                at = places.register(i, j)
                product = self.left.at(i * number(_VECTOR) + k) * self.right.at(
                    j * number(_VECTOR) + k
                )
                return self.scores.scores.put(at, self.scores.scores.at(at) + product)

            return sequence([*rows, *keys, _nested(places.rows, places.columns, _VECTOR, multiply)])

        return [_loop("depth", self.layout.depth // _VECTOR, step)]

    def weighted_values(self, stage: tvm.ir.Expr) -> list[tirx.Stmt]:
        """See ``AttentionWalk.weighted_values``: four keys at a time."""
        values = stage + number(self.tiles.keys * self.layout.key_stride)
        columns = self.result_columns

        def step(at: tvm.ir.Expr) -> tirx.Stmt:
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

                def multiply(i: tvm.ir.Expr, j: tvm.ir.Expr, _: tvm.ir.Expr) -> tirx.Stmt:
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

    def _weights_of(self, i: tvm.ir.Expr) -> tvm.ir.Expr:
        start = number(self.layout.weights_start)
        return start + self._row(i) * number(self.layout.weight_stride)

    def _store_weights(self) -> list[tirx.Stmt]:
        places = self.scores.places

        def iteration(i: tvm.ir.Expr, j: tvm.ir.Expr, _: tvm.ir.Expr) -> tirx.Stmt:
            value = self.scores.scores.at(places.register(i, j))
            return tirx.BufferStore(self.shared, value, [self._weights_of(i) + places.column(j)])

        return [_nested(places.rows, places.columns, 1, iteration)]

    def _load(self, array: ThreadArray, place: int, address: tvm.ir.Expr) -> tirx.Stmt:
        """Four neighbours from shared memory."""

        def iteration(i: tvm.ir.Expr) -> tirx.Stmt:
            value = tirx.BufferLoad(self.shared, [address + i])
            return array.put(number(place * _VECTOR) + i, value)

        return repeated(_VECTOR, INDEX, iteration, tirx.ForKind.VECTORIZED)


def _nested(rows: int, columns: int, steps: int, body: Any) -> tirx.Stmt:
    """``body(row, column, step)``, all written out."""

    def of_row(i: tvm.ir.Expr, k: tvm.ir.Expr) -> tirx.Stmt:
        return repeated(columns, INDEX, lambda j: body(i, j, k))

    return repeated(steps, INDEX, lambda k: repeated(rows, INDEX, lambda i: of_row(i, k)))


def _loop(name: str, count: int, body: Any) -> tirx.Stmt:
    """A loop that stays one: written out, its code would not fit the instruction cache."""
    var = tirx.Var(name, INDEX)
    return tirx.For(var, number(0), number(count), tirx.ForKind.SERIAL, body(var))


# Attention on tensor cores: the products of a warp's rows by matrix instructions.


class WarpAttention(AttentionWalk):
    """Each warp has 16 or 32 rows.

    The tile of scores that an instruction leaves in a thread's registers is, as weights, what the
    next instruction takes: PTX ISA, "Matrix fragments for mma.m16n8k16".
    """

    neighbours = 2

    def __init__(self, problem: AttentionProblem, tiles: AttentionTiles, arrays: Arrays) -> None:
        super().__init__(problem, tiles, arrays)
        dtype = problem.query.dtype
        self.instruction = WARP_INSTRUCTIONS[dtype]
        self.per_thread = per_thread(self.instruction)
        self.result_columns = self.layout.width // 4
        kept = self.layout.depth // TILE if self.layout.keeps_query else 1
        size = tiles.row_tiles * self.per_thread
        self.queries = arrays.registers("queries", kept * size, dtype, ())
        self.fragment = arrays.registers("fragment", self.per_thread, dtype, ())
        self.weights = arrays.registers("weights", size, dtype, ())

    def score_places(self) -> ScorePlaces:
        """See ``AttentionWalk.score_places``."""
        first = self.warp * number(self.tiles.warp_rows)
        return fragment_places(self.tiles.thread_rows, self.tiles.keys, first, self.lane)

    def result(self, row: int, j: tvm.ir.Expr) -> tvm.ir.Expr:
        """See ``AttentionWalk.result``."""
        return fragment_register(number(row), j, self.layout.width)

    def result_column(self, j: int) -> tvm.ir.Expr:
        """See ``AttentionWalk.result_column``."""
        return fragment_column(number(j), self.lane)

    def load_queries(self) -> list[tirx.Stmt]:
        """See ``AttentionWalk.load_queries``: fragments that stay, where there is room."""
        if not self.layout.keeps_query:
            return []
        arrived = [await_copies(self.tiles.stages - 2), block_barrier()]
        steps = self.layout.depth // TILE
        return arrived + [self._load_query(step, step) for step in range(steps)]

    def products(self, stage: tvm.ir.Expr) -> list[tirx.Stmt]:
        """See ``AttentionWalk.products``."""
        statements = []
        stride, keys = self.layout.key_stride, self.tiles.keys
        for step in range(self.layout.depth // TILE):
            place = step if self.layout.keeps_query else 0
            if not self.layout.keeps_query:
                statements.append(self._load_query(step, place))
            left = (self.queries.buffer, place * self.tiles.row_tiles)
            for column in range(keys // TILE):
                start = stage + number(column * TILE * stride + step * TILE)
                statements.append(self._load(start, stride, depth_last=True))
                statements += self._multiply(left, (self.scores.scores.buffer, keys), column)
        return statements

    def weighted_values(self, stage: tvm.ir.Expr) -> list[tirx.Stmt]:
        """See ``AttentionWalk.weighted_values``."""
        stride = self.layout.value_stride
        values = stage + number(self.tiles.keys * self.layout.key_stride)
        left, results = (self.weights.buffer, 0), (self.results.buffer, self.layout.width)
        statements = []
        for step in range(self.tiles.keys // TILE):
            statements += self._round_weights(step)
            for column in range(self.layout.width // TILE):
                start = values + number(step * TILE * stride + column * TILE)
                statements.append(self._load(start, stride, depth_last=False))
                statements += self._multiply(left, results, column)
        return statements

    def _load_query(self, step: int, place: int) -> tirx.Stmt:
        """Fragments of the query for one step of 16 elements, for all rows of the warp."""
        stride = self.layout.key_stride
        statements = []
        for tile in range(self.tiles.row_tiles):
            row = self.warp * number(self.tiles.warp_rows) + number(tile * TILE)
            memory = (self.shared, row * number(stride) + number(step * TILE))
            at = number((place * self.tiles.row_tiles + tile) * self.per_thread)
            registers = (self.queries.buffer, at)
            statements.append(
                load_matrices(self.instruction, "a", True, registers, memory, stride, self.lane)
            )
        return sequence(statements)

    def _round_weights(self, step: int) -> list[tirx.Stmt]:
        """The weights of 16 keys as operands: their registers are in the order of the results."""
        dtype = self.problem.query.dtype
        statements = []
        for tile in range(self.tiles.row_tiles):
            first = (tile * self.tiles.keys // 8 + step * 2) * RESULTS

            def iteration(i: tvm.ir.Expr, tile: int = tile, first: int = first) -> tirx.Stmt:
                value = self.scores.scores.at(i + number(first)).astype(dtype)
                return self.weights.put(i + number(tile * self.per_thread), value)

            statements.append(repeated(self.per_thread, INDEX, iteration))
        return statements

    def _load(self, start: tvm.ir.Expr, stride: int, depth_last: bool) -> tirx.Stmt:
        """The fragment of 16 columns of keys or values."""
        registers, memory = (self.fragment.buffer, number(0)), (self.shared, start)
        return load_matrices(
            self.instruction, "b", depth_last, registers, memory, stride, self.lane
        )

    def _multiply(
        self, left: tuple[Any, int], results: tuple[Any, int], column: int
    ) -> list[tirx.Stmt]:
        """All rows of the warp times the 16 columns that are loaded.

        ``left``: fragments, and the number of the first; ``results``: those of so many columns.
        """
        (operand, first), (total, columns) = left, results
        statements = []
        for tile in range(self.tiles.row_tiles):
            a = (operand, number((first + tile) * self.per_thread))
            for half in (0, 1):
                at = (tile * columns // 8 + column * 2 + half) * RESULTS
                b = (self.fragment.buffer, number(half * self.per_thread // 2))
                c = (total, number(at))
                statements.append(multiply_matrices(self.instruction, a, b, c))
        return statements


class Attention:
    """Functions that the pass ``AttentionFusion`` made."""

    name = "attention"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``. Decisions: those of ``decide_attention``."""
        views = FlatViews()
        problem = read_problem(func, views)
        tiles = decide_attention(problem, machine, decisions)
        arrays = Arrays("int32")
        kernel = WarpAttention if tiles.kind.on_tensor_cores else LaneAttention
        code = kernel(problem, tiles, arrays).write()
        return s_tir.Schedule(views.kernel(func, code, arrays.buffers))


def refusal(func: tirx.PrimFunc, machine: CudaDescription) -> str:
    """Why there is no kernel for a fused attention; empty when there is one."""
    try:
        decide_attention(read_problem(func, FlatViews()), machine, DEFAULT_DECISIONS)
    except NotApplicable as refused:
        return refused.reason
    return ""

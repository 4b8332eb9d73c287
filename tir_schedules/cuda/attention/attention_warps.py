"""Attention on tensor cores: the products of a warp's rows by matrix instructions."""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention.attention_fragments import (
    RESULTS,
    fragment_column,
    fragment_places,
    fragment_register,
)
from tvm_ext.tir_schedules.cuda.attention.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.cuda.attention.attention_scores import INDEX, ScorePlaces, number
from tvm_ext.tir_schedules.cuda.attention.attention_shape import AttentionTiles
from tvm_ext.tir_schedules.cuda.attention.attention_walk import AttentionWalk
from tvm_ext.tir_schedules.cuda.launch import Arrays, repeated
from tvm_ext.tir_schedules.cuda.products.matrix_fragments import TILE, MatrixInstruction
from tvm_ext.tir_schedules.cuda.warp_code import (
    await_copies,
    block_barrier,
    load_matrices,
    multiply_matrices,
)
from tvm_ext.tir_schedules.statements import sequence


class WarpAttention(AttentionWalk):
    """Each warp has 16 or 32 rows.

    The tile of scores that an instruction leaves in a thread's registers is, as weights, what the
    next instruction takes: PTX ISA, "Matrix fragments for mma.m16n8k16".
    """

    neighbours = 2

    def __init__(self, problem: AttentionProblem, tiles: AttentionTiles, arrays: Arrays) -> None:
        super().__init__(problem, tiles, arrays)
        dtype = problem.query.dtype
        self.instruction = MatrixInstruction(dtype, "float32")
        self.per_thread = self.instruction.per_thread
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

    def result(self, row: int, j: Any) -> Any:
        """See ``AttentionWalk.result``."""
        return fragment_register(number(row), j, self.layout.width)

    def result_column(self, j: int) -> Any:
        """See ``AttentionWalk.result_column``."""
        return fragment_column(number(j), self.lane)

    def load_queries(self) -> list[tirx.Stmt]:
        """See ``AttentionWalk.load_queries``: fragments that stay, where there is room."""
        if not self.layout.keeps_query:
            return []
        arrived = [await_copies(self.tiles.stages - 2), block_barrier()]
        steps = self.layout.depth // TILE
        return arrived + [self._load_query(step, step) for step in range(steps)]

    def products(self, stage: Any) -> list[tirx.Stmt]:
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

    def weighted_values(self, stage: Any) -> list[tirx.Stmt]:
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

            def one(i: Any, tile: int = tile, first: int = first) -> tirx.Stmt:
                value = self.scores.scores.at(i + number(first)).astype(dtype)
                return self.weights.put(i + number(tile * self.per_thread), value)

            statements.append(repeated(self.per_thread, INDEX, one))
        return statements

    def _load(self, start: Any, stride: int, depth_last: bool) -> tirx.Stmt:
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

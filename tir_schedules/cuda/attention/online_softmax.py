"""Online softmax of attention: the scores that a thread has of a tile, and their masks.

Dao, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning" (2023),
algorithm 1: the results are divided by the sum of the weights once, at the end.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.cuda.launch import Arrays, ThreadArray, repeated
from tvm_ext.tir_schedules.cuda.warp_instructions import from_lane
from tvm_ext.tir_schedules.operators.attention import Mask, masked_score
from tvm_ext.tir_schedules.operators.attention_problem import AttentionProblem, NamedTensor
from tvm_ext.tir_schedules.statements import sequence

LOG2_E = math.log2(math.e)
INDEX = "int32"
LOWEST = tirx.const(float("-inf"), "float32")
ZERO = tirx.const(0.0, "float32")


def number(value: int) -> tvm.ir.Expr:
    """An index."""
    return tirx.const(value, INDEX)


@dataclass(frozen=True)
class ScorePlaces:
    """Which scores of a tile a thread has, and in which registers.

    Attributes
    ----------
    rows, columns : int
        How many it has.
    row, column : Callable
        The row and the column of the tile by number.
    register : Callable
        The place of a score by the numbers of its row and its column.
    lanes : tuple[int, ...]
        Distances of the lanes that have the other columns of the same rows.
    neighbours : int
        How many columns with successive numbers are neighbours, the first a multiple of it.
    """

    rows: int
    columns: int
    row: Callable[[Any], Any]
    column: Callable[[Any], Any]
    register: Callable[[Any, Any], Any]
    lanes: tuple[int, ...]
    neighbours: int = 1

    @property
    def keys(self) -> int:
        """Columns of the tile."""
        return self.columns * 2 ** len(self.lanes)


@dataclass(frozen=True)
class RowPlace:
    """A row of the query's tile: its sequence, head and position, which may be beyond the last."""

    batch: tirx.Expr
    head: tirx.Expr
    query: tirx.Expr


class ThreadScores:
    """Scores of a tile, and of the rows so far the highest score and the sum of the weights."""

    def __init__(
        self, problem: AttentionProblem, places: ScorePlaces, packed: bool, arrays: Arrays
    ) -> None:
        self.problem, self.places, self.packed = problem, places, packed
        rows, count = places.rows, places.rows * places.columns
        self.scores = arrays.registers("scores", count, "float32", ())
        self.highest = arrays.registers("highest", rows, "float32", ())
        self.totals = arrays.registers("totals", rows, "float32", ())
        self.factors = arrays.registers("factors", rows, "float32", ())
        self.given = [
            arrays.registers("given", places.columns, tensor.dtype, ()) for tensor in problem.masks
        ]
        self._shift = arrays.registers("shift", 1, "float32", ())
        # Scores stay as the products are, and exponents take the scale, where there are no masks.
        self.exponent = exponent(problem)

    def start(self) -> tirx.Stmt:
        """No key was seen."""
        return self._each_row(
            lambda i: sequence([self.highest.put(i, LOWEST), self.totals.put(i, ZERO)])
        )

    def clear(self) -> tirx.Stmt:
        """Sets all scores to zero."""
        count = self.places.rows * self.places.columns
        return repeated(count, INDEX, lambda at: self.scores.put(at, ZERO))

    def mask(self, rows: Sequence[RowPlace], first_key: tvm.ir.Expr) -> list[tirx.Stmt]:
        """Applies the masks that are tensors; ``first_key`` is that of the tile."""
        if not self.problem.masks:
            return []
        scale = tirx.const(self.problem.compute.scale, "float32")
        statements = [
            self._each_score(
                lambda i, j: self.scores.put(
                    self._register(i, j), self.scores.at(self._register(i, j)) * scale
                )
            )
        ]
        masks = zip(self.problem.masks, self.problem.compute.masks, self.given, strict=True)
        for tensor, mask, given in masks:
            for i, row in enumerate(rows):
                if i == 0 or self._differs(tensor):
                    statements.append(self._load_mask(tensor, given, row, first_key))

                def iteration(
                    j: tvm.ir.Expr, i: int = i, mask: Mask = mask, given: Any = given
                ) -> tirx.Stmt:
                    at = self._register(i, j)
                    return self.scores.put(at, masked_score(self.scores.at(at), given.at(j), mask))

                statements.append(repeated(self.places.columns, INDEX, iteration))
        return statements

    def _register(self, i: int, j: tvm.ir.Expr) -> tvm.ir.Expr:
        return self.places.register(number(i), j)

    def _differs(self, tensor: NamedTensor) -> bool:
        """Whether a mask is another one for other rows of the thread."""
        return tensor.stride("q") > 0 or (self.packed and tensor.stride("h") > 0)

    def _load_mask(
        self, tensor: NamedTensor, given: ThreadArray, row: RowPlace, first_key: tvm.ir.Expr
    ) -> tirx.Stmt:
        """The elements of a mask for a row; neighbours in one access where they are aligned."""
        keys, places = self.problem.keys, self.places
        vector = places.neighbours if keys % places.neighbours == 0 else 1
        if tensor.element_bytes == 1 or tensor.stride("k") != 1:
            vector = 1

        def group(j: tvm.ir.Expr) -> tirx.Stmt:
            key = first_key + places.column(j * number(vector))
            if keys % places.keys:
                key = tirx.min(key, number(keys - vector))
            place = {"b": row.batch, "h": row.head, "q": row.query, "k": key}
            start = tensor.address(**{letter: place[letter] for letter in tensor.axes})

            def iteration(i: tvm.ir.Expr) -> tirx.Stmt:
                value = tirx.BufferLoad(tensor.buffer, [start + i])
                return given.put(j * number(vector) + i, value)

            return repeated(vector, INDEX, iteration, tirx.ForKind.VECTORIZED)

        return repeated(places.columns // vector, INDEX, group)

    def hide(self, rows: Sequence[RowPlace], first_key: tvm.ir.Expr) -> tirx.Stmt:
        """Takes out keys beyond the last one, and those that a causal mask hides.

        Only tiles that have such keys do this: the condition is the same in all threads.
        """
        problem, places = self.problem, self.places
        causal, beyond = problem.compute.causal, problem.keys % places.keys != 0

        def hidden(i: int, j: tvm.ir.Expr) -> tvm.ir.Expr:
            key = first_key + places.column(j)
            found = key >= number(problem.keys) if beyond else None
            if causal is not None:
                ahead = key > rows[i].query + number(causal)
                found = ahead if found is None else tirx.Or(found, ahead)
            return found

        def iteration(i: int, j: tvm.ir.Expr) -> tirx.Stmt:
            at = places.register(number(i), j)
            value = tirx.Select(hidden(i, j), LOWEST, self.scores.at(at))
            return self.scores.put(at, value)

        return self._each_score(iteration)

    def _each_score(self, body: Callable[[int, Any], tirx.Stmt]) -> tirx.Stmt:
        def of_row(i: int) -> tirx.Stmt:
            return repeated(self.places.columns, INDEX, lambda j: body(i, j))

        return sequence([of_row(i) for i in range(self.places.rows)])

    def update(self) -> tirx.Stmt:
        """Scores become weights; ``factors`` are what earlier weights are multiplied by."""
        return sequence([self._update_row(i) for i in range(self.places.rows)])

    def _update_row(self, i: int) -> tirx.Stmt:
        places, scores, row, zero = self.places, self.scores, number(i), number(0)
        exponent = tirx.const(self.exponent, "float32")

        def higher(j: tvm.ir.Expr) -> tirx.Stmt:
            score = scores.at(places.register(row, j))
            return self.highest.put(row, tirx.max(self.highest.at(row), score))

        def weight(j: tvm.ir.Expr) -> tirx.Stmt:
            at = places.register(row, j)
            return sequence(
                [
                    scores.put(at, self._weight(scores.at(at), self._shift.at(zero), exponent)),
                    self.totals.put(row, self.totals.at(row) + scores.at(at)),
                ]
            )

        seen = self.highest.at(row)
        # Where all keys are hidden so far, the difference of two infinities would be no number.
        shift = tirx.Select(seen == LOWEST, ZERO, seen)
        old = self.factors.at(row)
        return sequence(
            [
                self.factors.put(row, self.highest.at(row)),
                repeated(places.columns, INDEX, higher),
                *(
                    self.highest.put(row, tirx.max(seen, from_lane(seen, distance)))
                    for distance in places.lanes
                ),
                self._shift.put(zero, shift if self.problem.masks else shift * exponent),
                self.factors.put(row, self._weight(old, self._shift.at(zero), exponent)),
                self.totals.put(row, self.totals.at(row) * self.factors.at(row)),
                repeated(places.columns, INDEX, weight),
            ]
        )

    def _weight(self, score: tvm.ir.Expr, shift: tvm.ir.Expr, exponent: tvm.ir.Expr) -> tvm.ir.Expr:
        # A mask may hold the lowest number of float32, which times log2(e) would be an infinity.
        if self.problem.masks:
            return tirx.exp2((score - shift) * exponent)
        return tirx.exp2(score * exponent - shift)

    def finish(self) -> tirx.Stmt:
        """Adds up the sums of the lanes that share rows."""

        def add(i: tvm.ir.Expr) -> tirx.Stmt:
            total = self.totals.at(i)
            return sequence(
                [self.totals.put(i, total + from_lane(total, d)) for d in self.places.lanes]
            )

        return self._each_row(add)

    def divisors(self) -> tirx.Stmt:
        """``factors`` become what the results are multiplied by in the end."""

        def iteration(i: tvm.ir.Expr) -> tirx.Stmt:
            return self.factors.put(i, inverse(self.totals.at(i), self.problem))

        return self._each_row(iteration)

    def _each_row(self, body: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
        return sequence([body(number(i)) for i in range(self.places.rows)])


def exponent(problem: AttentionProblem) -> float:
    """What a difference of scores is multiplied by for ``exp2``."""
    return LOG2_E if problem.masks else problem.compute.scale * LOG2_E


def inverse(total: tvm.ir.Expr, problem: AttentionProblem) -> tvm.ir.Expr:
    """One over the sum of the weights: infinity, and so NaN, or zero, where no key is seen."""
    found = tirx.const(1.0, "float32") / total
    return tirx.Select(total == ZERO, ZERO, found) if problem.compute.zero_rows else found


# Which elements of a tile of results a thread has after matrix instructions.
#
# An instruction of one warp and one of a warpgroup leave them alike: of every 8 columns, a lane
# has two neighbours in row ``lane // 4`` and two in the row 8 further down. PTX ISA, "Matrix
# fragments for mma.m16n8k16" and "Register fragments for wgmma.mma_async.m64nNk16".


RESULTS = 4
"""Results that one thread has of 16 rows and 8 columns."""

# Distances of the lanes that have the other columns of the same rows.
_LANES = (1, 2)
_NEIGHBOURS = 2


def fragment_register(i: tvm.ir.Expr, j: tvm.ir.Expr, columns: int) -> tvm.ir.Expr:
    """The register of the thread's column ``j`` of its row ``i``, of a tile of so many columns."""
    tile, half = tirx.floordiv(i, number(2)), tirx.floormod(i, number(2))
    pair, one = tirx.floordiv(j, number(2)), tirx.floormod(j, number(2))
    eighths = tile * number(columns // 8) + pair
    return eighths * number(RESULTS) + half * number(2) + one


def fragment_column(j: tvm.ir.Expr, lane: tvm.ir.Expr) -> tvm.ir.Expr:
    """The column of the tile that is a thread's column ``j``."""
    pair, one = tirx.floordiv(j, number(2)), tirx.floormod(j, number(2))
    return pair * number(8) + tirx.floormod(lane, number(4)) * number(2) + one


def fragment_places(rows: int, keys: int, first_row: tvm.ir.Expr, lane: tvm.ir.Expr) -> ScorePlaces:
    """The scores of ``rows`` rows of a thread, 8 apart, the first of its warp's ``first_row``."""

    def row(i: tvm.ir.Expr) -> tvm.ir.Expr:
        return first_row + i * number(8) + tirx.floordiv(lane, number(4))

    def column(j: tvm.ir.Expr) -> tvm.ir.Expr:
        return fragment_column(j, lane)

    def register(i: tvm.ir.Expr, j: tvm.ir.Expr) -> tvm.ir.Expr:
        return fragment_register(i, j, keys)

    return ScorePlaces(rows, keys // 4, row, column, register, _LANES, _NEIGHBOURS)


# A tile of rows of the query: which rows they are, and the keys that they look at.


class AttentionTileSizes(Protocol):
    """How rows and keys are cut: see ``AttentionTiles``."""

    @property
    def rows(self) -> int:
        """Rows of the query that a block has."""
        ...

    @property
    def keys(self) -> int:
        """Keys of a tile."""
        ...

    @property
    def splits(self) -> int:
        """Parts into which the keys are cut."""
        ...

    @property
    def packed(self) -> bool:
        """Whether rows of all heads that share keys are in one tile."""
        ...


class RowTile:
    """A tile of rows: of a sequence, a head, and where keys are cut a part of them."""

    def __init__(self, problem: AttentionProblem, tiles: AttentionTileSizes) -> None:
        self.problem, self.tiles = problem, tiles
        self.key_tiles = -(-problem.keys // tiles.keys)
        self.batch: Any
        self.head: Any
        self.tile: Any
        self.split: Any

    def row(self, row: tvm.ir.Expr) -> tuple[RowPlace, Any]:
        """Where a row of the tile is, the last one for those beyond, and whether it exists."""
        queries = self.problem.queries
        at = self.tile * number(self.tiles.rows) + row
        count = queries * (self.problem.group if self.tiles.packed else 1)
        inside = at < number(count) if count % self.tiles.rows else None
        at = at if inside is None else tirx.min(at, number(count - 1))
        if not self.tiles.packed:
            return RowPlace(self.batch, self.head, at), inside
        member = tirx.floordiv(at, number(queries))
        head = self.head * number(self.problem.group) + member
        return RowPlace(self.batch, head, tirx.floormod(at, number(queries))), inside

    def key_range(self) -> tuple[Any, Any]:
        """The first tile of keys that the block looks at, and the one after its last."""
        tiles, causal = self.tiles, self.problem.compute.causal
        end: Any = number(self.key_tiles)
        if causal is not None:
            last: Any = number(self.problem.queries - 1)
            if not tiles.packed:
                beyond = (self.tile + number(1)) * number(tiles.rows) - number(1)
                last = tirx.min(beyond, last)
            seen = last + number(causal + tiles.keys)
            end = tirx.min(end, tirx.max(tirx.floordiv(seen, number(tiles.keys)), number(0)))
        if tiles.splits == 1:
            return number(0), end
        part = -(-self.key_tiles // tiles.splits)
        begin = self.split * number(part)
        return begin, tirx.min(end, begin + number(part))

    def hides(self, tile: tvm.ir.Expr) -> Any:
        """Whether a tile has keys that are beyond the last, or ahead of some row; None if none."""
        problem, tiles = self.problem, self.tiles
        found: Any = None
        if problem.keys % tiles.keys:
            found = tile == number(self.key_tiles - 1)
        if (causal := problem.compute.causal) is not None:
            first = number(0) if tiles.packed else self.tile * number(tiles.rows)
            last_key = tile * number(tiles.keys) + number(tiles.keys - 1)
            ahead = last_key > first + number(causal)
            found = ahead if found is None else tirx.Or(found, ahead)
        return found

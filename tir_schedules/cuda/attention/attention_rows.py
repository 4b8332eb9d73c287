"""The place of a block and its threads: rows of the query, and the keys that they look at."""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention.attention_decision import blocks
from tvm_ext.tir_schedules.cuda.attention.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.cuda.attention.attention_scores import INDEX, RowPlace, number
from tvm_ext.tir_schedules.cuda.attention.attention_shape import WARP, AttentionTiles, TileLayout
from tvm_ext.tir_schedules.cuda.launch import Body, bound


class AttentionRows:
    """A grid of tiles of rows (and parts of the keys), heads and sequences."""

    def __init__(self, problem: AttentionProblem, tiles: AttentionTiles) -> None:
        self.problem, self.tiles = problem, tiles
        self.layout = TileLayout(problem, tiles)
        self.key_tiles = -(-problem.keys // tiles.keys)
        self.batch: Any
        self.head: Any
        self.tile: Any
        self.split: Any
        self.warp: Any
        self.lane: Any

    @property
    def thread(self) -> Any:
        """The number of the thread in its block."""
        return self.warp * number(WARP) + self.lane

    def grid(self, body: Body) -> tirx.Stmt:
        """``body`` for every thread of the grid; it is given the lane."""
        x, y, z = blocks(self.problem, self.tiles)

        def threads(warp: Any) -> tirx.Stmt:
            self.warp = warp

            def one(lane: Any) -> tirx.Stmt:
                self.lane = lane
                return body(lane)

            return bound("threadIdx.x", WARP, INDEX, one)

        def tile(index: Any) -> tirx.Stmt:
            # Of a causal mask the last rows have most to do: they go first.
            splits = number(self.tiles.splits)
            self.tile = number(x - 1) - tirx.floordiv(index, splits)
            self.split = tirx.floormod(index, splits)
            return bound("threadIdx.y", self.tiles.warps, INDEX, threads)

        def head(index: Any) -> tirx.Stmt:
            self.head = index
            return bound("blockIdx.x", x * self.tiles.splits, INDEX, tile)

        def sequence_of(index: Any) -> tirx.Stmt:
            self.batch = index
            return bound("blockIdx.y", y, INDEX, head)

        return bound("blockIdx.z", z, INDEX, sequence_of)

    def row(self, row: Any) -> tuple[RowPlace, Any]:
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

    def hides(self, tile: Any) -> Any:
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

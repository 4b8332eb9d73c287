"""The place of a block and its threads: rows of the query, and the keys that they look at."""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention.attention_decision import blocks
from tvm_ext.tir_schedules.cuda.attention.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.cuda.attention.attention_row_tile import RowTile
from tvm_ext.tir_schedules.cuda.attention.attention_scores import INDEX, number
from tvm_ext.tir_schedules.cuda.attention.attention_shape import WARP, AttentionTiles, TileLayout
from tvm_ext.tir_schedules.cuda.launch import Body, bound


class AttentionRows(RowTile):
    """A grid of tiles of rows (and parts of the keys), heads and sequences."""

    tiles: AttentionTiles

    def __init__(self, problem: AttentionProblem, tiles: AttentionTiles) -> None:
        super().__init__(problem, tiles)
        self.layout = TileLayout(problem, tiles)
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

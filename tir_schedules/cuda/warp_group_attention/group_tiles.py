"""Which tiles of rows a block takes, in which order."""

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.cuda.attention.attention_row_tile import RowTile
from tvm_ext.tir_schedules.cuda.attention.attention_scores import INDEX, number
from tvm_ext.tir_schedules.cuda.launch import repeated
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_shape import GroupAttentionTiles
from tvm_ext.tir_schedules.statements import sequence


class GroupTiles(RowTile):
    """The tiles of a block, as statements that bind where each of them is.

    Tiles of a section of heads that share keys are neighbours. In it those with the last rows go
    first: of a causal mask they have most to do.

    Attributes
    ----------
    key_head : Expr
        The head of keys and values of the present tile.
    steps : Expr
        How many tiles of keys its rows look at, at least one.
    """

    tiles: GroupAttentionTiles

    def __init__(self, problem: AttentionProblem, tiles: GroupAttentionTiles, sms: int) -> None:
        super().__init__(problem, tiles)
        self.down = -(-problem.queries // tiles.rows)
        self.key_heads = problem.key.size("h")
        self.sharing = problem.heads // self.key_heads
        self.count = self.down * problem.heads * problem.batch
        self.grid = min(self.count, sms) if tiles.lasting else self.count
        self.key_head: Any
        self.steps: Any

    def over_tiles(self, block: Any, tile: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
        """``tile`` for each tile of a block, given how many came before."""

        def one(turn: Any) -> tirx.Stmt:
            binds = self._placed(block + turn * number(self.grid))
            return sequence([*binds, tile(turn)])

        if self.count == self.grid:
            return repeated(1, INDEX, one)
        rest = number(self.count + self.grid - 1) - block
        turns = tirx.floordiv(rest, number(self.grid))
        var = tirx.Var("turn", INDEX)
        return tirx.For(var, number(0), turns, tirx.ForKind.SERIAL, one(var))

    def _placed(self, index: Any) -> list[tirx.Stmt]:
        """Binds the place of the tile with this number."""
        pairs = self.problem.batch * self.key_heads
        section = min(self.tiles.section, pairs)
        size = number(section * self.sharing * self.down)
        first = tirx.floordiv(index, size) * number(section)
        inside = tirx.floormod(index, size)
        height: Any = number(section)
        if pairs % section:
            height = tirx.min(height, number(pairs) - first)
        across = height * number(self.sharing)
        which = tirx.floormod(inside, across)
        pair = first + tirx.floordiv(which, number(self.sharing))
        key_head = tirx.floormod(pair, number(self.key_heads))
        values = {
            "tile": number(self.down - 1) - tirx.floordiv(inside, across),
            "batch": tirx.floordiv(pair, number(self.key_heads)),
            "key_head": key_head,
            "head": key_head * number(self.sharing) + tirx.floormod(which, number(self.sharing)),
        }
        binds = [self._bound(name, value) for name, value in values.items()]
        _, end = self.key_range()
        return [*binds, self._bound("steps", tirx.max(end, number(1)))]

    def _bound(self, name: str, value: Any) -> tirx.Stmt:
        var = tirx.Var(name, INDEX)
        setattr(self, name, var)
        return tirx.Bind(var, value)

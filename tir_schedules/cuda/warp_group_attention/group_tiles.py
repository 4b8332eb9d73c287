"""Which tiles of rows a block takes, in which order."""

from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.cuda.attention.attention_row_tile import RowTile
from tvm_ext.tir_schedules.cuda.attention.attention_scores import INDEX, number
from tvm_ext.tir_schedules.cuda.launch import repeated
from tvm_ext.tir_schedules.cuda.warp_group_attention.group_shape import (
    GroupAttentionTiles,
    in_pairs,
    row_tiles,
    work_units,
)
from tvm_ext.tir_schedules.statements import sequence


class GroupTiles(RowTile):
    """The tiles of a block, as statements that bind where each of them is.

    Tiles of a section of heads that share keys are neighbours. In it those with the last rows go
    first: of a causal mask they have most to do. Where blocks last, each takes such a tile and the
    one as far from the first rows in turn: all pairs look at about as many keys.

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
        self.down = row_tiles(problem, tiles)
        self.pairs = tiles.lasting and in_pairs(problem, tiles)
        self.key_heads = problem.key.size("h")
        self.sharing = problem.heads // self.key_heads
        self.count = work_units(problem, tiles)
        self.grid = min(self.count, sms) if tiles.lasting else self.count
        self.key_head: Any
        self.steps: Any

    def over_tiles(self, block: Any, tile: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
        """``tile`` for each tile of a block, given how many came before."""
        each = 2 if self.pairs else 1

        def one(turn: Any) -> tirx.Stmt:
            unit = block + tirx.floordiv(turn, number(each)) * number(self.grid)
            second = tirx.floormod(turn, number(2)) == number(1) if self.pairs else None
            return sequence([*self._placed(unit, second), tile(turn)])

        if self.count == self.grid:
            return repeated(each, INDEX, one, tirx.ForKind.SERIAL)
        rest = number(self.count + self.grid - 1) - block
        turns = tirx.floordiv(rest, number(self.grid)) * number(each)
        var = tirx.Var("turn", INDEX)
        return tirx.For(var, number(0), turns, tirx.ForKind.SERIAL, one(var))

    def _placed(self, unit: Any, second: Any) -> list[tirx.Stmt]:
        """Binds the place of a tile, or of the first or second one of a pair."""
        heads = self.problem.batch * self.key_heads
        section = min(self.tiles.section, heads)
        units = self.down // 2 if self.pairs else self.down
        size = number(section * self.sharing * units)
        first = tirx.floordiv(unit, size) * number(section)
        inside = tirx.floormod(unit, size)
        height: Any = number(section)
        if heads % section:
            height = tirx.min(height, number(heads) - first)
        across = height * number(self.sharing)
        which = tirx.floormod(inside, across)
        head = first + tirx.floordiv(which, number(self.sharing))
        key_head = tirx.floormod(head, number(self.key_heads))
        place = tirx.floordiv(inside, across)
        last = number(self.down - 1) - place
        values = {
            "tile": last if second is None else tirx.Select(second, place, last),
            "batch": tirx.floordiv(head, number(self.key_heads)),
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

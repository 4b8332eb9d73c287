"""A tile of rows of the query: which rows they are, and the keys that they look at."""

from typing import Any, Protocol

from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.cuda.attention.attention_scores import RowPlace, number


class TileSizes(Protocol):
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

    def __init__(self, problem: AttentionProblem, tiles: TileSizes) -> None:
        self.problem, self.tiles = problem, tiles
        self.key_tiles = -(-problem.keys // tiles.keys)
        self.batch: Any
        self.head: Any
        self.tile: Any
        self.split: Any

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

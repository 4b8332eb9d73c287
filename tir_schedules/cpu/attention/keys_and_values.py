"""Keys copied transposed, in tiles of columns, and values copied next to each other."""

import math
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cpu.attention.attention_tiles import (
    FLOAT,
    AttentionTiles,
    array_of,
    at,
    count_of,
    divided,
    extent_of,
    in_lanes,
    is_none,
    ramp,
    where_any,
    widened,
)
from tvm_ext.tir_schedules.cpu.register_transpose import transposed
from tvm_ext.tir_schedules.operators.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.operators.recurrence import loop, number
from tvm_ext.tir_schedules.statements import sequence


class KeysAndValues:
    """One head of keys and values: its copies, and where their elements are."""

    def __init__(
        self, problem: AttentionProblem, tiles: AttentionTiles, batch: Any, head: Any
    ) -> None:
        self.problem, self.tiles = problem, tiles
        self.batch, self.head = batch, head
        padded_keys = count_of(problem.keys, tiles.columns) * tiles.columns
        self.padded_width = problem.width
        if tiles.packs_values:
            self.padded_width = tiles.lanes * math.ceil(problem.width / tiles.lanes)
        self.keys = array_of(padded_keys * problem.depth, "keys")
        self.values = array_of(problem.keys * self.padded_width, "values")

    def statements(self) -> list[tirx.Stmt]:
        """The copies."""
        copies = [tirx.AllocBuffer(self.keys), self._copied_keys()]
        if self.tiles.packs_values:
            copies += [tirx.AllocBuffer(self.values), self._copied_values()]
        return copies

    def key_place(self, step: Any, first: Any, lane: Any) -> Any:
        """Where an element of a key is in the copy, which has tiles of columns one after the other.

        ``first`` is the first key of a tile, and ``lane`` counts from it.
        """
        return first * number(self.problem.depth) + step * number(self.tiles.columns) + lane

    def _key_place(self, step: Any, key: Any) -> Any:
        """The same for any key."""
        columns = number(self.tiles.columns)
        lane = tirx.FloorMod(key, columns)
        return self.key_place(step, key - lane, lane)

    def value(self, key: Any, column: Any) -> Any:
        """An element of a value."""
        if self.tiles.packs_values:
            return at(self.values, key * number(self.padded_width) + column)
        place = self.problem.value.address(b=self.batch, h=self.head, s=key, d=column)
        return widened(self.problem.value.buffer, place)

    def _copied_keys(self) -> tirx.Stmt:
        """Transposed in registers, in squares; elements that fill none one by one."""
        keys, depth = self.problem.keys, self.problem.depth
        size = math.gcd(self.tiles.lanes, depth)
        if size == 1:
            return loop(keys, lambda key: loop(depth, lambda d: self._copied_key(key, d)))

        def squares(key: Any, is_last: bool = False) -> tirx.Stmt:
            return loop(depth // size, lambda j: self._square(key, j * number(size), size, is_last))

        whole, left = divided(keys, size)
        found = [] if is_none(whole) else [loop(whole, lambda i: squares(i * number(size)))]
        if not is_none(left):
            last = squares(extent_of(whole) * number(size), is_last=True)
            found.append(last if isinstance(left, int) else where_any(left, last))
        return sequence(found)

    def _copied_key(self, key: Any, step: Any) -> tirx.Stmt:
        source = self.problem.key
        place = source.address(b=self.batch, h=self.head, s=key, d=step)
        return tirx.BufferStore(
            self.keys, widened(source.buffer, place), [self._key_place(step, key)]
        )

    def _square(self, key: Any, step: Any, size: int, is_last: bool) -> tirx.Stmt:
        """``size`` elements of as many keys; of the ``is_last``, beyond the last key that again."""
        source, binds = self.problem.key, []

        def name(value: Any) -> Any:
            binds.append(tirx.Bind(tirx.Var("vector", value.ty), value))
            return binds[-1].var

        def loaded(row: int) -> Any:
            place = key + number(row)
            if is_last:
                place = tirx.min(place, extent_of(self.problem.keys) - 1)
            start = source.address(b=self.batch, h=self.head, s=place, d=step)
            return name(widened(source.buffer, ramp(start, size)))

        columns = transposed([loaded(row) for row in range(size)], size, name)
        stores = [
            tirx.BufferStore(
                self.keys, column, [ramp(self._key_place(step + number(i), key), size)]
            )
            for i, column in enumerate(columns)
        ]
        return sequence([*binds, *stores])

    def _copied_values(self) -> tirx.Stmt:
        source = self.problem.value
        zero = tirx.const(0, FLOAT)

        def row(key: Any) -> tirx.Stmt:
            def element(column: Any, held: Any) -> tirx.Stmt:
                return tirx.BufferStore(
                    self.values, held, [key * number(self.padded_width) + column]
                )

            def copied(column: Any) -> tirx.Stmt:
                place = source.address(b=self.batch, h=self.head, s=key, d=column)
                return element(column, widened(source.buffer, place))

            filled = in_lanes(self.problem.width, self.padded_width, lambda n: element(n, zero))
            return sequence([*in_lanes(0, self.problem.width, copied), *filled])

        return loop(self.problem.keys, row)

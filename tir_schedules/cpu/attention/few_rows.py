"""Rows of queries that are too few for a copy of the keys: keys and values are read where they lie.

Heads that share keys and values take them together, a part of these after the other, so that each
is read once: the time is that of the memory. Where heads are too few for the cores, these share the
keys of a head, and what they found is joined at the end (Dao et al., "Flash-Decoding for
long-context inference", 2023).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import element_bytes
from tvm_ext.tir_schedules.cpu.attention.attention_tiles import (
    FLOAT,
    AttentionTiles,
    array_of,
    at,
    divided,
    even_parts,
    extent_of,
    in_lanes,
    is_none,
    power_of_two,
    ramp,
    store_of,
    vector,
    where_any,
    widened,
)
from tvm_ext.tir_schedules.cpu.attention.keys_and_values import KeysAndValues
from tvm_ext.tir_schedules.cpu.attention.row_tiles import RowBlock, RowTile
from tvm_ext.tir_schedules.cpu.prefetch import prefetches_of
from tvm_ext.tir_schedules.cpu.register_blocking import vector_registers
from tvm_ext.tir_schedules.cpu.register_transpose import lane_sums
from tvm_ext.tir_schedules.operators.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.operators.recurrence import loop, number
from tvm_ext.tir_schedules.statements import sequence, stack_array

FEW_ROWS = 4
"""Of fewer rows, a copy of the keys takes longer than it saves."""

# Heads whose sums are in registers together.
_MOST_HEADS = 4
# Bytes of values that pass together, in L1.
_SHARE_OF_L1 = 0.5
# Tasks, for each part of the keys of a head, with which keys are no longer cut.
_TASKS_OF_PART = 8


def few_row_tiles(
    problem: AttentionProblem, machine: CpuDescription, tiles: AttentionTiles
) -> AttentionTiles:
    """The tiles of few rows, of which a tile of many rows has ``tiles``.

    Their rows are heads of one position, and their parts share the keys.
    """
    free, lanes = vector_registers(machine), tiles.lanes
    rows = math.ceil(problem.group / math.ceil(problem.group / _MOST_HEADS))
    # Beside the sums of scores, a vector of each row and one of a key.
    abreast = power_of_two(min((free - 1) // rows - 1, math.gcd(lanes, problem.depth)))
    # Beside those of values, one for a row's weight, and those of a value that several rows take.
    vectors = math.ceil(problem.width / lanes)
    passes = math.ceil(vectors / ((free - 2) // (rows + (rows > 1))))
    columns = lanes * math.ceil(vectors / passes)
    each = element_bytes(problem.value.buffer) * problem.width
    keys = max(lanes, power_of_two(int(_SHARE_OF_L1 * machine.l1d_bytes) // each))
    keys = min(keys, tiles.keys)
    heads = problem.heads // problem.group
    heads *= problem.batch if isinstance(problem.batch, int) else 1
    most = machine.cores if tiles.threads else 1
    if isinstance(problem.keys, int):
        most = min(most, math.ceil(problem.keys / keys))
    parts = even_parts(heads, _MANY, most)
    return replace(
        tiles,
        rows=rows,
        columns=columns,
        keys=keys,
        block=problem.group,
        parts=parts,
        packs_values=False,
        abreast=abreast,
    )


# Keys for which a part with one more of them has no more to do.
_MANY = 1 << 20


class FewRows:
    """All rows of queries: a task has a head of keys and values, or a part of it."""

    def __init__(self, problem: AttentionProblem, tiles: AttentionTiles) -> None:
        self.problem, self.tiles = problem, tiles
        self.shared = problem.heads // problem.group
        self.heads = extent_of(problem.batch * self.shared)
        self.parts: Any = number(tiles.parts)
        self.is_split = tiles.parts > 1
        if self.is_split and not isinstance(problem.batch, int):
            # Of a larger batch, heads are enough.
            tasks = number(_TASKS_OF_PART * tiles.parts)
            most = tirx.truncdiv(tasks, tirx.max(self.heads, number(1)))
            self.parts = tirx.max(tirx.min(self.parts, most), number(1))
        count = self.heads * self.parts * extent_of(problem.queries) * number(problem.group)
        # What tasks have found of their rows: the highest score, the sum of weights and of values.
        self.found = (
            array_of(count, "highest"),
            array_of(count, "totals"),
            array_of(count * number(problem.width), "results"),
        )

    def statement(self) -> tirx.Stmt:
        """All of it."""
        kind = tirx.ForKind.PARALLEL if self.tiles.threads else tirx.ForKind.SERIAL
        tasks = loop(self.heads * self.parts, self._task, kind)
        if not self.is_split:
            return tasks
        found = [tirx.AllocBuffer(array) for array in self.found]
        joined = loop(self.heads, lambda head: self._each_query(head, _HeadBlock.joined))
        return sequence([*found, tasks, joined])

    def _task(self, place: Any) -> tirx.Stmt:
        if not self.is_split:
            return self._each_query(place, _HeadBlock.statement)
        head, part = (tirx.Var(name, "int64") for name in ("head", "part"))
        binds = [
            tirx.Bind(head, tirx.FloorDiv(place, self.parts)),
            tirx.Bind(part, tirx.FloorMod(place, self.parts)),
        ]
        return sequence([*binds, self._each_query(head, _HeadBlock.statement, part)])

    def _each_query(
        self, head: Any, code: Callable[["_HeadBlock"], tirx.Stmt], part: Any = None
    ) -> tirx.Stmt:
        """Code for each position of a head that queries share."""
        batch, own = (tirx.Var(name, "int64") for name in ("batch", "shared"))
        shared = number(self.shared)
        binds = [
            tirx.Bind(batch, tirx.FloorDiv(head, shared)),
            tirx.Bind(own, tirx.FloorMod(head, shared)),
        ]
        held = KeysAndValues(self.problem, self.tiles, batch, own)

        def block(query: Any) -> tirx.Stmt:
            return code(_HeadBlock(self, held, query, head, part))

        return sequence([*binds, loop(extent_of(self.problem.queries), block)])


class _HeadBlock(RowBlock):
    """The heads of queries that share a head of keys, at one position: each is a row."""

    def __init__(
        self, rows: FewRows, held: KeysAndValues, query: Any, shared: Any, part: Any
    ) -> None:
        group = rows.problem.group
        super().__init__(held, rows.tiles, held.head * number(group), query, group)
        self.all_rows, self.shared, self.part = rows, shared, part
        self.is_open = False
        if rows.is_split:
            self.is_online = True
            self.highest, self.totals, self.results = rows.found

    @property
    def tile_type(self) -> type[RowTile]:
        """See ``RowBlock``."""
        return _HeadTile

    def head_and_query(self, row: Any) -> tuple[Any, Any]:
        """See ``RowBlock``."""
        return self.head + row, self.first

    @property
    def counts_sink(self) -> Any:
        """See ``RowBlock``; the first part of the keys counts it."""
        return tirx.EQ(self.part, number(0)) if self.all_rows.is_split else super().counts_sink

    def slot(self, row: Any) -> Any:
        """See ``RowBlock``; a part of the keys has slots of its own."""
        return self._slot(row, self.part)

    def _slot(self, row: Any, part: Any) -> Any:
        if not self.all_rows.is_split:
            return row
        queries = extent_of(self.problem.queries)
        task = self.shared * self.all_rows.parts + part
        return (task * queries + self.first) * number(self.count) + row

    def statement(self) -> tirx.Stmt:
        """See ``RowBlock``; nothing is divided yet where this is a part of the keys."""
        if not self.all_rows.is_split:
            return super().statement()
        return sequence([self._each_tile(self._started), *self._keys()])

    def _keys(self) -> list[tirx.Stmt]:
        if not self.all_rows.is_split:
            return super()._keys()
        size, parts = self.tiles.keys, self.all_rows.parts
        whole, left = divided(self.problem.keys, size)
        whole = extent_of(whole)
        each = tirx.truncdiv(whole + parts - number(1), parts)
        first = self.part * each
        count = tirx.min(each, tirx.max(whole - first, number(0)))
        found = [loop(count, lambda i: self._seen((first + i) * number(size), size))]
        if is_none(left):
            return found
        last = self._seen(whole * number(size), left)
        is_last = tirx.EQ(self.part, parts - number(1))
        if not isinstance(left, int):
            is_last = tirx.And(is_last, left > number(0))
        return [*found, tirx.IfThenElse(is_last, last, None)]

    def joined(self) -> tirx.Stmt:
        """The result, of what all parts of the keys have found."""
        self.part = number(0)
        others = loop(
            self.all_rows.parts - number(1),
            lambda i: loop(self.count, lambda row: self._joined(row, i + number(1))),
        )
        return sequence([others, self._each_tile(self._finished)])

    def _joined(self, row: Any, part: Any) -> tirx.Stmt:
        """What a part has found of a row is added to what the first one has."""
        slots = (self.slot(row), self._slot(row, part))
        highest = tirx.Var("highest", FLOAT)
        factors = [tirx.Var("factor", FLOAT) for _ in slots]
        before = [at(self.highest, slot) for slot in slots]
        # Without a key that is seen, the exponents are of minus infinity, not of NaN.
        none, zero = tirx.const(-math.inf, FLOAT), tirx.const(0, FLOAT)
        seen = tirx.Select(tirx.EQ(highest, none), zero, highest)
        binds = [tirx.Bind(highest, tirx.max(*before))]
        binds += [
            tirx.Bind(factor, tirx.exp(one - seen))
            for factor, one in zip(factors, before, strict=True)
        ]

        def total(array: Any, size: int, n: Any) -> tirx.Stmt:
            first, other = (slot * number(size) + n for slot in slots)
            value = at(array, first) * factors[0] + at(array, other) * factors[1]
            return tirx.BufferStore(array, value, [first])

        width = self.problem.width
        return sequence(
            [
                *binds,
                tirx.BufferStore(self.highest, highest, [slots[0]]),
                total(self.totals, 1, number(0)),
                *in_lanes(0, width, lambda n: total(self.results, width, n)),
            ]
        )


class _HeadTile(RowTile):
    """Rows that are heads, with some keys: each row is read as it is, and so is each key."""

    def _widened_queries(self) -> list[tirx.Stmt]:
        return []

    def _sees_part(self) -> bool:
        return False

    def _scores(self) -> tirx.Stmt:
        abreast = self.tiles.abreast
        whole, left = divided(self.keys, abreast)
        found = [loop(whole, lambda i: self._score_square(i * number(abreast)))]
        if not is_none(left):
            last = self._score_square(extent_of(whole) * number(abreast), is_last=True)
            found.append(last if isinstance(left, int) else where_any(left, last))
        for row in range(self.count):
            found += self._masked_row(row)
        return sequence(found)

    def _score_square(self, first: Any, is_last: bool = False) -> tirx.Stmt:
        """Products of all rows with ``abreast`` keys; beyond the last key that again."""
        depth, keys = self.problem.depth, range(self.tiles.abreast)
        width = math.gcd(self.lanes, depth)
        made = [
            [stack_array(number(width), FLOAT, "sums") for _ in keys] for _ in range(self.count)
        ]
        declared = [declaration for row in made for _, declaration in row]
        sums = [[array for array, _ in row] for row in made]
        zero = tirx.const(0, FLOAT)
        zeros = [vector(width, store_of(array, zero)) for row in sums for array in row]

        def step(i: Any) -> tirx.Stmt:
            adds = []
            for number_of_key in keys:
                key = first + number(number_of_key)
                if is_last:
                    key = tirx.min(key, extent_of(self.keys) - number(1))
                for row in range(self.count):
                    product = self._product(row, self.first_key + key, i * number(width))
                    array = sums[row][number_of_key]
                    adds.append(vector(width, store_of(array, _added(array, product))))
            return sequence(adds)

        # While keys are read, the values that come next are on their way.
        ahead = [self._values_ahead(self.first_key + first + number(n)) for n in keys]
        found = [*declared, *zeros, *ahead, loop(depth // width, step)]
        for row in range(self.count):
            found += self._summed(sums[row], width, number(row * self.row_size) + first)
        return sequence(found)

    def _values_ahead(self, key: Any) -> tirx.Stmt:
        held = self.problem.value
        place = held.address(b=self.held.batch, h=self.held.head, s=key, d=number(0))
        return sequence(prefetches_of(held.buffer, [place], self.problem.width))

    def _before_values(self, key: Any, start: int) -> list[tirx.Stmt]:
        if start:
            return []
        held = self.problem.key
        place = held.address(
            b=self.held.batch,
            h=self.held.head,
            s=self.first_key + key + number(self.tiles.keys),
            d=number(0),
        )
        return prefetches_of(held.buffer, [place], self.problem.depth)

    def _product(self, row: int, key: Any, start: Any) -> Callable[[Any], Any]:
        held = self.problem.key

        def product(n: Any) -> Any:
            place = held.address(b=self.held.batch, h=self.held.head, s=key, d=start + n)
            return self._query(row, start + n) * widened(held.buffer, place)

        return product

    def _summed(self, sums: Sequence[Any], width: int, place: Any) -> list[tirx.Stmt]:
        """The sums of the lanes of each of the arrays, side by side in the scores."""
        if width == 1:
            return [tirx.BufferStore(self.scores, at(sums[0], number(0)), [place])]
        binds: list[tirx.Stmt] = []

        def name(value: Any) -> Any:
            binds.append(tirx.Bind(tirx.Var("vector", value.ty), value))
            return binds[-1].var

        loaded = [name(at(array, ramp(number(0), width))) for array in sums]
        total = lane_sums(loaded, width, name)
        return [*binds, tirx.BufferStore(self.scores, total, [ramp(place, len(sums))])]

    def _masked_row(self, row: int) -> list[tirx.Stmt]:
        """The scores of a row in place of its products."""
        lanes = self.lanes
        whole, left = divided(self.keys, lanes)

        def masked(first: Any, wanted: Any) -> tirx.Stmt:
            start = number(row * self.row_size) + first
            return sequence(self._masked(row, self.scores, first, wanted, lanes, start))

        found = [loop(whole, lambda i: masked(i * number(lanes), lanes))]
        if not is_none(left):
            last = masked(extent_of(whole) * number(lanes), left)
            found.append(last if isinstance(left, int) else where_any(left, last))
        return found


def _added(array: Any, product: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda n: at(array, n) + product(n)

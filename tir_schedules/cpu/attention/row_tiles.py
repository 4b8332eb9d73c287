"""Rows of queries in tiles: their scores, the softmax of each, and the product with the values."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
    halved,
    in_lanes,
    is_none,
    power_of_two,
    store_of,
    unrolled,
    vector,
    where_any,
    widened,
)
from tvm_ext.tir_schedules.cpu.attention.keys_and_values import KeysAndValues
from tvm_ext.tir_schedules.operators.attention import masked_score, scaled_score
from tvm_ext.tir_schedules.operators.recurrence import loop, number
from tvm_ext.tir_schedules.statements import sequence, stack_array


class RowBlock:
    """A block of rows: all keys at once, or one part of them after the other."""

    def __init__(
        self, held: KeysAndValues, tiles: AttentionTiles, head: Any, first: Any, count: int
    ) -> None:
        self.held, self.tiles, self.head = held, tiles, head
        self.first, self.count = first, count
        self.problem = held.problem
        self.is_open = not isinstance(self.problem.queries, int)
        self.is_online = not tiles.takes_all(self.problem.keys)
        # Of each row: the maximum and the sum so far, and the result before it is divided.
        self.highest, self.totals = (array_of(count, name) for name in ("highest", "totals"))
        self.results = array_of(count * held.padded_width, "results")

    def statement(self) -> tirx.Stmt:
        """All of it."""
        if not self.is_online:
            return self._tiles(number(0), self.problem.keys)
        kept = (self.highest, self.totals, self.results)
        declared = [tirx.AllocBuffer(array) for array in kept]
        steps = [self._each_tile(self._started), *self._keys(), self._each_tile(self._finished)]
        return sequence([*declared, *steps])

    def _keys(self) -> list[tirx.Stmt]:
        """The parts of the keys, one after the other."""
        size = self.tiles.keys
        whole, left = divided(self.problem.keys, size)
        parts = [loop(whole, lambda i: self._seen(i * number(size), size))]
        if not is_none(left):
            last = self._seen(extent_of(whole) * number(size), left)
            parts.append(last if isinstance(left, int) else where_any(left, last))
        return parts

    def head_and_query(self, row: Any) -> tuple[Any, Any]:
        """Which head of the query, and which position, a row is."""
        return self.head, self.first + row

    def slot(self, row: Any) -> Any:
        """Where in their arrays the facts of a row are kept."""
        return row

    def _seen(self, first_key: Any, keys: Any) -> tirx.Stmt:
        """A part of the keys, unless no row sees it."""
        code = self._tiles(first_key, keys)
        causal = self.problem.compute.causal
        if causal is None:
            return code
        _, last_query = self.head_and_query(number(self.count - 1))
        return tirx.IfThenElse(first_key <= last_query + number(causal), code, None)

    def _each_tile(self, code: Callable[[Any, int], tirx.Stmt]) -> tirx.Stmt:
        rows = self.tiles.rows
        if self.is_open:
            most = number(math.ceil(self.count / rows))
            count = tirx.min(most, count_of(self.problem.queries - self.first, rows))
            return loop(count, lambda i: code(i * number(rows), rows))
        whole, left = divmod(self.count, rows)
        found = [loop(whole, lambda i: code(i * number(rows), rows))] if whole else []
        if left:
            found.append(code(number(whole * rows), left))
        return sequence(found)

    def _tiles(self, first_key: Any, keys: Any) -> tirx.Stmt:
        return self._each_tile(
            lambda place, rows: self.tile_type(self, place, rows, first_key, keys).statement()
        )

    @property
    def tile_type(self) -> "type[RowTile]":
        """What computes the scores of some rows with some keys."""
        return RowTile

    def _started(self, place: Any, rows: int) -> tirx.Stmt:
        """Nothing seen yet but the sink."""
        slot = self.slot(place)

        def filled(array: Any, size: int, value: float) -> list[tirx.Stmt]:
            store = store_of(array, tirx.const(value, FLOAT))
            return in_lanes(0, rows * size, lambda n: store(slot * number(size) + n))

        results = filled(self.results, self.held.padded_width, 0)
        if self.problem.sink is None:
            return sequence(
                [*filled(self.highest, 1, -math.inf), *filled(self.totals, 1, 0), *results]
            )
        sinks = [self._started_with_sink(place + number(row)) for row in range(rows)]
        return sequence([*results, *sinks])

    def _started_with_sink(self, row: Any) -> tirx.Stmt:
        """The sink of a row is the highest score so far, and the only weight."""
        none, zero = tirx.const(-math.inf, FLOAT), tirx.const(0, FLOAT)
        first = tirx.Select(self.counts_sink, self.sink(row), none)
        total = tirx.Select(self.counts_sink, tirx.const(1, FLOAT), zero)
        slot = [self.slot(row)]
        return sequence(
            [
                tirx.BufferStore(self.highest, first, slot),
                tirx.BufferStore(self.totals, total, slot),
            ]
        )

    @property
    def counts_sink(self) -> Any:
        """Whether the sink is counted here, where several share the keys of a row."""
        return tirx.const(True, "bool")

    def sink(self, row: Any) -> Any:
        """The score of a row that has no value."""
        sink: Any = self.problem.sink
        head, _ = self.head_and_query(row)
        return widened(sink.buffer, sink.address(b=self.held.batch, h=head))

    def _finished(self, place: Any, rows: int) -> tirx.Stmt:
        width = self.held.padded_width

        def of_row(row: Any) -> list[tirx.Stmt]:
            slot = self.slot(row)

            def sums(n: Any) -> Any:
                return at(self.results, slot * number(width) + n)

            highest = at(self.highest, slot)
            return self.stored(row, sums, 0, self.problem.width, self._total(row), highest)

        stores = [of_row(place + number(row)) for row in range(rows)]
        return sequence([statement for each in stores for statement in each])

    def _total(self, row: Any) -> Any:
        """What the result of a row is divided by: without keys it is zero."""
        total, keys = at(self.totals, self.slot(row)), self.problem.keys
        if isinstance(keys, int):
            return total
        return tirx.Select(keys > number(0), total, tirx.const(1, FLOAT))

    def stored(
        self, row: Any, sums: Callable[[Any], Any], start: int, end: int, total: Any, highest: Any
    ) -> list[tirx.Stmt]:
        """The result of a row, of which ``sums`` are to be divided, from one column to another."""
        output, compute = self.problem.output, self.problem.compute
        zero = tirx.const(0, FLOAT)
        lowest = tirx.min_value(FLOAT)

        def store(column: Any) -> tirx.Stmt:
            value = sums(column) / total
            if compute.zero_rows:
                value = tirx.Select(highest < lowest, zero, value)
            head, query = self.head_and_query(row)
            place = output.address(b=self.held.batch, h=head, s=query, d=column)
            return tirx.BufferStore(output.buffer, value.astype(output.dtype), [place])

        stores = in_lanes(start, end, store)
        if not self.is_open:
            return stores
        # The last tile may reach beyond the last row.
        is_row = self.first + row < self.problem.queries
        return [tirx.IfThenElse(is_row, sequence(stores), None)]


class RowTile:
    """Some rows with some keys."""

    def __init__(self, rows: RowBlock, place: Any, count: int, first_key: Any, keys: Any) -> None:
        self.rows, self.place, self.count = rows, place, count
        self.first_key, self.keys = first_key, keys
        self.held, self.problem, self.tiles = rows.held, rows.problem, rows.tiles
        self.lanes = self.tiles.lanes
        # Places for scores of a row, and how many of them are used.
        most = keys if isinstance(keys, int) else self.tiles.keys
        self.row_size = self.lanes * math.ceil(most / self.lanes)
        self.used = count_of(keys, self.lanes) * self.lanes
        # Whole tiles of columns that any row sees, where that is not all of them.
        self.seen = tirx.Var("seen", "int64") if self._sees_part() else None
        self.scores = array_of(count * self.row_size, "scores")
        self.queries = array_of(count * self.problem.depth, "queries")
        self.partial = power_of_two(min(self.tiles.columns, self.row_size))
        # Of each row, the highest scores, as many as are compared at once.
        self.highest = array_of(count * self.partial, "highest_scores")
        self.positions, self._declared_positions = stack_array(count, "int64", "positions")

    def _sees_part(self) -> bool:
        """Whether the last ones of whole tiles of keys may be behind all rows."""
        if self.problem.compute.causal is None or not isinstance(self.keys, int):
            return False
        return self.keys % self.tiles.columns == 0

    def _bound_seen(self) -> list[tirx.Stmt]:
        """Up to the tile with the last key that the last row sees."""
        if self.seen is None:
            return []
        columns, causal = self.tiles.columns, self.problem.compute.causal or 0
        _, last_query = self.rows.head_and_query(self.place + number(self.count - 1))
        wanted = tirx.max(last_query + number(causal + 1) - self.first_key, number(0))
        most = number(self.keys // columns)
        return [tirx.Bind(self.seen, tirx.min(count_of(wanted, columns), most))]

    def statement(self) -> tirx.Stmt:
        """All of it."""
        each = [_RowSoftmax(self, row) for row in range(self.count)]
        steps = [*self._bound_seen(), *self._placed(), *self._widened_queries()]
        none = store_of(self.highest, tirx.const(-math.inf, FLOAT))
        steps += [tirx.AllocBuffer(self.scores), tirx.AllocBuffer(self.highest)]
        steps += [*in_lanes(0, self.count * self.partial, none), self._scores()]
        steps += [statement for row in each for statement in row.highest_score()]
        steps += [statement for row in each for statement in row.weights()]
        return sequence([*steps, *self._products(each)])

    def _placed(self) -> list[tirx.Stmt]:
        """Where each row is; beyond the last one, that one again.

        In memory: TVM would put the minimum into every address.
        """
        if not self.rows.is_open:
            return []
        last = self.problem.queries - 1
        places = [self.rows.first + self.place + number(row) for row in range(self.count)]
        return [
            self._declared_positions,
            *(
                tirx.BufferStore(self.positions, tirx.min(place, last), [number(row)])
                for row, place in enumerate(places)
            ),
        ]

    def _widened_queries(self) -> list[tirx.Stmt]:
        """A copy of queries of a narrow type."""
        if self.problem.query.dtype == FLOAT:
            return []
        depth = self.problem.depth

        def copied(row: int) -> list[tirx.Stmt]:
            def store(d: Any) -> tirx.Stmt:
                place = number(row * depth) + d
                return tirx.BufferStore(self.queries, self._query(row, d), [place])

            return in_lanes(0, depth, store)

        copies = [statement for row in range(self.count) for statement in copied(row)]
        return [tirx.AllocBuffer(self.queries), *copies]

    def _query(self, row: int, d: Any) -> Any:
        """An element of a query, as it is given."""
        query = self.problem.query
        head, position = self._head_and_query(row)
        place = query.address(b=self.held.batch, h=head, s=position, d=d)
        return widened(query.buffer, place)

    def _scores(self) -> tirx.Stmt:
        columns, lanes = self.tiles.columns, self.lanes
        if self.seen is not None:
            return loop(self.seen, lambda i: self._score_tile(i * number(columns), columns))
        whole, left = divided(self.keys, columns)
        found: list[tirx.Stmt] = []
        if not is_none(whole):
            found.append(loop(whole, lambda i: self._score_tile(i * number(columns), columns)))
        first = extent_of(whole) * number(columns)
        if isinstance(left, int):
            return sequence([*found, self._score_tile(first, left)] if left else found)
        vectors, rest = divided(left, lanes)
        found.append(loop(vectors, lambda i: self._score_tile(first, lanes, i * number(lanes))))
        last = self._score_tile(first, rest, vectors * number(lanes))
        return sequence([*found, where_any(rest, last)])

    def _score_tile(self, first: Any, wanted: Any, offset: Any = None) -> tirx.Stmt:
        """Products of the tile's rows with neighbouring keys, masked; ``wanted`` of them.

        ``first`` begins a tile of the copied keys, and ``offset`` counts from there. What a run
        decides is less than a vector.
        """
        place = first if offset is None else first + offset
        columns = self.lanes
        if isinstance(wanted, int):
            columns *= math.ceil(wanted / self.lanes)
        arrays = [stack_array(number(columns), FLOAT, "sums") for _ in range(self.count)]
        sums = [array for array, _ in arrays]
        is_copied = self.problem.query.dtype != FLOAT
        depth = self.problem.depth

        def step(d: Any) -> tirx.Stmt:
            found: list[tirx.Stmt] = []
            for row, array in enumerate(sums):
                copied = at(self.queries, number(row * depth) + d)
                element = copied if is_copied else self._query(row, d)

                def add(n: Any, array: Any = array, element: Any = element) -> tirx.Stmt:
                    lane = n if offset is None else offset + n
                    held = self.held.key_place(d, self.first_key + first, lane)
                    key = at(self.held.keys, held)
                    return tirx.BufferStore(array, at(array, n) + element * key, [n])

                found.append(vector(columns, add))
            return sequence(found)

        start = [vector(columns, store_of(array, tirx.const(0, FLOAT))) for array in sums]
        found = [*(declared for _, declared in arrays), *start, unrolled(depth, step)]
        for row, array in enumerate(sums):
            found += self._masked(row, array, place, wanted, columns)
        return sequence(found)

    def _masked(
        self, row: int, sums: Any, first: Any, wanted: Any, columns: int, start: Any = None
    ) -> list[tirx.Stmt]:
        """The scores of a row with keys from ``first`` on: of the ``sums`` from ``start`` on."""
        start = number(0) if start is None else start
        below = tirx.const(-math.inf, FLOAT)

        def store(n: Any, value: Any) -> tirx.Stmt:
            return tirx.BufferStore(self.scores, value, [number(row * self.row_size) + first + n])

        def masked(n: Any) -> tirx.Stmt:
            key = self.first_key + first + n
            return store(n, self._masked_score(at(sums, start + n), row, key))

        def masked_if_wanted(n: Any) -> tirx.Stmt:
            # Of the last key for what is beyond it: a mask ends there.
            key = self.first_key + first + tirx.min(n, wanted - 1)
            score = self._masked_score(at(sums, start + n), row, key)
            return store(n, tirx.Select(n < wanted, score, below))

        if not isinstance(wanted, int):
            found = [vector(columns, masked_if_wanted)]
        else:
            found = [
                *in_lanes(0, wanted, masked),
                *in_lanes(wanted, columns, lambda n: store(n, below)),
            ]
        return [*found, *self._highest_of(row, first, columns)]

    def _highest_of(self, row: int, first: Any, columns: int) -> list[tirx.Stmt]:
        """The highest scores of a row, with those from ``first`` on."""
        found: list[tirx.Stmt] = []
        start = 0
        while start < columns:
            width = min(power_of_two(columns - start), self.partial)
            scores = number(row * self.row_size) + first + number(start)

            def higher(n: Any, scores: Any = scores) -> tirx.Stmt:
                place = number(row * self.partial) + n
                value = tirx.max(at(self.highest, place), at(self.scores, scores + n))
                return tirx.BufferStore(self.highest, value, [place])

            found.append(vector(width, higher))
            start += width
        return found

    def _masked_score(self, score: Any, row: int, key: Any) -> Any:
        compute = self.problem.compute
        score = scaled_score(score, compute)
        head, query = self._head_and_query(row)
        place = {"b": self.held.batch, "h": head, "q": query, "k": key}
        for tensor, mask in zip(self.problem.masks, compute.masks, strict=True):
            where = tensor.address(**{letter: place[letter] for letter in tensor.axes})
            score = masked_score(score, at(tensor.buffer, where), mask)
        if compute.causal is None:
            return score
        below = tirx.const(-math.inf, FLOAT)
        return tirx.Select(key <= query + number(compute.causal), score, below)

    def _head_and_query(self, row: int) -> tuple[Any, Any]:
        head, query = self.rows.head_and_query(self.place + number(row))
        return head, at(self.positions, number(row)) if self.rows.is_open else query

    def _products(self, each: Sequence["_RowSoftmax"]) -> Iterator[tirx.Stmt]:
        """The weights times the values, some columns of the result after the others."""
        width = self.held.padded_width
        for start in range(0, width, self.tiles.columns):
            columns = min(self.tiles.columns, width - start)
            yield self._product_tile(each, start, columns)

    def _each_key(self, step: Callable[[Any], tirx.Stmt]) -> tirx.Stmt:
        columns = self.tiles.columns

        def of_tile(tile: Any) -> tirx.Stmt:
            return unrolled(columns, lambda n: step(tile * number(columns) + n))

        if self.seen is not None:
            return loop(self.seen, of_tile)
        whole, left = divided(self.keys, columns)
        found = [] if is_none(whole) else [loop(whole, of_tile)]
        if not is_none(left):
            first = extent_of(whole) * number(columns)
            found.append(unrolled(left, lambda n: step(first + n)))
        return sequence(found)

    def _before_values(self, key: Any, start: int) -> list[tirx.Stmt]:
        """What comes ahead of the columns from ``start`` on of a value."""
        return []

    def _product_tile(self, each: Sequence["_RowSoftmax"], start: int, columns: int) -> tirx.Stmt:
        arrays = [stack_array(number(columns), FLOAT, "sums") for _ in range(self.count)]
        found = [declared for _, declared in arrays]
        for (array, _), row in zip(arrays, each, strict=True):
            found += in_lanes(0, columns, store_of(array, partial(row.before, start)))

        def step(key: Any) -> tirx.Stmt:
            stores = self._before_values(key, start)
            for row, (array, _) in enumerate(arrays):
                weight = at(self.scores, number(row * self.row_size) + key)

                def add(n: Any, array: Any = array, weight: Any = weight) -> tirx.Stmt:
                    value = self.held.value(self.first_key + key, number(start) + n)
                    return tirx.BufferStore(array, at(array, n) + weight * value, [n])

                stores += in_lanes(0, columns, add)
            return sequence(stores)

        found.append(self._each_key(step))
        for (array, _), row in zip(arrays, each, strict=True):
            found += row.kept(array, start, columns)
        return sequence(found)


class _RowSoftmax:
    """The weights of a row of a tile, not yet divided by their sum, in place of its scores."""

    def __init__(self, tile: RowTile, row: int) -> None:
        self.tile, self.row = tile, row
        self.rows = tile.rows
        self.size = tile.partial
        self.place = tile.place + number(row)
        self.slot = self.rows.slot(self.place)
        self.partial, self._declared = stack_array(number(self.size), FLOAT, "partial")
        # Highest score, factor for what was added before, sum.
        self.facts, self._declared_facts = stack_array(number(3), FLOAT, "facts")

    @property
    def highest(self) -> Any:
        """Of all keys so far."""
        return at(self.facts, number(0))

    @property
    def factor(self) -> Any:
        """By which what was added before changes."""
        return at(self.facts, number(1))

    @property
    def total(self) -> Any:
        """The sum of the weights so far."""
        return at(self.facts, number(2))

    def highest_score(self) -> list[tirx.Stmt]:
        """The highest score of the row, of those of its lanes."""
        start = self.row * self.size
        found = [self._declared_facts, *halved(self.tile.highest, self.size, tirx.max, start)]
        first = at(self.tile.highest, number(start))
        has_sink = self.tile.problem.sink is not None
        if not self.rows.is_online:
            if has_sink:
                first = tirx.max(first, self.rows.sink(self.place))
            return [*found, tirx.BufferStore(self.facts, first, [number(0)])]
        before = at(self.rows.highest, self.slot)
        highest = tirx.Var("highest", FLOAT)
        # Without a key that is seen, the exponents are of minus infinity, not of NaN.
        none, zero = tirx.const(-math.inf, FLOAT), tirx.const(0, FLOAT)
        seen = tirx.Select(tirx.EQ(highest, none), zero, highest)
        factor = tirx.exp(before - seen)
        if not has_sink:
            # Of the first keys it is zero, which takes no exponential.
            factor = tirx.if_then_else(self.tile.first_key > number(0), factor, zero)
        return [
            *found,
            tirx.Bind(highest, tirx.max(first, before)),
            tirx.BufferStore(self.facts, seen, [number(0)]),
            tirx.BufferStore(self.facts, factor, [number(1)]),
            tirx.BufferStore(self.rows.highest, highest, [self.slot]),
        ]

    def weights(self) -> list[tirx.Stmt]:
        """The weights in place of the scores, and their sum."""
        scores = self.tile.scores

        def weight(n: Any, place: Any) -> list[tirx.Stmt]:
            value = tirx.exp(at(scores, place) - self.highest)
            return [
                tirx.BufferStore(scores, value, [place]),
                tirx.BufferStore(self.partial, at(self.partial, n) + at(scores, place), [n]),
            ]

        zeros = vector(self.size, store_of(self.partial, tirx.const(0, FLOAT)))
        found = [self._declared, zeros]
        found += self._in_vectors(weight)
        found += halved(self.partial, self.size, lambda a, b: a + b)
        first = at(self.partial, number(0))
        if not self.rows.is_online:
            if self.tile.problem.sink is not None:
                first = first + tirx.exp(self.rows.sink(self.place) - self.highest)
            return [*found, tirx.BufferStore(self.facts, first, [number(2)])]
        total = at(self.rows.totals, self.slot) * self.factor + first
        return [*found, tirx.BufferStore(self.rows.totals, total, [self.slot])]

    def _in_vectors(self, body: Callable[[Any, Any], list[tirx.Stmt]]) -> list[tirx.Stmt]:
        """``body`` for the lanes of the partial results and the places of all scores of the row."""
        whole, left = divided(self.tile.used, self.size)
        if self.tile.seen is not None:
            whole = self.tile.seen * number(self.tile.tiles.columns // self.size)
        start = number(self.row * self.tile.row_size)

        def vectors(first: Any, width: int) -> tirx.Stmt:
            def step(index: int) -> tirx.Stmt:
                return vector(width, lambda n: body(n, start + first + n)[index])

            return sequence([step(index) for index in range(len(body(number(0), number(0))))])

        found: list[tirx.Stmt] = []
        if not is_none(whole):
            found.append(loop(whole, lambda i: vectors(i * number(self.size), self.size)))
        place = extent_of(whole) * number(self.size)
        if not isinstance(left, int):
            lanes = self.tile.lanes
            rest = count_of(left, lanes)
            return [*found, loop(rest, lambda i: vectors(place + i * number(lanes), lanes))]
        while left:
            width = power_of_two(left)
            found.append(vectors(place, width))
            place, left = place + number(width), left - width
        return found

    def before(self, start: int, n: Any) -> Any:
        """What the sums of a column of the result begin with."""
        if not self.rows.is_online:
            return tirx.const(0, FLOAT)
        return at(self.rows.results, self._result(start, n)) * self.factor

    def kept(self, sums: Any, start: int, columns: int) -> list[tirx.Stmt]:
        """Where the sums of some columns go."""
        if self.rows.is_online:

            def store(n: Any) -> tirx.Stmt:
                return tirx.BufferStore(self.rows.results, at(sums, n), [self._result(start, n)])

            return in_lanes(0, columns, store)
        end = min(start + columns, self.tile.problem.width)
        return self.rows.stored(
            self.place,
            lambda column: at(sums, column - number(start)),
            start,
            end,
            self.total,
            self.highest,
        )

    def _result(self, start: int, n: Any) -> Any:
        return self.slot * number(self.tile.held.padded_width) + number(start) + n

"""Rows of queries that are too few for a copy of the keys: these are read where they lie.

A row takes the products with all keys, one key after the other, their softmax, and the sum of the
values. Heads that share keys and values take them together, so that what is read of these is read
once, next to each other: the time is that of the memory.
"""

import math
from collections.abc import Callable
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cpu.attention.attention_tiles import (
    FLOAT,
    AttentionTiles,
    array_of,
    at,
    count_of,
    extent_of,
    halved,
    in_lanes,
    store_of,
    vector,
    widened,
)
from tvm_ext.tir_schedules.operators.attention import masked_score, scaled_score
from tvm_ext.tir_schedules.operators.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.operators.recurrence import loop, number
from tvm_ext.tir_schedules.statements import sequence, stack_array


class FewRows:
    """The rows of all heads of queries that share one head of keys and values."""

    def __init__(
        self, problem: AttentionProblem, tiles: AttentionTiles, batch: Any, shared: Any
    ) -> None:
        self.problem, self.tiles, self.batch, self.shared = problem, tiles, batch, shared

    def statement(self) -> tirx.Stmt:
        """All of it, some heads after the others."""
        group, queries = self.problem.group, extent_of(self.problem.queries)
        each = max(n for n in range(1, _MOST_HEADS + 1) if group % n == 0)

        def heads(place: Any) -> tirx.Stmt:
            first = self.shared * number(group) + place * number(each)
            return loop(queries, lambda query: _Row(self, first, each, query).statement())

        return loop(group // each, heads)


# Heads whose sums are in registers together.
_MOST_HEADS = 4
# Vectors of such sums, as many times as a tile of the other rows has in a row.
_TILES_OF_SUMS = 4


class _Row:
    """One row of the query, of ``count`` heads from ``first`` on."""

    def __init__(self, rows: FewRows, first: Any, count: int, query: Any) -> None:
        self.rows, self.first, self.count, self.query = rows, first, count, query
        self.problem, self.lanes = rows.problem, rows.tiles.lanes
        self.keys = extent_of(self.problem.keys)
        # Scores up to a whole vector: those beyond the last key count nothing.
        self.vectors = extent_of(count_of(self.problem.keys, self.lanes))
        self.size = self.vectors * number(self.lanes)
        self.scores = array_of(self.size * number(count), "scores")
        # Of each head the highest score, and the sum of the weights.
        self.facts, self.of_facts = stack_array(number(2 * count), FLOAT, "facts")
        self.partial, self.of_partial = stack_array(number(self.lanes), FLOAT, "partial")

    def statement(self) -> tirx.Stmt:
        """All of it."""
        found = [tirx.AllocBuffer(self.scores), self.of_facts, self.of_partial, self._no_scores()]
        found.append(loop(self.keys, self._score))
        for head in range(self.count):
            found += [*self._highest(head), *self._weights(head)]
        width = self.problem.width
        most = max(self.lanes, _TILES_OF_SUMS * self.rows.tiles.columns // self.count)
        for start in range(0, width, most):
            found.append(self._columns(start, min(most, width - start)))
        return sequence(found)

    def _place(self, head: int, key: Any) -> Any:
        """Where the score of a head and a key is."""
        return number(head) * self.size + key

    def _no_scores(self) -> tirx.Stmt:
        """What is beyond the last key, with all of the last vector, is minus infinity."""
        below = tirx.const(-math.inf, FLOAT)
        last = self.size - number(self.lanes)

        def fill(head: int) -> tirx.Stmt:
            def store(n: Any) -> tirx.Stmt:
                return tirx.BufferStore(self.scores, below, [self._place(head, last + n)])

            return vector(self.lanes, store)

        fills = sequence([fill(head) for head in range(self.count)])
        return tirx.IfThenElse(self.vectors > number(0), fills, None)

    def _score(self, key: Any) -> tirx.Stmt:
        """The masked products of all heads with a key."""
        width = math.gcd(self.lanes, self.problem.depth)
        arrays = [stack_array(number(width), FLOAT, "sums") for _ in range(self.count)]
        found = [declared for _, declared in arrays]
        for head, (sums, _) in enumerate(arrays):
            found.append(vector(width, store_of(sums, self._products(head, key, width))))
        for sums, _ in arrays:
            found += halved(sums, width, lambda a, b: a + b)
        for head, (sums, _) in enumerate(arrays):
            score = self._masked(at(sums, number(0)), head, key)
            found.append(tirx.BufferStore(self.scores, score, [self._place(head, key)]))
        return sequence(found)

    def _products(self, head: int, key: Any, width: int) -> Callable[[Any], Any]:
        asked, held = self.problem.query, self.problem.key
        own = self.first + number(head)

        def products(n: Any) -> Any:
            total: Any = None
            for start in range(0, self.problem.depth, width):
                d = number(start) + n
                left = asked.address(b=self.rows.batch, h=own, s=self.query, d=d)
                right = held.address(b=self.rows.batch, h=self.rows.shared, s=key, d=d)
                product = widened(asked.buffer, left) * widened(held.buffer, right)
                total = product if total is None else total + product
            return total

        return products

    def _masked(self, score: Any, head: int, key: Any) -> Any:
        compute, query = self.problem.compute, self.query
        score = scaled_score(score, compute)
        place = {"b": self.rows.batch, "h": self.first + number(head), "q": query, "k": key}
        for tensor, mask in zip(self.problem.masks, compute.masks, strict=True):
            where = tensor.address(**{letter: place[letter] for letter in tensor.axes})
            score = masked_score(score, at(tensor.buffer, where), mask)
        if compute.causal is None:
            return score
        below = tirx.const(-math.inf, FLOAT)
        return tirx.Select(key <= query + number(compute.causal), score, below)

    def _highest(self, head: int) -> list[tirx.Stmt]:
        partial = self.partial

        def joined(first: Any) -> tirx.Stmt:
            def largest(n: Any) -> Any:
                return tirx.max(at(partial, n), at(self.scores, self._place(head, first + n)))

            return vector(self.lanes, store_of(partial, largest))

        return [
            vector(self.lanes, store_of(partial, tirx.const(-math.inf, FLOAT))),
            loop(self.vectors, lambda i: joined(i * number(self.lanes))),
            *halved(partial, self.lanes, tirx.max),
            tirx.BufferStore(self.facts, at(partial, number(0)), [number(2 * head)]),
        ]

    def _weights(self, head: int) -> list[tirx.Stmt]:
        """The weights in place of the scores, not yet divided by their sum."""
        partial, highest = self.partial, at(self.facts, number(2 * head))

        def weighed(first: Any) -> tirx.Stmt:
            def weight(n: Any) -> tirx.Stmt:
                place = self._place(head, first + n)
                value = tirx.exp(at(self.scores, place) - highest)
                return tirx.BufferStore(self.scores, value, [place])

            def added(n: Any) -> Any:
                return at(partial, n) + at(self.scores, self._place(head, first + n))

            total = vector(self.lanes, store_of(partial, added))
            return sequence([vector(self.lanes, weight), total])

        return [
            vector(self.lanes, store_of(partial, tirx.const(0, FLOAT))),
            loop(self.vectors, lambda i: weighed(i * number(self.lanes))),
            *halved(partial, self.lanes, lambda a, b: a + b),
            tirx.BufferStore(self.facts, at(partial, number(0)), [number(2 * head + 1)]),
        ]

    def _columns(self, start: int, count: int) -> tirx.Stmt:
        """Some columns of the sums of the values, in registers."""
        held, output = self.problem.value, self.problem.output
        arrays = [stack_array(number(count), FLOAT, "sums") for _ in range(self.count)]

        def added(key: Any) -> tirx.Stmt:
            found: list[tirx.Stmt] = []
            for head, (sums, _) in enumerate(arrays):

                def add(n: Any, sums: Any = sums, head: int = head) -> tirx.Stmt:
                    place = held.address(
                        b=self.rows.batch, h=self.rows.shared, s=key, d=number(start) + n
                    )
                    weight = at(self.scores, self._place(head, key))
                    product = weight * widened(held.buffer, place)
                    return tirx.BufferStore(sums, at(sums, n) + product, [n])

                found += in_lanes(0, count, add)
            return sequence(found)

        found = [declared for _, declared in arrays]
        for sums, _ in arrays:
            found += in_lanes(0, count, store_of(sums, tirx.const(0, FLOAT)))
        found.append(loop(self.keys, added))
        for head, (sums, _) in enumerate(arrays):

            def store(n: Any, sums: Any = sums, head: int = head) -> tirx.Stmt:
                own = self.first + number(head)
                d = number(start) + n
                place = output.address(b=self.rows.batch, h=own, s=self.query, d=d)
                value = self._divided(at(sums, n), head).astype(output.dtype)
                return tirx.BufferStore(output.buffer, value, [place])

            found += in_lanes(0, count, store)
        return sequence(found)

    def _divided(self, value: Any, head: int) -> Any:
        highest, total = (at(self.facts, number(2 * head + n)) for n in (0, 1))
        zero, one = tirx.const(0, FLOAT), tirx.const(1, FLOAT)
        # Without keys the sum is zero.
        value = value / tirx.Select(self.keys > number(0), total, one)
        if not self.problem.compute.zero_rows:
            return value
        return tirx.Select(highest < tirx.min_value(FLOAT), zero, value)

"""Rows of queries that are too few for a copy of the keys: these are read where they lie.

A row takes the products with all keys, one key after the other, their softmax, and the sum of the
values. What it reads of keys and values, it reads once, next to each other: the time is that of the
memory.
"""

import math
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
from tvm_ext.tir_schedules.operators.attention import masked_score
from tvm_ext.tir_schedules.operators.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.operators.recurrence import loop, number
from tvm_ext.tir_schedules.statements import sequence, stack_array


class FewRows:
    """The rows of all heads of queries that share one head of keys and values."""

    def __init__(
        self, problem: AttentionProblem, tiles: AttentionTiles, batch: Any, shared: Any
    ) -> None:
        self.problem, self.lanes = problem, tiles.lanes
        self.batch, self.shared = batch, shared
        # Scores up to a whole vector: those beyond the last key count nothing.
        self.vectors = extent_of(count_of(problem.keys, self.lanes))
        self.scores = array_of(self.vectors * number(self.lanes), "scores")
        self.facts: Any = None

    def statement(self) -> tirx.Stmt:
        """All of it."""
        group, queries = self.problem.group, extent_of(self.problem.queries)

        def row(one: Any, query: Any) -> tirx.Stmt:
            return self._row(self.shared * number(group) + one, query)

        rows = loop(group, lambda one: loop(queries, lambda query: row(one, query)))
        return sequence([tirx.AllocBuffer(self.scores), rows])

    def _row(self, head: Any, query: Any) -> tirx.Stmt:
        # Highest score, and the sum of the weights.
        self.facts, declared = stack_array(number(2), FLOAT, "facts")
        partial, of_partial = stack_array(number(self.lanes), FLOAT, "partial")
        return sequence(
            [
                declared,
                of_partial,
                self._no_scores(),
                loop(extent_of(self.problem.keys), lambda key: self._score(head, query, key)),
                *self._highest(partial),
                *self._weights(partial),
                self._result(head, query),
            ]
        )

    def _no_scores(self) -> tirx.Stmt:
        """What is beyond the last key, with all of the last vector, is minus infinity."""
        below = tirx.const(-math.inf, FLOAT)
        last = (self.vectors - number(1)) * number(self.lanes)
        fill = vector(self.lanes, lambda n: tirx.BufferStore(self.scores, below, [last + n]))
        return tirx.IfThenElse(self.vectors > number(0), fill, None)

    def _score(self, head: Any, query: Any, key: Any) -> tirx.Stmt:
        """The masked product of a row with a key."""
        asked, held = self.problem.query, self.problem.key
        depth = self.problem.depth
        width = math.gcd(self.lanes, depth)
        sums, declared = stack_array(number(width), FLOAT, "sums")

        def products(n: Any) -> Any:
            total: Any = tirx.const(0, FLOAT)
            for start in range(0, depth, width):
                d = number(start) + n
                left = asked.address(b=self.batch, h=head, s=query, d=d)
                right = held.address(b=self.batch, h=self.shared, s=key, d=d)
                total = total + widened(asked.buffer, left) * widened(held.buffer, right)
            return total

        score = self._masked(at(sums, number(0)), head, query, key)
        return sequence(
            [
                declared,
                vector(width, store_of(sums, products)),
                *halved(sums, width, lambda a, b: a + b),
                tirx.BufferStore(self.scores, score, [key]),
            ]
        )

    def _masked(self, score: Any, head: Any, query: Any, key: Any) -> Any:
        compute = self.problem.compute
        score = score * tirx.const(compute.scale, FLOAT)
        place = {"b": self.batch, "h": head, "q": query, "k": key}
        for tensor, mask in zip(self.problem.masks, compute.masks, strict=True):
            where = tensor.address(**{letter: place[letter] for letter in tensor.axes})
            score = masked_score(score, at(tensor.buffer, where), mask)
        if compute.causal is None:
            return score
        below = tirx.const(-math.inf, FLOAT)
        return tirx.Select(key <= query + number(compute.causal), score, below)

    def _highest(self, partial: Any) -> list[tirx.Stmt]:
        def joined(first: Any) -> tirx.Stmt:
            def largest(n: Any) -> Any:
                return tirx.max(at(partial, n), at(self.scores, first + n))

            return vector(self.lanes, store_of(partial, largest))

        return [
            vector(self.lanes, store_of(partial, tirx.const(-math.inf, FLOAT))),
            loop(self.vectors, lambda i: joined(i * number(self.lanes))),
            *halved(partial, self.lanes, tirx.max),
            tirx.BufferStore(self.facts, at(partial, number(0)), [number(0)]),
        ]

    def _weights(self, partial: Any) -> list[tirx.Stmt]:
        """The weights in place of the scores, not yet divided by their sum."""
        highest = at(self.facts, number(0))

        def weighed(first: Any) -> tirx.Stmt:
            def weight(n: Any) -> tirx.Stmt:
                value = tirx.exp(at(self.scores, first + n) - highest)
                return tirx.BufferStore(self.scores, value, [first + n])

            def added(n: Any) -> Any:
                return at(partial, n) + at(self.scores, first + n)

            total = vector(self.lanes, store_of(partial, added))
            return sequence([vector(self.lanes, weight), total])

        return [
            vector(self.lanes, store_of(partial, tirx.const(0, FLOAT))),
            loop(self.vectors, lambda i: weighed(i * number(self.lanes))),
            *halved(partial, self.lanes, lambda a, b: a + b),
            tirx.BufferStore(self.facts, at(partial, number(0)), [number(1)]),
        ]

    def _result(self, head: Any, query: Any) -> tirx.Stmt:
        """The sum of the values, in registers, some columns after the others."""
        width, most = self.problem.width, self.lanes * _VECTORS_OF_SUMS
        parts = [
            self._columns(head, query, start, min(most, width - start))
            for start in range(0, width, most)
        ]
        return sequence(parts)

    def _columns(self, head: Any, query: Any, start: int, count: int) -> tirx.Stmt:
        held, output = self.problem.value, self.problem.output
        sums, declared = stack_array(number(count), FLOAT, "sums")

        def add(key: Any, n: Any) -> tirx.Stmt:
            place = held.address(b=self.batch, h=self.shared, s=key, d=number(start) + n)
            product = at(self.scores, key) * widened(held.buffer, place)
            return tirx.BufferStore(sums, at(sums, n) + product, [n])

        def store(n: Any) -> tirx.Stmt:
            place = output.address(b=self.batch, h=head, s=query, d=number(start) + n)
            value = self._divided(at(sums, n)).astype(output.dtype)
            return tirx.BufferStore(output.buffer, value, [place])

        keys = extent_of(self.problem.keys)
        return sequence(
            [
                declared,
                *in_lanes(0, count, store_of(sums, tirx.const(0, FLOAT))),
                loop(keys, lambda key: sequence(in_lanes(0, count, lambda n: add(key, n)))),
                *in_lanes(0, count, store),
            ]
        )

    def _divided(self, value: Any) -> Any:
        highest, total = at(self.facts, number(0)), at(self.facts, number(1))
        zero, one = tirx.const(0, FLOAT), tirx.const(1, FLOAT)
        # Without keys the sum is zero.
        value = value / tirx.Select(extent_of(self.problem.keys) > number(0), total, one)
        if not self.problem.compute.zero_rows:
            return value
        return tirx.Select(highest < tirx.min_value(FLOAT), zero, value)


# Sums of a row's columns that are in registers together.
_VECTORS_OF_SUMS = 8

"""Combines the results that an attention has for several parts of the keys.

Each part has sums that were weighted with its own highest score: they are brought to the highest
of all before they are added. Dao et al., "Flash-Decoding for long-context inference" (2023).
"""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.cuda.attention_scores import (
    INDEX,
    LOWEST,
    ZERO,
    RowPlace,
    exponent,
    inverse,
    number,
)
from tvm_ext.tir_schedules.cuda.launch import Arrays, bound, guarded
from tvm_ext.tir_schedules.statements import sequence

_THREADS = 128


class PartialResults:
    """What the first kernel leaves in memory for the second.

    Attributes
    ----------
    sums : buffer
        Of weighted values: [part, row, element], float32.
    highest, totals : buffer
        The highest score and the sum of the weights: [part, row], float32.
    """

    def __init__(self, problem: AttentionProblem, parts: int, arrays: Arrays) -> None:
        self.problem, self.parts = problem, parts
        self.rows = problem.batch * problem.heads * problem.queries
        shape = [parts, self.rows]
        self.sums = arrays.allocated("sums", [*shape, problem.width], "float32", "global")
        self.highest = arrays.allocated("part_highest", shape, "float32", "global")
        self.totals = arrays.allocated("part_totals", shape, "float32", "global")
        self._top = arrays.registers("top", 1, "float32", ())
        self._total = arrays.registers("total", 1, "float32", ())
        self._sum = arrays.registers("sum", 1, "float32", ())

    def row(self, place: RowPlace) -> Any:
        """The number of a row."""
        heads, queries = number(self.problem.heads), number(self.problem.queries)
        return (place.batch * heads + place.head) * queries + place.query

    def combine(self) -> tirx.Stmt:
        """The second kernel: each thread adds up the parts of one element."""
        count = self.rows * self.problem.width

        def block(index: Any) -> tirx.Stmt:
            def thread(lane: Any) -> tirx.Stmt:
                at = index * number(_THREADS) + lane
                inside = at < number(count) if count % _THREADS else None
                return guarded(inside, self._element(at))

            return bound("threadIdx.x", _THREADS, INDEX, thread)

        return bound("blockIdx.x", -(-count // _THREADS), INDEX, block)

    def _element(self, at: Any) -> tirx.Stmt:
        width, zero = number(self.problem.width), number(0)
        row, column = tirx.floordiv(at, width), tirx.floormod(at, width)
        top, total, held = self._top, self._total, self._sum

        def higher(part: Any) -> tirx.Stmt:
            found = tirx.BufferLoad(self.highest, [part, row])
            return top.put(zero, tirx.max(top.at(zero), found))

        def add(part: Any) -> tirx.Stmt:
            distance = tirx.BufferLoad(self.highest, [part, row]) - top.at(zero)
            weight = tirx.exp2(distance * tirx.const(exponent(self.problem), "float32"))
            some = tirx.BufferLoad(self.totals, [part, row])
            values = tirx.BufferLoad(self.sums, [part, row, column])
            return sequence(
                [
                    total.put(zero, total.at(zero) + some * weight),
                    held.put(zero, held.at(zero) + values * weight),
                ]
            )

        return sequence(
            [
                top.put(zero, LOWEST),
                total.put(zero, ZERO),
                held.put(zero, ZERO),
                self._each_part(higher),
                # Where no part sees a key: the difference of two infinities would be no number.
                top.put(zero, tirx.Select(top.at(zero) == LOWEST, ZERO, top.at(zero))),
                self._each_part(add),
                self._store(row, column, held.at(zero) * inverse(total.at(zero), self.problem)),
            ]
        )

    def _each_part(self, body: Any) -> tirx.Stmt:
        part = tirx.Var("part", INDEX)
        first, count = number(0), number(self.parts)
        return tirx.For(part, first, count, tirx.ForKind.SERIAL, body(part))

    def _store(self, row: Any, column: Any, value: Any) -> tirx.Stmt:
        output = self.problem.output
        heads, queries = number(self.problem.heads), number(self.problem.queries)
        head = tirx.floordiv(row, queries)
        address = output.address(
            b=tirx.floordiv(head, heads),
            h=tirx.floormod(head, heads),
            s=tirx.floormod(row, queries),
            d=column,
        )
        return tirx.BufferStore(output.buffer, value.astype(output.dtype), [address])

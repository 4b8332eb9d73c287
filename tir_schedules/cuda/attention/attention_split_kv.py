"""Combines the results that an attention has for several parts of the keys.

Each part has sums that were weighted with its own highest score: they are brought to the highest
of all before they are added. Dao et al., "Flash-Decoding for long-context inference" (2023).
"""

from typing import Any

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.cuda.attention.attention_decision import WARP
from tvm_ext.tir_schedules.cuda.attention.online_softmax import (
    INDEX,
    LOWEST,
    ZERO,
    RowPlace,
    exponent,
    inverse,
    number,
)
from tvm_ext.tir_schedules.cuda.launch import Arrays, bound, guarded, repeated
from tvm_ext.tir_schedules.cuda.warp_instructions import (
    block_barrier,
    from_lane,
    without_added_barriers,
)
from tvm_ext.tir_schedules.operators.attention_problem import AttentionProblem
from tvm_ext.tir_schedules.statements import sequence

_MOST_WARPS = 8
_MOST_UNROLLED = 16


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
        self.warps = min(_MOST_WARPS, parts)
        self._columns = -(-problem.width // WARP)
        self._top = arrays.registers("top", 1, "float32", ())
        self._total = arrays.registers("total", 1, "float32", ())
        self._sums = arrays.registers("own_sums", self._columns, "float32", ())
        shape = [self.warps, self._columns * WARP]
        self._shared = arrays.allocated("warp_sums", shape, "float32", "shared")

    def row(self, place: RowPlace) -> tvm.ir.Expr:
        """The number of a row."""
        heads, queries = number(self.problem.heads), number(self.problem.queries)
        return (place.batch * heads + place.head) * queries + place.query

    def combine(self) -> tirx.Stmt:
        """The second kernel: a block for each row, whose warps share out the parts."""

        def block(row: tvm.ir.Expr) -> tirx.Stmt:
            def threads(warp: tvm.ir.Expr) -> tirx.Stmt:
                return bound("threadIdx.x", WARP, INDEX, lambda lane: self._thread(row, warp, lane))

            return bound("threadIdx.y", self.warps, INDEX, threads)

        return bound("blockIdx.x", self.rows, INDEX, block)

    def _thread(self, row: tvm.ir.Expr, warp: tvm.ir.Expr, lane: tvm.ir.Expr) -> tirx.Stmt:
        zero, top, total = number(0), self._top, self._total

        def higher(part: tvm.ir.Expr) -> tirx.Stmt:
            found = tirx.BufferLoad(self.highest, [part, row])
            return top.put(zero, tirx.max(top.at(zero), found))

        def add(part: tvm.ir.Expr) -> tirx.Stmt:
            some = tirx.BufferLoad(self.totals, [part, row])
            return total.put(zero, total.at(zero) + some * self._weight(part, row))

        both = [
            (top, higher, lambda a, b: tirx.max(a, b)),
            (total, add, lambda a, b: a + b),
        ]
        statements = [top.put(zero, LOWEST), total.put(zero, ZERO)]
        for kept, step, join in both:
            statements.append(self._each_part(lane, WARP, step))
            statements += [
                kept.put(zero, join(kept.at(zero), from_lane(kept.at(zero), distance)))
                for distance in (1, 2, 4, 8, 16)
            ]
            # Where no part sees a key: the difference of two infinities would be no number.
            seen = top.at(zero)
            statements.append(top.put(zero, tirx.Select(seen == LOWEST, ZERO, seen)))
        body = [*statements, *self._sum_up(row, warp, lane), self._write(row, warp, lane)]
        return without_added_barriers(sequence(body))

    def _sum_up(self, row: tvm.ir.Expr, warp: tvm.ir.Expr, lane: tvm.ir.Expr) -> list[tirx.Stmt]:
        """Each warp's sums of some parts, in shared memory."""
        sums = self._sums

        def column(j: tvm.ir.Expr) -> tuple[Any, Any]:
            at = j * number(WARP) + lane
            return at, at < number(self.problem.width) if self.problem.width % WARP else None

        def add(part: tvm.ir.Expr) -> tirx.Stmt:
            def iteration(j: tvm.ir.Expr) -> tirx.Stmt:
                at, inside = column(j)
                found = tirx.BufferLoad(self.sums, [part, row, at])
                weighted = sums.at(j) + found * self._weight(part, row)
                return guarded(inside, sums.put(j, weighted))

            return repeated(self._columns, INDEX, iteration)

        def publish(j: tvm.ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(self._shared, sums.at(j), [warp, column(j)[0]])

        return [
            repeated(self._columns, INDEX, lambda j: sums.put(j, ZERO)),
            self._each_part(warp, self.warps, add),
            repeated(self._columns, INDEX, publish),
            block_barrier("shared"),
        ]

    def _write(self, row: tvm.ir.Expr, warp: tvm.ir.Expr, lane: tvm.ir.Expr) -> tirx.Stmt:
        """The warps' sums added up, each thread for some of the elements."""
        width, zero = self.problem.width, number(0)
        threads, sums = self.warps * WARP, self._sums

        def iteration(i: tvm.ir.Expr) -> tirx.Stmt:
            at = i * number(threads) + warp * number(WARP) + lane

            def add(other: tvm.ir.Expr) -> tirx.Stmt:
                found = tirx.BufferLoad(self._shared, [other, at])
                return sums.put(zero, sums.at(zero) + found)

            value = sums.at(zero) * inverse(self._total.at(zero), self.problem)
            steps = [
                sums.put(zero, ZERO),
                repeated(self.warps, INDEX, add),
                self._store(row, at, value),
            ]
            inside = at < number(width) if width % threads else None
            return guarded(inside, sequence(steps))

        return repeated(-(-width // threads), INDEX, iteration)

    def _weight(self, part: tvm.ir.Expr, row: tvm.ir.Expr) -> tvm.ir.Expr:
        distance = tirx.BufferLoad(self.highest, [part, row]) - self._top.at(number(0))
        return tirx.exp2(distance * tirx.const(exponent(self.problem), "float32"))

    def _each_part(self, first: tvm.ir.Expr, step: int, body: Any) -> tirx.Stmt:
        """``body`` for the parts from ``first`` on, ``step`` apart."""
        times = -(-self.parts // step)

        def iteration(i: tvm.ir.Expr) -> tirx.Stmt:
            part = i * number(step) + first
            return guarded(part < number(self.parts) if self.parts % step else None, body(part))

        kind = tirx.ForKind.UNROLLED if times <= _MOST_UNROLLED else tirx.ForKind.SERIAL
        return repeated(times, INDEX, iteration, kind)

    def _store(self, row: tvm.ir.Expr, column: tvm.ir.Expr, value: tvm.ir.Expr) -> tirx.Stmt:
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

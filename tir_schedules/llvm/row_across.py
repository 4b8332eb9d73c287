"""Runs several rows of a row kernel at once, one in each lane of a vector."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.llvm.row_code import Body, Writer, assign
from tvm_ext.tir_schedules.llvm.row_decision import RowDecision
from tvm_ext.tir_schedules.llvm.row_stretches import stretches, stretches_across
from tvm_ext.tir_schedules.rows.row_combine import accumulated
from tvm_ext.tir_schedules.rows.row_kernel import Axis, RowBlock, RowKernel, buffer_key, product
from tvm_ext.tir_schedules.rows.row_strides import dense_suffix, unfused
from tvm_ext.tir_schedules.statements import sequence

# Vectors of one statement: accumulators of a reduction stay in registers, and hide its latency.
IN_REGISTERS = 8

# Steps of a reduction between loading and storing partial results that are not in registers.
STEPS = 4


class AcrossRows(Writer):
    """Tiles of neighbouring rows; what is left over runs in narrower tiles."""

    def write(self) -> tirx.Stmt:
        """The loops over all rows."""
        rows = self.kernel.rows
        first = dense_suffix(self.kernel, rows, self.kernel.blocks)
        outer, inner = rows[:first], rows[first:]
        count = product(axis.extent for axis in outer)
        decision = self.decision
        length = product(axis.extent for axis in inner)
        parts = stretches_across(length, count, decision.lanes, decision.registers, decision.chunks)
        if count >= decision.chunks:
            # Whole groups of rows for each thread: the narrow tiles are spread as well.
            return self._over_groups(outer, inner, count, parts)
        nests = [self._over_tiles(outer, inner, count, part) for part in parts]
        return sequence(nests)

    def _over_groups(
        self, outer: Sequence[Axis], inner: Sequence[Axis], count: int, parts: Any
    ) -> tirx.Stmt:
        tiles = [(_Tile(self.kernel, self.decision, part[2]), part) for part in parts]

        def group(i: Any) -> tirx.Stmt:
            values = unfused(i, outer, self.dtype)
            return sequence([tile.loop_over(part, inner, values) for tile, part in tiles])

        return self.in_chunks(
            count, group, lambda: [stmt for tile, _ in tiles for stmt in tile.allocated([])]
        )

    def _over_tiles(
        self, outer: Sequence[Axis], inner: Sequence[Axis], count: int, part: tuple[int, int, int]
    ) -> tirx.Stmt:
        """One width of tiles of all groups; only whole tiles are worth handing to threads."""
        start, many, width = part
        serial = replace(self.decision, chunks=1)
        decision = self.decision if start == 0 else serial
        tile = _Tile(self.kernel, decision, width)

        def one(i: Any) -> tirx.Stmt:
            group = tirx.FloorDiv(i, self.number(many))
            place = tirx.FloorMod(i, self.number(many))
            base = self.number(start) + place * self.number(width)
            return tile.rows(base, inner, unfused(group, outer, self.dtype))

        return tile.in_chunks(count * many, one, lambda: tile.allocated([]))


class _Tile(Writer):
    """As many neighbouring rows as there are lanes in work."""

    def __init__(self, kernel: RowKernel, decision: RowDecision, width: int) -> None:
        super().__init__(kernel, decision)
        self.width = width

    def loop_over(
        self, part: tuple[int, int, int], inner: Sequence[Axis], values: dict[int, Any]
    ) -> tirx.Stmt:
        """All tiles of one width."""
        start, many, width = part

        def one(i: Any) -> tirx.Stmt:
            return self.rows(self.number(start) + i * self.number(width), inner, values)

        return self.loop(many, one)

    def rows(self, base: Any, inner: Sequence[Axis], values: dict[int, Any]) -> tirx.Stmt:
        """All blocks for the rows from ``base`` on."""

        def at_lane(lane: Any) -> dict[int, Any]:
            return {**values, **unfused(base + lane, inner, self.dtype)}

        return sequence(
            [
                stmt
                for block in self.kernel.blocks
                for stmt in (self._reduce if block.starts else self._each)(block, at_lane)
            ]
        )

    def _each(self, block: RowBlock, at_lane: Any) -> list[tirx.Stmt]:
        def element(columns: dict[int, Any], lane: Any) -> tirx.Stmt:
            point = {**at_lane(lane), **columns}
            return sequence(
                [self.put(s, self.at(s.value, point, lane), point, lane) for s in block.stores]
            )

        return [self.nest(block.columns, lambda v: self._vectors(lambda lane: element(v, lane)))]

    def _nest_by_steps(
        self, columns: Sequence[Axis], update: Callable[[dict[int, Any], Any], tirx.Stmt]
    ) -> tirx.Stmt:
        """The loops of a reduction, innermost the vectors of the tile.

        A tile wider than the registers keeps its partial results in cache: they are loaded and
        stored once for several steps along the last of the loops.
        """
        if not columns or self.width <= IN_REGISTERS * self.decision.lanes:
            return self.nest(columns, lambda v: self._vectors(lambda lane: update(v, lane)))
        last = columns[-1]

        def steps(values: dict[int, Any]) -> tirx.Stmt:
            done = []
            for start, count, size in stretches(last.extent, [STEPS]):

                def part(i: Any, s: int = start, n: int = size) -> tirx.Stmt:
                    first = self.number(s) + i * self.number(n)

                    def some(lane: Any) -> tirx.Stmt:
                        at = [first + self.number(k) for k in range(n)]
                        return sequence(
                            [update({**values, buffer_key(last.var): k}, lane) for k in at]
                        )

                    return self._vectors(some)

                done.append(self.loop(count, part))
            return sequence(done)

        return self.nest(columns[:-1], steps)

    def _vectors(self, body: Body) -> tirx.Stmt:
        """Vectors over all rows of the tile."""
        done = []
        # Powers of two: LLVM keeps longer vectors of other lengths in memory.
        widths = [self.decision.lanes * n for n in (IN_REGISTERS, 4, 2, 1)]
        for start, count, width in stretches(self.width, widths):

            def part(i: Any, s: int = start, w: int = width) -> tirx.Stmt:
                begin = self.number(s) + i * self.number(w)
                return self.vector(w, lambda lane: body(begin + lane))

            done.append(self.loop(count, part))
        return sequence(done)

    def _reduce(self, block: RowBlock, at_lane: Any) -> list[tirx.Stmt]:
        partial = self.partial(block, self.width)
        buffers = [store.buffer for store in block.stores]

        def update(columns: dict[int, Any], lane: Any) -> tirx.Stmt:
            point = {**at_lane(lane), **columns}
            old = [tirx.BufferLoad(p, [lane]) for p in partial]
            new = [self.at(accumulated(s.value, buffers, old), point, lane) for s in block.stores]
            return assign(partial, new, lane)

        def finish(lane: Any) -> tirx.Stmt:
            point = at_lane(lane)
            return sequence(
                [
                    self.put(s, tirx.BufferLoad(p, [lane]), point, lane)
                    for s, p in zip(block.stores, partial, strict=True)
                ]
            )

        return [
            *self.started(partial, block, self.width),
            self._nest_by_steps(block.columns, update),
            self._vectors(finish),
        ]

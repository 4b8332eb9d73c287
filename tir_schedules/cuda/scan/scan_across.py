"""Scans that are neighbours in memory: every thread does a part of one in series."""

from collections.abc import Sequence
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.cuda.launch import guarded, repeated
from tvm_ext.tir_schedules.cuda.scan.scan_places import ScanPlaces
from tvm_ext.tir_schedules.cuda.warp_code import block_barrier
from tvm_ext.tir_schedules.statements import sequence

_SERIAL = tirx.ForKind.SERIAL


class ScanAcross(ScanPlaces):
    """The statements of scans of which neighbouring threads have neighbouring ones."""

    def across(self, totals: Any) -> list[tirx.Stmt]:
        """Totals of the parts of a block's chunk first, where there are several; then the scans."""
        self.carry, self.values = self.registers("carry"), self.registers("values")
        self.segment = -(-self.launch.chunk // self.launch.parts)
        if self.launch.parts == 1:
            return [self.threads(lambda: self._scan(totals, None))]
        self.sums = self.registers("sum")
        shape = [self.launch.parts * self.launch.rows]
        shared = self.arrays.allocated("part_totals", shape, self.kernel.dtype, "shared")
        return [
            self.threads(lambda: self._total(shared)),
            block_barrier("shared"),
            self.threads(lambda: self._scan(totals, shared)),
        ]

    def _total(self, shared: Any) -> tirx.Stmt:
        """The terms of the thread's part, combined, for the threads behind it."""
        sums, (row, _), zero = self.held(self.sums), self.row(), self.number(0)

        def add(_: Any, __: Any) -> tirx.BufferStore:
            total = self.combined(sums.at(zero), self.kernel.term)
            return tirx.BufferStore(sums.buffer, total, [*sums.thread, zero])

        def one(i: Any) -> tirx.Stmt:
            position, inside = self._position(i)
            return guarded(inside, self.neighbours(add, row, position))

        walk = repeated(self.segment, self.dtype, one, _SERIAL)
        place = self.y * self.number(self.launch.rows) + self.x
        publish = tirx.BufferStore(shared, sums.at(zero), [place])
        return sequence([sums.put(zero, self.kernel.identity), walk, publish])

    def _scan(self, totals: Any, shared: Any) -> tirx.Stmt:
        """The thread's part, from what all in front of it come to."""
        carry, (row, row_inside), zero = self.held(self.carry), self.row(), self.number(0)
        begin = [carry.put(zero, self.kernel.start)]
        if self.launch.chunks > 1:
            begin.append(self._chunks_in_front(totals, row))
        if shared is not None:
            begin.append(self._parts_in_front(shared))
        walk = repeated(self.segment, self.dtype, lambda i: self._step(i, row, row_inside), _SERIAL)
        return sequence([*begin, walk])

    def _parts_in_front(self, shared: Any) -> tirx.Stmt:
        carry, zero, rows = self.held(self.carry), self.number(0), self.number(self.launch.rows)

        def one(part: Any) -> tirx.Stmt:
            total = tirx.BufferLoad(shared, [part * rows + self.x])
            add = carry.put(zero, self.combined(carry.at(zero), total))
            return guarded(part < self.y, add)

        return repeated(self.launch.parts - 1, self.dtype, one, _SERIAL)

    def _position(self, i: Any) -> tuple[Any, Any]:
        """Step ``i`` of a thread across the scans, and whether it is one of its chunk."""
        launch, length = self.launch, self.kernel.length
        within = self.y * self.number(self.segment) + i
        position = self.chunk * self.number(launch.chunk) + within
        conditions = []
        if launch.chunk % launch.parts:
            conditions.append(within < self.number(launch.chunk))
        if length % launch.chunk:
            conditions.append(position < self.number(length))
        if not conditions:
            return position, None
        return position, conditions[0] if len(conditions) == 1 else tirx.And(*conditions)

    def _chunks_in_front(self, totals: Any, row: Any) -> tirx.Stmt:
        carry, zero = self.held(self.carry), self.number(0)

        def one(i: Any) -> tirx.Stmt:
            total = tirx.BufferLoad(totals, [i * self.number(self.kernel.count) + row])
            return guarded(i < self.chunk, carry.put(zero, self.combined(carry.at(zero), total)))

        return repeated(self.launch.chunks - 1, self.dtype, one, _SERIAL)

    def _step(self, i: Any, row: Any, row_inside: Any) -> tirx.Stmt:
        """One element of a scan by one thread."""
        carry, values, zero = self.held(self.carry), self.held(self.values), self.number(0)
        position, inside = self._position(i)

        def update(_: Any, __: Any) -> tirx.BufferStore:
            value = self.combined(carry.at(zero), self.kernel.term)
            return tirx.BufferStore(carry.buffer, value, [*carry.thread, zero])

        def results(stores: Sequence[tirx.BufferStore]) -> list[tirx.Stmt]:
            if not stores:
                return []
            found = [values.put(zero, carry.at(zero)), *self.results(stores, row, position)]
            return [guarded(row_inside, sequence(found))]

        statements = [
            *results(self.kernel.before),
            self.neighbours(update, row, position),
            *results(self.kernel.after),
        ]
        return guarded(inside, sequence(statements))

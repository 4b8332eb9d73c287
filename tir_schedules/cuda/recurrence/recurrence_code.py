"""Writes the kernel of a recurrent layer for threads: phases of a step, with barriers between.

For each step and product: every thread sums for its unit, over its part of the state, all gates
(``ways`` threads a unit); then the first of them adds up what the others have found and computes
the cell. TVM puts a barrier wherever a phase reads shared memory that the one before has written.
"""

import functools
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.cuda.launch import bound, guarded, repeated
from tvm_ext.tir_schedules.cuda.recurrence.recurrence_places import (
    RecurrenceLaunch,
    RecurrencePlaces,
    UnitPlaces,
)
from tvm_ext.tir_schedules.recurrence.cell import cell_statements
from tvm_ext.tir_schedules.recurrence.description import (
    SUM_UNROLL,
    Activation,
    Product,
    RecurrenceOperands,
)
from tvm_ext.tir_schedules.recurrence.loops import INDEX, SequenceTime, loop, number
from tvm_ext.tir_schedules.statements import sequence


def recurrence_code(
    operands: RecurrenceOperands, launch: RecurrenceLaunch
) -> tuple[tirx.Stmt, list[Any]]:
    """The grid of a layer, and the arrays that it allocates."""
    kernel = RecurrenceKernel(operands, launch)
    return kernel.grid(), kernel.arrays.buffers


class RecurrenceKernel(RecurrencePlaces):
    """All steps of a layer in one launch."""

    def grid(self) -> tirx.Stmt:
        """A block for each direction and group of sequences."""
        batch, rows = self.operands.batch, self.launch.rows
        groups = tirx.FloorDiv(batch + number(rows - 1), number(rows))
        known = static_extent(batch)
        if known is not None:
            groups = number(-(-known // rows))

        def block(index: Any) -> tirx.Stmt:
            self.direction = tirx.FloorDiv(index, groups)
            self.first = tirx.FloorMod(index, groups) * number(rows)
            return sequence([*self._start(), loop(self.operands.steps, self._step), *self._end()])

        blocks = groups * number(self.recurrence.directions)
        count = static_extent(groups)
        if count is not None:
            blocks = count * self.recurrence.directions
        return bound("blockIdx.x", blocks, INDEX, block)

    def _start(self) -> list[tirx.Stmt]:
        zero = tirx.const(0, self.operands.dtype)

        def states(part: int, unit: Any) -> tirx.Stmt:
            found: list[tirx.Stmt] = []
            for row in self.rows:
                for name in (name for name in ("h", "c") if name in self.own):
                    buffer, at = self.element(name, row, part, unit)
                    found.append(tirx.BufferStore(buffer, zero, at))
                    found += self._initial(name, row, part, unit)
                state = tirx.BufferLoad(*self.element("h", row, part, unit))
                shared, where = self.published("h", row, unit)
                found.append(tirx.BufferStore(shared, state, where))
            return sequence(found)

        phases = [self.by_first_way(states, self.recurrence.padded)]
        for product, held in zip(self.recurrence.products(), self.weights, strict=False):
            phases.append(self.threads(functools.partial(self._kept, product, held)))
        return phases

    def _initial(self, name: str, row: int, part: int, unit: Any) -> list[tirx.Stmt]:
        given = self.recurrence.initial_h if name == "h" else self.recurrence.initial_c
        if not given:
            return []
        where = self.operands.state_indices(self.direction, self.row(row), unit)
        value = self.operands.load(f"initial_{name}", *where)
        buffer, at = self.element(name, row, part, unit)
        condition = unit < number(self.recurrence.hidden)
        if self.recurrence.lengths:
            # As in ONNX Runtime, a sequence without a step ends in zeros.
            length = self.operands.load("lengths", self.row(row))
            condition = tirx.And(condition, length > tirx.const(0, str(length.ty)))
        return [guarded(condition, tirx.BufferStore(buffer, value, at))]

    def _kept(self, product: Product, held: Any) -> tirx.Stmt:
        def weights(part: int, unit: Any) -> tirx.Stmt:
            def one(k: Any) -> tirx.Stmt:
                where = self.depth_start() + k
                loads = [
                    tirx.BufferStore(
                        held,
                        self.weight(product, unit, where, place),
                        self.held_at(product, part, k, place),
                    )
                    for place in range(len(product.gates))
                ]
                return guarded(self.in_depth(k), sequence(loads))

            return repeated(self.depth, INDEX, one)

        return self.of_units(weights, self.recurrence.padded)

    def _step(self, step: Any) -> tirx.Stmt:
        phases = []
        for index, product in enumerate(self.recurrence.products()):
            phases += self._product(index, product, step)
            phases.append(self._cell(index, product, step))
        return sequence(phases)

    def _product(self, index: int, product: Product, step: Any) -> list[tirx.Stmt]:
        # The step's input is asked for before the sums, which take the time that it needs.
        found = []
        if index == 0:
            found.append(
                self.by_first_way(lambda p, u: self._fetched(p, u, step), self.recurrence.padded)
            )
        found.append(
            self.threads(
                lambda: self.of_units(
                    lambda part, unit: self._summed(index, product, part, unit),
                    self.recurrence.padded,
                )
            )
        )
        return found

    def _fetched(self, part: int, unit: Any, step: Any) -> tirx.Stmt:
        recurrence = self.recurrence
        units = number(recurrence.units)
        block, lane = tirx.FloorDiv(unit, units), tirx.FloorMod(unit, units)
        found: list[tirx.Stmt] = []
        for row in self.rows:
            time = SequenceTime(self.operands, self.direction, self.row(row), step)
            found += time.binds
            for gate in range(recurrence.gates):
                column = self.direction * number(recurrence.blocks) + block
                column = (column * number(recurrence.gates) + number(gate)) * units + lane
                value = self.operands.projected(time.position, self.row(row), column)
                at = self.projected_at(row, part, gate)
                found.append(tirx.BufferStore(self.projected, value, at))
        return sequence(found)

    def _summed(self, index: int, product: Product, part: int, unit: Any) -> tirx.Stmt:
        """All sums of a unit over the thread's part of the state."""
        sums = self.sums[index]
        places = range(len(product.gates))
        zero = tirx.const(0, self.operands.dtype)
        starts: list[tirx.Stmt] = [
            tirx.BufferStore(sums, zero, self.sum_at(index, row, part, place))
            for row in self.rows
            for place in places
        ]

        def add(k: Any) -> list[tirx.Stmt]:
            found = []
            for place in places:
                weight = self.weight(product, unit, self.depth_start() + k, place)
                if self.weights:
                    at = self.held_at(product, part, k, place)
                    weight = tirx.BufferLoad(self.weights[index], at)
                for row in self.rows:
                    at = self.sum_at(index, row, part, place)
                    state = self.published(product.state, row, self.depth_start() + k)
                    term = tirx.BufferLoad(*state) * weight
                    found.append(tirx.BufferStore(sums, tirx.BufferLoad(sums, at) + term, at))
            return found

        def four(i: Any) -> tirx.Stmt:
            first = i * number(SUM_UNROLL)
            steps = [add(first + number(n)) for n in range(SUM_UNROLL)]
            return guarded(self.in_depth(first), sequence([t for step in steps for t in step]))

        # Registers have no addresses: what is held is named by constants.
        kind = tirx.ForKind.UNROLLED if self.weights else tirx.ForKind.SERIAL
        found = [*starts, repeated(self.depth // SUM_UNROLL, INDEX, four, kind)]
        if self.partial is not None:
            found += [
                tirx.BufferStore(
                    self.partial,
                    tirx.BufferLoad(sums, self.sum_at(index, row, part, place)),
                    [self._partial_at(self.y, row, place, len(places), unit)],
                )
                for row in self.rows
                for place in places
            ]
        return sequence(found)

    def _partial_at(self, way: Any, row: int, place: int, gates: int, unit: Any) -> Any:
        before = (way * number(self.launch.rows) + number(row)) * number(gates) + number(place)
        return before * number(self.units_of_block) + unit - self.first_unit

    def _cell(self, index: int, product: Product, step: Any) -> tirx.Stmt:
        def cells(part: int, unit: Any) -> tirx.Stmt:
            found = []
            for row in self.rows:
                found += self._started(index, product, row, part, unit)
                time = SequenceTime(self.operands, self.direction, self.row(row), step)
                found += time.binds
                one = UnitPlaces(self, index, row, part, unit, time.active)
                found.append(self._activated(index, one))
                if index == len(self.recurrence.products()) - 1:
                    found.append(self._commit(row, part, unit, time))
            return sequence(found)

        return self.by_first_way(cells, self.recurrence.padded)

    def _started(
        self, index: int, product: Product, row: int, part: int, unit: Any
    ) -> list[tirx.Stmt]:
        """The whole sums: the input's part, or the inner bias, and what all ways have summed."""
        found: list[tirx.Stmt] = []
        for place, gate in enumerate(product.gates):
            at = self.sum_at(index, row, part, place)
            value = tirx.BufferLoad(self.projected, self.projected_at(row, part, gate))
            if gate == 2 and "b_candidate" in self.operands.arrays:
                value = self.operands.load("b_candidate", self.direction, unit)
            if self.partial is None:
                terms = [tirx.BufferLoad(self.sums[index], at)]
            else:
                terms = [
                    tirx.BufferLoad(
                        self.partial,
                        [self._partial_at(number(way), row, place, len(product.gates), unit)],
                    )
                    for way in range(self.launch.ways)
                ]
            for term in terms:
                value = value + term
            found.append(tirx.BufferStore(self.sums[index], value, at))
        return found

    def _activated(self, index: int, unit: UnitPlaces) -> tirx.Stmt:
        def of(functions: tuple[Activation, ...]) -> tirx.Stmt:
            return sequence(cell_statements(self.recurrence, index, functions, unit))

        functions = self.recurrence.activations
        if len(set(functions)) == 1:
            return of(functions[0])
        return tirx.IfThenElse(self.direction.equal(number(0)), of(functions[0]), of(functions[1]))

    def _commit(self, row: int, part: int, unit: Any, time: SequenceTime) -> tirx.Stmt:
        """The new state becomes the state and the step's output; zeros behind a sequence's end."""
        next_h = tirx.BufferLoad(*self.element("next_h", row, part, unit))
        state, at = self.element("h", row, part, unit)
        where = self.operands.y_indices(time.position, self.direction, self.row(row), unit)
        y = self.operands.arrays["y"]

        def stored(value: Any) -> tirx.Stmt:
            return guarded(self.inside(row), tirx.BufferStore(y, value, where))

        new = [tirx.BufferStore(state, next_h, at), *self._publish(next_h, row, unit)]
        running = sequence([*new, stored(next_h)])
        if time.active is not None:
            ended = stored(tirx.const(0, self.operands.dtype))
            running = tirx.IfThenElse(time.active, running, ended)
        # The states of the padding stay zero.
        whole = self.recurrence.hidden == self.recurrence.padded
        return guarded(None if whole else unit < number(self.recurrence.hidden), running)

    def _publish(self, state: Any, row: int, unit: Any) -> list[tirx.Stmt]:
        """What shows a unit's new state to all threads."""
        shared, place = self.published("h", row, unit)
        return [tirx.BufferStore(shared, state, place)]

    def _end(self) -> list[tirx.Stmt]:
        def last(part: int, unit: Any) -> tirx.Stmt:
            found = []
            for row in self.rows:
                where = self.operands.state_indices(self.direction, self.row(row), unit)
                for name in ("h", "c") if "c" in self.own else ("h",):
                    value = tirx.BufferLoad(*self.element(name, row, part, unit))
                    store = tirx.BufferStore(self.operands.arrays[f"last_{name}"], value, where)
                    found.append(guarded(self.inside(row), store))
            return sequence(found)

        return [self.by_first_way(last, self.recurrence.hidden)]

"""Writes the kernel of a recurrent layer for threads: phases of a step, with barriers between.

For each step and product: every thread sums for its unit, over its part of the state, all gates
(``ways`` threads a unit); then the first of them adds up what the others have found and
computes the cell. TVM puts a barrier wherever a phase reads shared memory that the one before
has written.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
from tvm_ext.tir_schedules.cuda.launch import ThreadPlane, bound, guarded, repeated
from tvm_ext.tir_schedules.operators.recurrence import (
    INDEX,
    SUM_UNROLL,
    Activation,
    Recurrence,
    RecurrenceOperands,
    RecurrentMatmul,
    SequenceTime,
    cell_statements,
    loop,
    number,
)
from tvm_ext.tir_schedules.statements import sequence

# Where the threads of a recurrent layer stand, and where its values are.


@dataclass(frozen=True)
class RecurrenceLaunch:
    """How a block of threads works on its sequences.

    Attributes
    ----------
    rows : int
        Sequences of a block.
    units : int
        Units at a time, threads along x; a thread takes every ``units``-th one.
    ways : int
        Threads along y, which share the sum of a unit.
    held : bool
        Whether a thread keeps its weights in registers over all steps.
    blocks : int
        Blocks that share the units of a layer; with more than one, each step is a launch.
    """

    rows: int
    units: int
    ways: int
    held: bool
    blocks: int = 1

    def depth(self, recurrence: Recurrence) -> int:
        """Elements of the state over which a thread sums."""
        return -(-recurrence.summed // (SUM_UNROLL * self.ways)) * SUM_UNROLL


class RecurrencePlaces(ThreadPlane):
    """The threads of a recurrence under a launch, and the places of its values."""

    def __init__(self, operands: RecurrenceOperands, launch: RecurrenceLaunch) -> None:
        super().__init__((launch.ways, launch.units), INDEX)
        self.operands, self.launch = operands, launch
        self.recurrence = operands.recurrence
        self.parts = range(-(-self.recurrence.padded // (launch.units * launch.blocks)))
        self.rows = range(launch.rows)
        self.direction = self.first = self.first_unit = number(0)
        size = launch.rows * self.recurrence.padded
        shared = ("h", "rh") if len(self.recurrence.products()) > 1 else ("h",)
        self.shared = {name: self._allocated(name, [size], "shared") for name in shared}
        # A thread has the state of its own units in registers as well.
        own = [name for name in self.recurrence.states() if name != "rh"]
        count = launch.rows * len(self.parts)
        self.own = {name: self._of_threads(name, count) for name in own}
        self.projected = self._of_threads("projected", count * self.recurrence.gates)
        self.sums = [self._sums(product) for product in self.recurrence.products()]
        self.weights: list[Any] = []
        if launch.held:
            self.weights = [self._held(product) for product in self.recurrence.products()]
        self.partial = self._partial() if launch.ways > 1 else None

    def _allocated(self, name: str, shape: list[int], scope: str) -> tirx.Buffer:
        return self.arrays.allocated(name, shape, self.operands.dtype, scope)

    def _of_threads(self, name: str, count: int) -> tirx.Buffer:
        return self._allocated(name, [self.launch.ways, self.launch.units, count], "local")

    def _sums(self, product: RecurrentMatmul) -> tirx.Buffer:
        count = self.launch.rows * len(self.parts) * len(product.gates)
        return self._of_threads(f"sums_{product.weights}", count)

    def _held(self, product: RecurrentMatmul) -> tirx.Buffer:
        count = len(self.parts) * self.depth * len(product.gates)
        return self._of_threads(f"held_{product.weights}", count)

    def _partial(self) -> tirx.Buffer:
        # One for all products, which is in use all the time: TVM would put a state into the memory
        # of one that has been read, and a barrier between the read and the store, in a branch.
        gates = max(len(product.gates) for product in self.recurrence.products())
        count = self.launch.ways * self.launch.rows * gates * self.units_of_block
        return self._allocated("partial", [count], "shared")

    @property
    def units_of_block(self) -> int:
        """Units whose sums one block has."""
        return self.recurrence.padded // self.launch.blocks

    def of_units(self, body: Callable[[int, Any], tirx.Stmt], end: int) -> tirx.Stmt:
        """``body`` for each of the thread's units below ``end``, by its number and its place."""
        found = []
        for part in self.parts:
            unit = self.first_unit + self.x + number(part * self.launch.units)
            whole = (part + 1) * self.launch.units * self.launch.blocks <= end
            found.append(guarded(None if whole else unit < number(end), body(part, unit)))
        return sequence(found)

    def by_first_way(self, body: Callable[[int, Any], tirx.Stmt], end: int) -> tirx.Stmt:
        """The same, by one of the threads that share a unit."""

        def first() -> tirx.Stmt:
            condition = None if self.launch.ways == 1 else self.y.equal(number(0))
            return guarded(condition, self.of_units(body, end))

        return self.threads(first)

    def row(self, row: int) -> tvm.ir.Expr:
        """The sequence's number in the batch; behind the last one it is the last."""
        place = self.first + number(row)
        if self.all_inside:
            return place
        return tirx.Min(place, self.operands.batch - number(1))

    @property
    def all_inside(self) -> bool:
        batch = static_extent(self.operands.batch)
        return self.launch.rows == 1 or (batch is not None and batch % self.launch.rows == 0)

    def inside(self, row: int) -> tirx.Expr | None:
        """Whether there is the sequence; None where there are all."""
        return None if self.all_inside else self.first + number(row) < self.operands.batch

    def element(self, name: str, row: int, part: int, unit: tvm.ir.Expr) -> tuple[Any, list[Any]]:
        """A state of a unit, of which the thread that computes the cell knows."""
        if name == "rh":
            return self.published(name, row, unit)
        index = number(row * len(self.parts) + part)
        return self.own[name], [self.y, self.x, index]

    def published(self, name: str, row: int, unit: tvm.ir.Expr) -> tuple[Any, list[Any]]:
        """A state of a unit where all threads see it."""
        return self.shared[name], [number(row * self.recurrence.padded) + unit]

    def sum_at(self, index: int, row: int, part: int, place: int) -> list[tvm.ir.Expr]:
        """Where a thread has the sum of a gate."""
        gates = len(self.recurrence.products()[index].gates)
        at = (row * len(self.parts) + part) * gates + place
        return [self.y, self.x, number(at)]

    def projected_at(self, row: int, part: int, gate: int) -> list[tvm.ir.Expr]:
        """Where a thread has the part of a gate's sum that comes from the input."""
        at = (row * len(self.parts) + part) * self.recurrence.gates + gate
        return [self.y, self.x, number(at)]

    @property
    def depth(self) -> int:
        """Elements of the state over which a thread sums, the last ``ways`` over fewer."""
        return self.launch.depth(self.recurrence)

    def in_depth(self, k: tvm.ir.Expr) -> Any:
        """Whether the state has element ``k`` of the thread's part; None where it always has."""
        summed = self.recurrence.summed
        if self.depth * self.launch.ways == summed:
            return None
        return self.depth_start() + k < number(summed)

    def depth_start(self) -> tvm.ir.Expr:
        return self.y * number(self.depth)

    def held_at(
        self, product: RecurrentMatmul, part: int, k: tvm.ir.Expr, place: int
    ) -> list[tvm.ir.Expr]:
        gates = number(len(product.gates))
        return [self.y, self.x, (number(part * self.depth) + k) * gates + number(place)]

    def weight(
        self, product: RecurrentMatmul, unit: tvm.ir.Expr, k: tvm.ir.Expr, place: int
    ) -> tvm.ir.Expr:
        units = number(self.recurrence.units)
        block, lane = tirx.FloorDiv(unit, units), tirx.FloorMod(unit, units)
        return self.operands.load(product.weights, self.direction, block, number(place), k, lane)


@dataclass
class UnitPlaces:
    """See ``cell.Unit``; ``place`` is its row, its part and its unit."""

    kernel: RecurrencePlaces
    index: int
    place: tuple[int, int, tvm.ir.Expr]
    active: Any

    def gate(self, index: int) -> tvm.ir.Expr:
        """See ``cell.Unit``."""
        row, part, _ = self.place
        kernel = self.kernel
        place = kernel.recurrence.products()[self.index].gates.index(index)
        return tirx.BufferLoad(kernel.sums[self.index], kernel.sum_at(self.index, row, part, place))

    def projected(self, index: int) -> tirx.Expr:
        """See ``cell.Unit``."""
        row, part, _ = self.place
        return tirx.BufferLoad(self.kernel.projected, self.kernel.projected_at(row, part, index))

    def peephole(self, index: int) -> tirx.Expr:
        """See ``cell.Unit``."""
        where = self.kernel.direction, number(index), self.place[2]
        return self.kernel.operands.load("peepholes", *where)

    def state(self, name: str) -> tvm.ir.Expr:
        """See ``cell.Unit``."""
        return tirx.BufferLoad(*self.kernel.element(name, *self.place))

    def put(self, name: str, value: tvm.ir.Expr) -> tirx.Stmt:
        """See ``cell.Unit``."""
        buffer, at = self.kernel.element(name, *self.place)
        return tirx.BufferStore(buffer, value, at)


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

        def block(index: tvm.ir.Expr) -> tirx.Stmt:
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

        def states(part: int, unit: tvm.ir.Expr) -> tirx.Stmt:
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

    def _initial(self, name: str, row: int, part: int, unit: tvm.ir.Expr) -> list[tirx.Stmt]:
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

    def _kept(self, product: RecurrentMatmul, held: tirx.Buffer) -> tirx.Stmt:
        def weights(part: int, unit: tvm.ir.Expr) -> tirx.Stmt:
            def iteration(k: tvm.ir.Expr) -> tirx.Stmt:
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

            return repeated(self.depth, INDEX, iteration)

        return self.of_units(weights, self.recurrence.padded)

    def _step(self, step: tvm.ir.Expr) -> tirx.Stmt:
        phases = []
        for index, product in enumerate(self.recurrence.products()):
            phases += self._product(index, product, step)
            phases.append(self._cell(index, product, step))
        return sequence(phases)

    def _product(self, index: int, product: RecurrentMatmul, step: tvm.ir.Expr) -> list[tirx.Stmt]:
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

    def _fetched(self, part: int, unit: tvm.ir.Expr, step: tvm.ir.Expr) -> tirx.Stmt:
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

    def _summed(
        self, index: int, product: RecurrentMatmul, part: int, unit: tvm.ir.Expr
    ) -> tirx.Stmt:
        """All sums of a unit over the thread's part of the state."""
        sums = self.sums[index]
        places = range(len(product.gates))
        zero = tirx.const(0, self.operands.dtype)
        starts: list[tirx.Stmt] = [
            tirx.BufferStore(sums, zero, self.sum_at(index, row, part, place))
            for row in self.rows
            for place in places
        ]

        def add(k: tvm.ir.Expr) -> list[tirx.Stmt]:
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

        def four(i: tvm.ir.Expr) -> tirx.Stmt:
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

    def _partial_at(
        self, way: tvm.ir.Expr, row: int, place: int, gates: int, unit: tvm.ir.Expr
    ) -> tvm.ir.Expr:
        before = (way * number(self.launch.rows) + number(row)) * number(gates) + number(place)
        return before * number(self.units_of_block) + unit - self.first_unit

    def _cell(self, index: int, product: RecurrentMatmul, step: tvm.ir.Expr) -> tirx.Stmt:
        def cells(part: int, unit: tvm.ir.Expr) -> tirx.Stmt:
            found = []
            for row in self.rows:
                found += self._started(index, product, row, part, unit)
                time = SequenceTime(self.operands, self.direction, self.row(row), step)
                found += time.binds
                one = UnitPlaces(self, index, (row, part, unit), time.active)
                found.append(self._activated(index, one))
                if index == len(self.recurrence.products()) - 1:
                    found.append(self._commit(row, part, unit, time))
            return sequence(found)

        return self.by_first_way(cells, self.recurrence.padded)

    def _started(
        self, index: int, product: RecurrentMatmul, row: int, part: int, unit: tvm.ir.Expr
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

    def _commit(self, row: int, part: int, unit: tvm.ir.Expr, time: SequenceTime) -> tirx.Stmt:
        """The new state becomes the state and the step's output; zeros behind a sequence's end."""
        next_h = tirx.BufferLoad(*self.element("next_h", row, part, unit))
        state, at = self.element("h", row, part, unit)
        where = self.operands.y_indices(time.position, self.direction, self.row(row), unit)
        y = self.operands.arrays["y"]

        def stored(value: tvm.ir.Expr) -> tirx.Stmt:
            return guarded(self.inside(row), tirx.BufferStore(y, value, where))

        new = [tirx.BufferStore(state, next_h, at), *self._publish(next_h, row, unit)]
        running = sequence([*new, stored(next_h)])
        if time.active is not None:
            ended = stored(tirx.const(0, self.operands.dtype))
            running = tirx.IfThenElse(time.active, running, ended)
        # The states of the padding stay zero.
        whole = self.recurrence.hidden == self.recurrence.padded
        return guarded(None if whole else unit < number(self.recurrence.hidden), running)

    def _publish(self, state: tvm.ir.Expr, row: int, unit: tvm.ir.Expr) -> list[tirx.Stmt]:
        """What shows a unit's new state to all threads."""
        shared, place = self.published("h", row, unit)
        return [tirx.BufferStore(shared, state, place)]

    def _end(self) -> list[tirx.Stmt]:
        def last(part: int, unit: tvm.ir.Expr) -> tirx.Stmt:
            found = []
            for row in self.rows:
                where = self.operands.state_indices(self.direction, self.row(row), unit)
                for name in ("h", "c") if "c" in self.own else ("h",):
                    value = tirx.BufferLoad(*self.element(name, row, part, unit))
                    store = tirx.BufferStore(self.operands.arrays[f"last_{name}"], value, where)
                    found.append(guarded(self.inside(row), store))
            return sequence(found)

        return [self.by_first_way(last, self.recurrence.hidden)]

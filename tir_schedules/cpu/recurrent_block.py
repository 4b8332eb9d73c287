"""A block of units in one step of a recurrent layer: its sums, and what becomes of them.

Sums are in registers, of as many sequences and gates as fit. They may wait in memory between parts
of the summed axis, so that the weights of a part stay in L1 for all sequences.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.tir_schedules.cpu.quantized_state import StateDotProduct
from tvm_ext.tir_schedules.operators.recurrence import (
    SUM_UNROLL,
    Activation,
    Recurrence,
    RecurrenceLoops,
    RecurrenceOperands,
    RecurrentMatmul,
    SequenceTime,
    cell_statements,
    loop,
    number,
    vectors,
)
from tvm_ext.tir_schedules.statements import sequence, stack_array


@dataclass(frozen=True)
class Group:
    """Sequences in one direction that take each step together.

    Attributes
    ----------
    operands : RecurrenceOperands
        The kernel's arrays.
    loops : RecurrenceLoops
        How loops are written.
    functions : tuple[Activation, ...]
        The direction's activations.
    direction : Expr
        Its number.
    first : Expr
        The first sequence's number in the batch.
    parts : Expr
        How many times ``loops.rows`` sequences there are.
    states : dict[str, Buffer]
        Arrays of ``[sequences, padded]`` by the names of ``Recurrence.states``.
    dot : StateDotProduct or None
        What multiplies the rounded state in integers; None: its steps are multiplied as floats.
    """

    operands: RecurrenceOperands
    loops: RecurrenceLoops
    functions: tuple[Activation, ...]
    direction: tirx.Expr
    first: tirx.Expr
    parts: tirx.Expr
    states: dict[str, Any]
    dot: StateDotProduct | None

    @property
    def sum_type(self) -> str:
        """Type of the sums."""
        return self.operands.dtype if self.dot is None else self.dot.sum_type

    def at(self, row: tvm.ir.Expr, unit: tvm.ir.Expr) -> tvm.ir.Expr:
        """Index into an array of states."""
        return row * number(self.operands.recurrence.padded) + unit

    def time(self, row: tvm.ir.Expr, step: tvm.ir.Expr) -> SequenceTime:
        """Where a sequence of the group is in a step."""
        return SequenceTime(self.operands, self.direction, self.first + row, step)


@dataclass(frozen=True)
class _Rows:
    """Sequences whose sums are in registers together: their numbers in the group, and times."""

    numbers: list[tvm.ir.Expr]
    times: list[SequenceTime]

    @staticmethod
    def of(group: Group, part: tvm.ir.Expr, step: tvm.ir.Expr) -> "_Rows":
        """Those of a part of the group."""
        start = part * number(group.loops.rows)
        numbers = [start + number(row) for row in range(group.loops.rows)]
        return _Rows(numbers, [group.time(row, step) for row in numbers])

    def with_times(self, statements: list[tirx.Stmt]) -> tirx.Stmt:
        """``statements`` behind what they need to know of the times."""
        return sequence([*(bind for time in self.times for bind in time.binds), *statements])


@dataclass(frozen=True)
class BlockPart:
    """Some units of a block in one step of a group's sequences.

    Attributes
    ----------
    group : Group
        What takes the step.
    index : int
        The number of the product in ``Recurrence.products``.
    step, block, offset : Expr
        The number of the step and of the block, and the first unit in it.
    """

    group: Group
    index: int
    step: tvm.ir.Expr
    block: tvm.ir.Expr
    offset: tvm.ir.Expr

    @property
    def recurrence(self) -> Recurrence:
        """What the layer is."""
        return self.group.operands.recurrence

    @property
    def product(self) -> RecurrentMatmul:
        """What is multiplied."""
        return self.recurrence.products()[self.index]

    def statement(self) -> tirx.Stmt:
        """The sums of all gates, then the gates and new state."""
        if self.group.loops.depth:
            return self._through_memory()
        return self._each_rows(lambda rows, _: self._in_registers(rows))

    def _each_rows(self, body: Callable[[_Rows, Any], list[tirx.Stmt]]) -> tirx.Stmt:
        """``body`` of each part of the sequences, and its number."""

        def rows_of(at: tvm.ir.Expr) -> tirx.Stmt:
            rows = _Rows.of(self.group, at, self.step)
            return rows.with_times(body(rows, at))

        return loop(self.group.parts, rows_of)

    def _gates_at_a_time(self) -> list[range]:
        """Their places in the product."""
        every = range(len(self.product.gates))
        count = self.group.loops.gates
        return [every[start : start + count] for start in range(0, len(every), count)]

    def _in_registers(self, rows: _Rows) -> list[tirx.Stmt]:
        sums = [_GateSums(self, places, rows) for places in self._gates_at_a_time()]

        def total(row: int, place: int, lane: tvm.ir.Expr) -> tvm.ir.Expr:
            (one,) = (one for one in sums if place in one.places)
            return one.sum_at((0, row, place), lane)

        return [*(one.whole() for one in sums), *self._used(rows, total)]

    def _through_memory(self) -> tirx.Stmt:
        """The sums of all sequences wait in an array between parts of the summed axis, so that the
        weights of a part are in a core's L1 for all of them.
        """
        loops, gates = self.group.loops, len(self.product.gates)
        dtype = self.group.sum_type
        each = loops.rows * gates * loops.units
        most = max(1, loops.sequences // loops.rows)
        kept, declaration = stack_array(number(most * each), dtype, "kept_sums")

        def place_of(at: Any, row: int, place: int, lane: Any) -> Any:
            return at * number(each) + number((row * gates + place) * loops.units) + lane

        def started(rows: _Rows, at: tvm.ir.Expr) -> list[tirx.Stmt]:
            def start(row: int, place: int, lane: tvm.ir.Expr) -> tirx.Stmt:
                value = self.started(rows, row, self.product.gates[place], lane)
                return tirx.BufferStore(kept, value, [place_of(at, row, place, lane)])

            every = [(row, place) for row in range(loops.rows) for place in range(gates)]
            return [s for at in every for s in vectors(loops.units, partial(start, *at))]

        def used(rows: _Rows, at: tvm.ir.Expr) -> list[tirx.Stmt]:
            return self._used(rows, lambda *one: tirx.BufferLoad(kept, [place_of(at, *one)]))

        def added(places: range, part: tvm.ir.Expr) -> tirx.Stmt:
            def some(at: tvm.ir.Expr) -> tirx.Stmt:
                sums = _GateSums(self, places, _Rows.of(self.group, at, self.step))
                return sums.further(kept, lambda *one: place_of(at, *one), part)

            return loop(self.group.parts, some)

        parts = self.recurrence.summed // loops.depth
        sums = [loop(parts, partial(added, places)) for places in self._gates_at_a_time()]
        return sequence([declaration, self._each_rows(started), *sums, self._each_rows(used)])

    def started(self, rows: _Rows, row: int, gate: int, lane: tvm.ir.Expr) -> tvm.ir.Expr:
        """What a sum starts with."""
        if self.recurrence.integer_weights:
            return tirx.const(0, self.group.sum_type)
        operands = self.group.operands
        if gate == 2 and "b_candidate" in operands.arrays:
            return operands.load("b_candidate", self.group.direction, self.unit(lane))
        return self.projected(rows, row, gate, lane)

    def projected(self, rows: _Rows, row: int, gate: int, lane: tvm.ir.Expr) -> tvm.ir.Expr:
        """The part of a sum that comes from the input."""
        group = self.group
        shape = (self.recurrence.blocks, self.recurrence.gates, self.recurrence.units)
        column = group.direction * number(shape[0]) + self.block
        column = (column * number(shape[1]) + number(gate)) * number(shape[2])
        where = rows.times[row].position, group.first + rows.numbers[row]
        return group.operands.projected(*where, column + self.offset + lane)

    def unit(self, lane: tvm.ir.Expr) -> tvm.ir.Expr:
        """The unit's number in the layer."""
        return self.block * number(self.recurrence.units) + self.offset + lane

    def _used(self, rows: _Rows, total: Callable[..., tvm.ir.Expr]) -> list[tirx.Stmt]:
        """Gates and new state of each sequence; ``total`` gives its sums by gates' places."""
        found: list[tirx.Stmt] = []
        for row in range(len(rows.numbers)):

            def cell(lane: tvm.ir.Expr, row: int = row) -> tirx.Stmt:
                unit = _CellUnit(self, rows, row, lane, total)
                functions = self.group.functions
                return sequence(cell_statements(self.recurrence, self.index, functions, unit))

            found += vectors(self.group.loops.units, cell)
        return found


class _GateSums:
    """The sums of some gates, by their ``places`` in the product, of some sequences."""

    def __init__(self, part: BlockPart, places: range, rows: _Rows) -> None:
        self.part = part
        self.places = places
        self.rows = rows
        self.group = part.group
        self.operands = part.group.operands
        self.units = self.group.loops.units
        # As many sums in a product of few gates as in one of more.
        fewer = max(1, self.group.loops.gates // len(places))
        self.ways = min(SUM_UNROLL, self.group.loops.ways * fewer)
        count = self.ways * len(rows.numbers) * len(places) * self.units
        self.sums, self.declaration = stack_array(number(count), self.group.sum_type, "sums")

    def whole(self) -> tirx.Stmt:
        """From what they start with to their ends."""
        gates = self.part.product.gates

        def start(at: tuple[int, int, int], lane: tvm.ir.Expr) -> tvm.ir.Expr:
            return self.part.started(self.rows, at[1], gates[at[2]], lane)

        steps = self._steps(number(0), self.part.recurrence.summed)
        return sequence([self.declaration, *self._started(start), steps, *self._added()])

    def further(
        self, kept: tirx.Buffer, place_of: Callable[..., tvm.ir.Expr], part: tvm.ir.Expr
    ) -> tirx.Stmt:
        """One part of the summed axis, on what ``kept`` has where ``place_of`` says."""

        def start(at: tuple[int, int, int], lane: tvm.ir.Expr) -> tvm.ir.Expr:
            return tirx.BufferLoad(kept, [place_of(*at[1:], lane)])

        def end(at: tuple[int, int, int], lane: tvm.ir.Expr) -> tirx.Stmt:
            return tirx.BufferStore(kept, self.sum_at(at, lane), [place_of(*at[1:], lane)])

        depth = self.group.loops.depth
        steps = self._steps(part * number(depth // SUM_UNROLL), depth)
        ends = [stmt for at in self._all(1) for stmt in vectors(self.units, partial(end, at))]
        return sequence([self.declaration, *self._started(start), steps, *self._added(), *ends])

    def _sum_index(self, at: tuple[int, int, int], lane: tvm.ir.Expr) -> tvm.ir.Expr:
        """Where a partial sum is: its number, the sequence, and the gate's place in the product."""
        way, row, place = at
        before = (way * len(self.rows.numbers) + row) * len(self.places)
        return number((before + place - self.places.start) * self.units) + lane

    def sum_at(self, at: tuple[int, int, int], lane: tvm.ir.Expr) -> tvm.ir.Expr:
        """A partial sum: its number, the sequence, and the gate's place in the product."""
        return tirx.BufferLoad(self.sums, [self._sum_index(at, lane)])

    def _put(self, at: tuple[int, int, int], value: tvm.ir.Expr, lane: tvm.ir.Expr) -> tirx.Stmt:
        return tirx.BufferStore(self.sums, value, [self._sum_index(at, lane)])

    def _all(self, ways: int) -> list[tuple[int, int, int]]:
        rows = range(len(self.rows.numbers))
        return [(way, row, place) for way in range(ways) for row in rows for place in self.places]

    def _started(self, start: Callable[..., tvm.ir.Expr]) -> list[tirx.Stmt]:
        zero = tirx.const(0, str(self.sums.dtype))

        def put(at: tuple[int, int, int], lane: tvm.ir.Expr) -> tirx.Stmt:
            return self._put(at, zero if at[0] else start(at, lane), lane)

        return [s for at in self._all(self.ways) for s in vectors(self.units, partial(put, at))]

    def _steps(self, first: tvm.ir.Expr, depth: int) -> tirx.Stmt:
        """``depth`` steps of all sums, from ``SUM_UNROLL`` times ``first`` on."""
        dot = self.group.dot

        def multiplied(i: tvm.ir.Expr) -> tirx.Stmt:
            four = first + i
            return self._multiplied(four) if dot is None else self._dot_products(dot, four)

        return loop(depth // SUM_UNROLL, multiplied)

    def _multiplied(self, four: tvm.ir.Expr) -> tirx.Stmt:
        """``SUM_UNROLL`` steps of all sums."""
        state = self.group.states[self.part.product.state]
        found: list[tirx.Stmt] = []
        for step in range(SUM_UNROLL):
            k = four * number(SUM_UNROLL) + number(step)
            way = step % self.ways
            for _, row, place in self._all(1):
                scalar = tirx.BufferLoad(state, [self.group.at(self.rows.numbers[row], k)])
                found += self._multiply_add((way, row, place), k, scalar)
        return sequence(found)

    def _multiply_add(
        self, at: tuple[int, int, int], k: tvm.ir.Expr, scalar: tvm.ir.Expr
    ) -> list[tirx.Stmt]:
        def lanes(lane: tvm.ir.Expr) -> tirx.Stmt:
            column = self.part.offset + lane
            where = (self.group.direction, self.part.block, number(at[2]), k, column)
            weights = self.operands.load(self.part.product.weights, *where)
            weight = weights.astype(self.operands.dtype)
            return self._put(at, self.sum_at(at, lane) + scalar * weight, lane)

        return vectors(self.units, lanes)

    def _dot_products(self, dot: StateDotProduct, four: tvm.ir.Expr) -> tirx.Stmt:
        """``SUM_UNROLL`` steps of all sums, several of which an instruction adds to a vector."""
        several = SUM_UNROLL // dot.steps
        every = [four * number(several) + number(n) for n in range(several)]
        return sequence([stmt for step in every for stmt in self._dot_product(dot, step)])

    def _dot_product(self, dot: StateDotProduct, step: tvm.ir.Expr) -> list[tirx.Stmt]:
        """The steps that an instruction adds, of all sums."""
        found: list[tirx.Stmt] = []
        for row, number_of_row in enumerate(self.rows.numbers):
            first = self.group.at(number_of_row, step * number(dot.steps))
            state = dot.state(self.group.states["rounded_h"], first)
            for place in self.places:
                for lane in range(0, self.units, dot.lanes):
                    column = self.part.offset + number(lane)
                    where = self.group.direction, self.part.block, number(place), step, column
                    at = self._sum_index((0, row, place), number(lane))
                    index = [tirx.Ramp(at, 1, dot.lanes)]
                    total = dot.added(tirx.BufferLoad(self.sums, index), state, where)
                    found.append(tirx.BufferStore(self.sums, total, index))
        return found

    def _added(self) -> list[tirx.Stmt]:
        """Partial sums added up, two by two."""
        found: list[tirx.Stmt] = []
        ways = self.ways
        while ways > 1:
            ways //= 2
            for at in self._all(ways):
                found += self._added_at(at, ways)
        return found

    def _added_at(self, at: tuple[int, int, int], further: int) -> list[tirx.Stmt]:
        other = (at[0] + further, *at[1:])

        def add(lane: tvm.ir.Expr) -> tirx.Stmt:
            return self._put(at, self.sum_at(at, lane) + self.sum_at(other, lane), lane)

        return vectors(self.units, add)


class _CellUnit:
    """See ``cell.Unit``."""

    def __init__(
        self,
        part: BlockPart,
        rows: _Rows,
        row: int,
        lane: tvm.ir.Expr,
        total: Callable[..., tvm.ir.Expr],
    ) -> None:
        self.part = part
        self.group = part.group
        self.rows = rows
        self.row = row
        self.lane = lane
        self.total = total
        self.active = rows.times[row].active

    def gate(self, index: int) -> tvm.ir.Expr:
        """See ``cell.Unit``."""
        part, load = self.part, self.group.operands.load
        total = self.total(self.row, part.product.gates.index(index), self.lane)
        if not part.recurrence.integer_weights:
            return total
        where = self.group.direction, part.block, number(index), part.offset + self.lane
        if self.group.dot is not None:
            states, row = self.group.states, self.rows.numbers[self.row]
            column_sum = load("r_sums", *where)
            total = self.group.dot.in_steps_of_the_state(states, row, total, column_sum)
        return self.projected(index) + load("r_scale", *where) * total

    def projected(self, index: int) -> tirx.Expr:
        """See ``cell.Unit``."""
        return self.part.projected(self.rows, self.row, index, self.lane)

    def peephole(self, index: int) -> tirx.Expr:
        """See ``cell.Unit``."""
        where = self.group.direction, number(index), self.part.unit(self.lane)
        return self.group.operands.load("peepholes", *where)

    def state(self, name: str) -> tvm.ir.Expr:
        """See ``cell.Unit``."""
        return tirx.BufferLoad(self.group.states[name], [self._index()])

    def put(self, name: str, value: tvm.ir.Expr) -> tirx.Stmt:
        """See ``cell.Unit``."""
        return tirx.BufferStore(self.group.states[name], value, [self._index()])

    def _index(self) -> tvm.ir.Expr:
        return self.group.at(self.rows.numbers[self.row], self.part.unit(self.lane))

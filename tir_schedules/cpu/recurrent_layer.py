"""Recurrent layers: all steps in one kernel, the sums of a block of units in registers.

A step multiplies the state with the recurrent weights, which fill a cache level and are read from
beginning to end: contiguous vectors, one multiply-add each, and nothing else in the inner loop.
"""

from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
from tvm_ext.tir_schedules.cpu.quantized_state import QuantizedState, StateDotProduct
from tvm_ext.tir_schedules.cpu.recurrent_decision import decide_recurrence
from tvm_ext.tir_schedules.cpu.row_code import with_body
from tvm_ext.tir_schedules.operators.recurrence import (
    SUM_UNROLL,
    Activation,
    Body,
    Recurrence,
    RecurrenceLoops,
    RecurrenceOperands,
    RecurrentMatmul,
    SequenceTime,
    cell_statements,
    loop,
    number,
    recurrence_of,
    vectors,
)
from tvm_ext.tir_schedules.statements import sequence, stack_array
from tvm_ext.tir_schedules.template import Decisions

# A block of units in one step of a recurrence: its sums in registers, and what becomes of them.


@dataclass(frozen=True)
class Group:
    """Some sequences in one direction.

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
    rows : tuple[Expr, ...]
        The sequences' numbers in the batch.
    states : dict[str, Buffer]
        Arrays of ``[rows, padded]`` by the names of ``Recurrence.states``.
    dot : StateDotProduct or None
        What multiplies the rounded state in integers; None: its steps are multiplied as floats.
    """

    operands: RecurrenceOperands
    loops: RecurrenceLoops
    functions: tuple[Activation, ...]
    direction: tirx.Expr
    rows: tuple[tirx.Expr, ...]
    states: dict[str, Any]
    dot: StateDotProduct | None

    def at(self, row: int, unit: tvm.ir.Expr) -> tvm.ir.Expr:
        """Index into an array of states."""
        return number(row * self.operands.recurrence.padded) + unit


class Block:
    """The sums of some units of a block, and what becomes of them."""

    def __init__(
        self,
        group: Group,
        index: int,
        product: RecurrentMatmul,
        times: list[SequenceTime],
        block: tvm.ir.Expr,
        offset: tvm.ir.Expr,
    ) -> None:
        self.group = group
        self.index = index
        self.product = product
        self.times = times
        self.block = block
        self.offset = offset
        self.units = group.loops.units
        self.recurrence = group.operands.recurrence
        self.operands = group.operands
        # As many sums in a product of few gates as in one of more.
        most = max(len(other.gates) for other in self.recurrence.products())
        self.ways = min(SUM_UNROLL, group.loops.ways * (most // len(product.gates)))
        count = self.ways * len(group.rows) * len(product.gates) * self.units
        dtype = self.operands.dtype if group.dot is None else group.dot.sum_type
        self.sums, self.declaration = stack_array(number(count), dtype, "sums")

    def statement(self) -> tirx.Stmt:
        """All of it."""
        dot = self.group.dot

        def multiplied(four: tvm.ir.Expr) -> tirx.Stmt:
            return self._multiplied(four) if dot is None else self._dot_products(dot, four)

        steps = loop(self.recurrence.summed // SUM_UNROLL, multiplied)
        return sequence([self.declaration, *self._started(), steps, *self._added(), *self._used()])

    def sum_index(self, way: int, row: int, place: int, lane: tvm.ir.Expr) -> tvm.ir.Expr:
        """Where the partial sum number ``way`` of the product's gate number ``place`` is."""
        before = (way * len(self.times) + row) * len(self.product.gates) + place
        return number(before * self.units) + lane

    def sum_at(self, way: int, row: int, place: int, lane: tvm.ir.Expr) -> tvm.ir.Expr:
        """That partial sum."""
        return tirx.BufferLoad(self.sums, [self.sum_index(way, row, place, lane)])

    def projected(self, row: int, gate: int, lane: tvm.ir.Expr) -> tvm.ir.Expr:
        """The part of a sum that comes from the input."""
        shape = (self.recurrence.blocks, self.recurrence.gates, self.recurrence.units)
        column = self.group.direction * number(shape[0]) + self.block
        column = (column * number(shape[1]) + number(gate)) * number(shape[2])
        where = self.times[row].position, self.group.rows[row]
        return self.operands.projected(*where, column + self.offset + lane)

    def unit(self, lane: tvm.ir.Expr) -> tvm.ir.Expr:
        """The unit's number in the layer."""
        return self.block * number(self.recurrence.units) + self.offset + lane

    def _places(self, ways: int) -> list[tuple[int, int, int]]:
        rows, places = range(len(self.times)), range(len(self.product.gates))
        return [(way, row, place) for way in range(ways) for row in rows for place in places]

    def _started(self) -> list[tirx.Stmt]:
        return [stmt for at in self._places(self.ways) for stmt in self._started_at(at)]

    def _started_at(self, at: tuple[int, int, int]) -> list[tirx.Stmt]:
        way, row, place = at
        gate = self.product.gates[place]

        def start(lane: tvm.ir.Expr) -> tvm.ir.Expr:
            if way or self.recurrence.integer_weights:
                return tirx.const(0, str(self.sums.dtype))
            if gate == 2 and "b_candidate" in self.operands.arrays:
                return self.operands.load("b_candidate", self.group.direction, self.unit(lane))
            return self.projected(row, gate, lane)

        return vectors(self.units, lambda lane: self._put(at, start(lane), lane))

    def _put(self, at: tuple[int, int, int], value: tvm.ir.Expr, lane: tvm.ir.Expr) -> tirx.Stmt:
        return tirx.BufferStore(self.sums, value, [self.sum_index(*at, lane)])

    def _multiplied(self, four: tvm.ir.Expr) -> tirx.Stmt:
        """``SUM_UNROLL`` steps of all sums."""
        state = self.group.states[self.product.state]
        found: list[tirx.Stmt] = []
        for part in range(SUM_UNROLL):
            k = four * number(SUM_UNROLL) + number(part)
            way = part % self.ways
            for _, row, place in self._places(1):
                scalar = tirx.BufferLoad(state, [self.group.at(row, k)])
                found += self._multiply_add((way, row, place), k, scalar)
        return sequence(found)

    def _multiply_add(
        self, at: tuple[int, int, int], k: tvm.ir.Expr, scalar: tvm.ir.Expr
    ) -> list[tirx.Stmt]:
        def lanes(lane: tvm.ir.Expr) -> tirx.Stmt:
            where = (self.group.direction, self.block, k, number(at[2]), self.offset + lane)
            weight = self.operands.load(self.product.weights, *where).astype(self.operands.dtype)
            return self._put(at, self.sum_at(*at, lane) + scalar * weight, lane)

        return vectors(self.units, lanes)

    def _dot_products(self, dot: StateDotProduct, four: tvm.ir.Expr) -> tirx.Stmt:
        """``SUM_UNROLL`` steps of all sums, which one instruction adds to a vector of them."""
        found: list[tirx.Stmt] = []
        for row in range(len(self.times)):
            first = self.group.at(row, four * number(SUM_UNROLL))
            state = dot.state(self.group.states["rounded_h"], first)
            for place in range(len(self.product.gates)):
                for lane in range(0, self.units, dot.lanes):
                    column = self.offset + number(lane)
                    where = self.group.direction, self.block, four, number(place), column
                    index = [tirx.Ramp(self.sum_index(0, row, place, number(lane)), 1, dot.lanes)]
                    total = dot.added(tirx.BufferLoad(self.sums, index), state, where)
                    found.append(tirx.BufferStore(self.sums, total, index))
        return sequence(found)

    def _added(self) -> list[tirx.Stmt]:
        """Partial sums added up, two by two."""
        found: list[tirx.Stmt] = []
        ways = self.ways
        while ways > 1:
            ways //= 2
            for at in self._places(ways):
                found += self._added_at(at, ways)
        return found

    def _added_at(self, at: tuple[int, int, int], further: int) -> list[tirx.Stmt]:
        way, row, place = at

        def add(lane: tvm.ir.Expr) -> tirx.Stmt:
            other = self.sum_at(way + further, row, place, lane)
            return self._put(at, self.sum_at(*at, lane) + other, lane)

        return vectors(self.units, add)

    def _used(self) -> list[tirx.Stmt]:
        """Gates and new state of each sequence."""
        found: list[tirx.Stmt] = []
        for row in range(len(self.times)):

            def cell(lane: tvm.ir.Expr, row: int = row) -> tirx.Stmt:
                unit = _CellUnit(self, row, lane)
                functions = self.group.functions
                return sequence(cell_statements(self.recurrence, self.index, functions, unit))

            found += vectors(self.units, cell)
        return found


class _CellUnit:
    """See ``cell.Unit``."""

    def __init__(self, block: Block, row: int, lane: tvm.ir.Expr) -> None:
        self.block = block
        self.row = row
        self.lane = lane
        self.active = block.times[row].active

    def gate(self, index: int) -> tvm.ir.Expr:
        """See ``cell.Unit``."""
        block = self.block
        total = block.sum_at(0, self.row, block.product.gates.index(index), self.lane)
        if not block.recurrence.integer_weights:
            return total
        where = block.group.direction, block.block, number(index), block.offset + self.lane
        if block.group.dot is not None:
            column_sum = block.operands.load("r_sums", *where)
            total = block.group.dot.in_steps_of_the_state(
                block.group.states, self.row, total, column_sum
            )
        return self.projected(index) + block.operands.load("r_scale", *where) * total

    def projected(self, index: int) -> tirx.Expr:
        """See ``cell.Unit``."""
        return self.block.projected(self.row, index, self.lane)

    def peephole(self, index: int) -> tirx.Expr:
        """See ``cell.Unit``."""
        where = self.block.group.direction, number(index), self.block.unit(self.lane)
        return self.block.operands.load("peepholes", *where)

    def state(self, name: str) -> tvm.ir.Expr:
        """See ``cell.Unit``."""
        return tirx.BufferLoad(self.block.group.states[name], [self._index()])

    def put(self, name: str, value: tvm.ir.Expr) -> tirx.Stmt:
        """See ``cell.Unit``."""
        return tirx.BufferStore(self.block.group.states[name], value, [self._index()])

    def _index(self) -> tvm.ir.Expr:
        return self.block.group.at(self.row, self.block.unit(self.lane))


# Writes the loops of a recurrence: steps one after the other, all of a step in registers.
#
# For each direction and group of sequences: for each step: for each block of units: the sums of
# all its gates, then the gates and the new state of these units, while the sums are in registers.


# Elements that are copied at a time, where they are: a vector of the widest registers.
_COPIED = 16


def recurrence_code(
    operands: RecurrenceOperands, loops: RecurrenceLoops, dot: StateDotProduct | None = None
) -> tirx.Stmt:
    """The body of the kernel: whole groups of sequences, then those that are left."""
    statements = []
    done: Any = number(0)
    for part in (loops, *loops.rest):
        size = number(min(part.rows, static_extent(operands.batch) or part.rows))
        groups = Analyzer().simplify(tirx.FloorDiv(operands.batch - done, size))
        statements.append(_part(operands, part, dot, done, int(size), groups))
        done = Analyzer().simplify(done + groups * size)
    return sequence(statements)


def _part(
    operands: RecurrenceOperands,
    loops: RecurrenceLoops,
    dot: StateDotProduct | None,
    first: tvm.ir.Expr,
    rows: int,
    groups: tvm.ir.Expr,
) -> tirx.Stmt:
    """All directions of ``groups`` groups of ``rows`` sequences from the one numbered ``first``."""
    recurrence = operands.recurrence
    kind = tirx.ForKind.PARALLEL if loops.threads else tirx.ForKind.SERIAL

    def group(task: tvm.ir.Expr) -> tirx.Stmt:
        direction, place = tirx.FloorDiv(task, groups), tirx.FloorMod(task, groups)
        if recurrence.directions == 1:
            direction, place = number(0), task
        elif static_extent(groups) == 1:
            direction, place = task, number(0)
        start = first + place * number(rows)

        def one_direction(index: int, direction: tvm.ir.Expr) -> tirx.Stmt:
            functions = recurrence.activations[index]
            numbers = tuple(start + number(row) for row in range(rows))
            states = _states(operands, rows, dot)
            return _Sequences(
                Group(operands, loops, functions, direction, numbers, states, dot)
            ).statement()

        if len(set(recurrence.activations)) == 1:
            return one_direction(0, direction)
        forward, backward = (one_direction(index, number(index)) for index in (0, 1))
        return tirx.IfThenElse(direction.equal(number(0)), forward, backward)

    count = static_extent(groups)
    tasks: Any = groups * number(recurrence.directions)
    return loop(count * recurrence.directions if count is not None else tasks, group, kind)


def _states(operands: RecurrenceOperands, rows: int, dot: StateDotProduct | None) -> dict[str, Any]:
    recurrence = operands.recurrence
    size = number(rows * recurrence.padded)
    found = {name: tirx.decl_buffer([size], operands.dtype, name) for name in recurrence.states()}
    return found if dot is None else found | dot.states(rows, recurrence.padded)


class _Sequences:
    """Some sequences in one direction, from their first step to their last."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.operands = group.operands
        self.recurrence: Recurrence = group.operands.recurrence
        self.states = group.states
        self.rows = range(len(group.rows))

    def statement(self) -> tirx.Stmt:
        """All of it."""
        declared = [tirx.AllocBuffer(array) for array in self.states.values()]
        steps = loop(self.operands.steps, self._step)
        return sequence([*declared, *self._start(), steps, *self._end()])

    def _start(self) -> list[tirx.Stmt]:
        found: list[tirx.Stmt] = []
        for name in self.recurrence.states():
            array = self.states[name]
            found += self._filled(array, tirx.const(0, str(array.dtype)))
        given = {"h": self.recurrence.initial_h, "c": self.recurrence.initial_c}
        for name in (name for name, is_there in given.items() if is_there):
            found += [self._initial(name, row) for row in self.rows]
        return found

    def _initial(self, name: str, row: int) -> tirx.Stmt:
        def store(unit: tirx.Expr) -> tirx.Stmt:
            which = self.group.direction, self.group.rows[row]
            where = self.operands.state_indices(*which, unit)
            value = self.operands.load(f"initial_{name}", *where)
            return tirx.BufferStore(self.states[name], value, [self.group.at(row, unit)])

        stored = self._over_units(store)
        if not self.recurrence.lengths:
            return stored
        # As in ONNX Runtime, a sequence without a step ends in zeros.
        length = self.operands.load("lengths", self.group.rows[row])
        return tirx.IfThenElse(length > tirx.const(0, str(length.ty)), stored, None)

    def _end(self) -> list[tirx.Stmt]:
        names = ("h", "c") if "c" in self.states else ("h",)
        return [self._last(name, row) for name in names for row in self.rows]

    def _last(self, name: str, row: int) -> tirx.Stmt:
        def store(unit: tvm.ir.Expr) -> tirx.Stmt:
            where = self.operands.state_indices(self.group.direction, self.group.rows[row], unit)
            value = tirx.BufferLoad(self.states[name], [self.group.at(row, unit)])
            return tirx.BufferStore(self.operands.arrays[f"last_{name}"], value, where)

        return self._over_units(store)

    def _over_units(self, body: Body) -> tirx.Stmt:
        """``body`` for each unit of the layer, not of the padding: in vectors, then one by one."""
        return sequence(self._over(self.recurrence.hidden, body))

    def _over(self, count: int, body: Body) -> list[tirx.Stmt]:
        width = self._width()
        whole, rest = divmod(count, width)
        found: list[tirx.Stmt] = []
        if whole:
            start = number(width)
            found.append(
                loop(whole, lambda i: sequence(vectors(width, lambda n: body(i * start + n))))
            )
        if rest:
            found.append(loop(rest, lambda i: body(number(whole * width) + i)))
        return found

    def _width(self) -> int:
        return _COPIED if self.group.loops.units > 1 else 1

    def _filled(self, array: tirx.Buffer, value: tvm.ir.Expr) -> list[tirx.Stmt]:
        size = len(self.rows) * self.recurrence.padded
        return self._over(size, lambda i: tirx.BufferStore(array, value, [i]))

    def _step(self, step: tvm.ir.Expr) -> tirx.Stmt:
        rows, direction = self.group.rows, self.group.direction
        times = [SequenceTime(self.operands, direction, row, step) for row in rows]
        found: list[tirx.Stmt] = [bind for time in times for bind in time.binds]
        if self.recurrence.quantized_state:
            found += [self._rounded(row) for row in self.rows]
        for index, product in enumerate(self.recurrence.products()):
            found.append(self._blocks(index, product, times))
        found += [self._commit(row, time) for row, time in enumerate(times)]
        return sequence(found)

    def _rounded(self, row: int) -> tirx.Stmt:
        start, size = self.group.at(row, number(0)), self.recurrence.padded
        return QuantizedState(self.states, row, start, size, self._width()).statement()

    def _blocks(self, index: int, product: RecurrentMatmul, times: list[SequenceTime]) -> tirx.Stmt:
        """One product of a step, and what follows on it, block by block."""
        units = self.group.loops.units

        def block(j: tvm.ir.Expr) -> tirx.Stmt:
            return loop(self.recurrence.units // units, lambda part: part_of(j, part))

        def part_of(j: tvm.ir.Expr, part: tvm.ir.Expr) -> tirx.Stmt:
            offset = part * number(units)
            return Block(self.group, index, product, times, j, offset).statement()

        shared = self.group.loops.step_threads
        kind = tirx.ForKind.PARALLEL if shared else tirx.ForKind.SERIAL
        return loop(self.recurrence.blocks, block, kind)

    def _commit(self, row: int, time: SequenceTime) -> tirx.Stmt:
        """The new state becomes the state and the step's output; zeros behind a sequence's end."""
        y = self.operands.arrays["y"]

        def where(unit: tvm.ir.Expr) -> list[tvm.ir.Expr]:
            which = self.group.direction, self.group.rows[row]
            return self.operands.y_indices(time.position, *which, unit)

        def store(unit: tvm.ir.Expr) -> tirx.Stmt:
            place = [self.group.at(row, unit)]
            new = tirx.BufferLoad(self.states["next_h"], place)
            kept = tirx.BufferStore(self.states["h"], new, place)
            return sequence([kept, tirx.BufferStore(y, new, where(unit))])

        running = self._over_units(store)
        if time.active is None:
            return running
        zero = tirx.const(0, self.operands.dtype)
        ended = self._over_units(lambda unit: tirx.BufferStore(y, zero, where(unit)))
        return tirx.IfThenElse(time.active, running, ended)


class CpuRecurrentLayer:
    """LSTM, GRU and RNN, without their input projection."""

    name = "recurrent layer"
    machine_type = CpuDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CpuDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        operands = recurrence_of(func)
        if operands is None:
            raise NotApplicable("the kernel is no recurrent layer")
        dot = StateDotProduct.of(operands, func, machine)
        loops = decide_recurrence(operands, machine, decisions, dot)
        code = recurrence_code(operands, loops, dot)
        return s_tir.Schedule(with_body(func, code) if dot is None else dot.kernel(func, code))

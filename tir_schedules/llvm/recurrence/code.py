"""Writes the loops of a recurrence: steps one after the other, all of a step in registers.

For each direction and group of sequences: for each step: for each block of units: the sums of all
its gates, then the gates and the new state of these units, while the sums are in registers.
"""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.llvm.recurrence.block import Block, Group
from tvm_ext.tir_schedules.llvm.recurrence.quantized_state import QuantizedState
from tvm_ext.tir_schedules.recurrence.description import (
    Product,
    Recurrence,
    RecurrenceOperands,
)
from tvm_ext.tir_schedules.recurrence.loops import (
    Body,
    RecurrenceLoops,
    SequenceTime,
    loop,
    number,
    vectors,
)
from tvm_ext.tir_schedules.statements import sequence

# Elements that are copied at a time, where they are: a vector of the widest registers.
_COPIED = 16


def recurrence_code(operands: RecurrenceOperands, loops: RecurrenceLoops) -> tirx.Stmt:
    """The body of the kernel: whole groups of sequences, then those that are left."""
    batch, rows = operands.batch, loops.rows
    count = static_extent(batch)
    if count is None:
        parts = [(number(0), rows, tirx.FloorDiv(batch, number(rows)))] if rows > 1 else []
        whole = tirx.FloorDiv(batch, number(rows)) * number(rows) if rows > 1 else number(0)
        parts.append((whole, 1, batch - whole))
    else:
        rows = min(rows, count)
        parts = [(number(0), rows, number(count // rows))]
        if count % rows:
            parts.append((number(count - count % rows), count % rows, number(1)))
    return sequence([_part(operands, loops, *part) for part in parts])


def _part(
    operands: RecurrenceOperands, loops: RecurrenceLoops, first: Any, rows: int, groups: Any
) -> tirx.Stmt:
    """All directions of ``groups`` groups of ``rows`` sequences from the one numbered ``first``."""
    recurrence = operands.recurrence
    kind = tirx.ForKind.PARALLEL if loops.threads else tirx.ForKind.SERIAL

    def group(task: Any) -> tirx.Stmt:
        direction, place = tirx.FloorDiv(task, groups), tirx.FloorMod(task, groups)
        if recurrence.directions == 1:
            direction, place = number(0), task
        elif static_extent(groups) == 1:
            direction, place = task, number(0)
        start = first + place * number(rows)

        def one_direction(index: int, direction: Any) -> tirx.Stmt:
            functions = recurrence.activations[index]
            numbers = tuple(start + number(row) for row in range(rows))
            states = _states(operands, rows)
            return _Sequences(
                Group(operands, loops, functions, direction, numbers, states)
            ).statement()

        if len(set(recurrence.activations)) == 1:
            return one_direction(0, direction)
        forward, backward = (one_direction(index, number(index)) for index in (0, 1))
        return tirx.IfThenElse(direction.equal(number(0)), forward, backward)

    count = static_extent(groups)
    tasks: Any = groups * number(recurrence.directions)
    return loop(count * recurrence.directions if count is not None else tasks, group, kind)


def _states(operands: RecurrenceOperands, rows: int) -> dict[str, Any]:
    recurrence = operands.recurrence
    size = number(rows * recurrence.padded)
    return {name: tirx.decl_buffer([size], operands.dtype, name) for name in recurrence.states()}


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
        zero = tirx.const(0, self.operands.dtype)
        found: list[tirx.Stmt] = []
        for array in self.states.values():
            found += self._filled(array, zero)
        given = {"h": self.recurrence.initial_h, "c": self.recurrence.initial_c}
        for name in (name for name, is_there in given.items() if is_there):
            found += [self._initial(name, row) for row in self.rows]
        return found

    def _initial(self, name: str, row: int) -> tirx.Stmt:
        def store(unit: Any) -> tirx.Stmt:
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
        def store(unit: Any) -> tirx.Stmt:
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

    def _filled(self, array: Any, value: Any) -> list[tirx.Stmt]:
        size = len(self.rows) * self.recurrence.padded
        return self._over(size, lambda i: tirx.BufferStore(array, value, [i]))

    def _step(self, step: Any) -> tirx.Stmt:
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
        arrays = self.states["h"], self.states["rounded_h"]
        return QuantizedState(*arrays, start, size, self._width()).statement()

    def _blocks(self, index: int, product: Product, times: list[SequenceTime]) -> tirx.Stmt:
        """One product of a step, and what follows on it, block by block."""
        units = self.group.loops.units

        def block(j: Any) -> tirx.Stmt:
            return loop(self.recurrence.units // units, lambda part: part_of(j, part))

        def part_of(j: Any, part: Any) -> tirx.Stmt:
            offset = part * number(units)
            return Block(self.group, index, product, times, j, offset).statement()

        return loop(self.recurrence.blocks, block)

    def _commit(self, row: int, time: SequenceTime) -> tirx.Stmt:
        """The new state becomes the state and the step's output; zeros behind a sequence's end."""
        y = self.operands.arrays["y"]

        def where(unit: Any) -> list[Any]:
            which = self.group.direction, self.group.rows[row]
            return self.operands.y_indices(time.position, *which, unit)

        def store(unit: Any) -> tirx.Stmt:
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

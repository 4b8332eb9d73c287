"""Recurrent layers: all steps in one kernel, the sums of a block of units in registers.

A step multiplies the state with the recurrent weights, which fill a cache level and are read from
beginning to end: contiguous vectors, one multiply-add each, and nothing else in the inner loop.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.sym import Analyzer

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
from tvm_ext.tir_schedules.cpu.quantized_state import QuantizedState, StateDotProduct
from tvm_ext.tir_schedules.cpu.recurrent_block import BlockPart, Group
from tvm_ext.tir_schedules.cpu.recurrent_decision import decide_recurrence
from tvm_ext.tir_schedules.cpu.row_code import with_body
from tvm_ext.tir_schedules.operators.recurrence import (
    Body,
    Recurrence,
    RecurrenceLoops,
    RecurrenceOperands,
    loop,
    number,
    recurrence_of,
    vectors,
)
from tvm_ext.tir_schedules.statements import sequence
from tvm_ext.tir_schedules.template import Decisions

# Writes the loops of a recurrence: steps one after the other, all of a step in registers.
#
# For each direction and group of sequences: for each step: for each block of units, and as many of
# the sequences as registers hold sums of: the sums of the gates, then the gates and the new state
# of these units.


# Elements that are copied at a time, where they are: a vector of the widest registers.
_COPIED = 16


def recurrence_code(
    operands: RecurrenceOperands, loops: RecurrenceLoops, dot: StateDotProduct | None = None
) -> tirx.Stmt:
    """The body of the kernel: whole groups of sequences, then those that are left."""
    statements = []
    done: Any = number(0)
    for part in (loops, *loops.rest):
        rows = min(part.rows, static_extent(operands.batch) or part.rows)
        parts = Analyzer().simplify(tirx.FloorDiv(operands.batch - done, number(rows)))
        statements.append(_part(operands, replace(part, rows=rows), dot, done, parts))
        done = Analyzer().simplify(done + parts * number(rows))
    return sequence(statements)


def _part(
    operands: RecurrenceOperands,
    loops: RecurrenceLoops,
    dot: StateDotProduct | None,
    first: tvm.ir.Expr,
    parts: tvm.ir.Expr,
) -> tirx.Stmt:
    """All directions of ``parts`` times ``loops.rows`` sequences, from that numbered ``first``."""
    recurrence = operands.recurrence
    kind = tirx.ForKind.PARALLEL if loops.threads else tirx.ForKind.SERIAL
    each, groups = _dealt_out(parts, loops)
    # Of no sequence there is no group, and what looks at the code may divide by that.
    divisor = Analyzer().simplify(tirx.Max(groups, number(1)))

    def group(task: tvm.ir.Expr) -> tirx.Stmt:
        direction, place = tirx.FloorDiv(task, divisor), tirx.FloorMod(task, divisor)
        if recurrence.directions == 1:
            direction, place = number(0), task
        elif static_extent(groups) == 1:
            direction, place = task, number(0)
        here = each
        if static_extent(each) != 1:
            here = Analyzer().simplify(tirx.Min(each, parts - place * each))
        start = first + place * each * number(loops.rows)

        def one_direction(index: int, direction: tvm.ir.Expr) -> tirx.Stmt:
            functions = recurrence.activations[index]
            states = _states(operands, max(loops.rows, loops.sequences), dot)
            return _Sequences(
                Group(operands, loops, functions, direction, start, here, states, dot)
            ).statement()

        if len(set(recurrence.activations)) == 1:
            return one_direction(0, direction)
        forward, backward = (one_direction(index, number(index)) for index in (0, 1))
        return tirx.IfThenElse(direction.equal(number(0)), forward, backward)

    count = static_extent(groups)
    tasks: Any = groups * number(recurrence.directions)
    return loop(count * recurrence.directions if count is not None else tasks, group, kind)


def _dealt_out(parts: tvm.ir.Expr, loops: RecurrenceLoops) -> tuple[tvm.ir.Expr, tvm.ir.Expr]:
    """How many of ``parts`` a group has, the last one perhaps fewer, and how many groups."""
    most = max(1, loops.sequences // loops.rows)
    if most == 1:
        return number(1), parts
    tasks = tirx.Min(parts, number(loops.tasks))
    groups = tirx.Max(tirx.FloorDiv(parts + number(most - 1), number(most)), tasks)
    one = number(1)
    each = tirx.FloorDiv(parts + groups - one, tirx.Max(groups, one))
    each = Analyzer().simplify(each)
    return each, Analyzer().simplify(tirx.FloorDiv(parts + each - one, tirx.Max(each, one)))


def _states(
    operands: RecurrenceOperands, sequences: int, dot: StateDotProduct | None
) -> dict[str, Any]:
    recurrence = operands.recurrence
    size = number(sequences * recurrence.padded)
    found = {name: tirx.decl_buffer([size], operands.dtype, name) for name in recurrence.states()}
    return found if dot is None else found | dot.states(sequences, recurrence.padded)


class _Sequences:
    """Some sequences in one direction, from their first step to their last."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.operands = group.operands
        self.recurrence: Recurrence = group.operands.recurrence
        self.states = group.states

    def statement(self) -> tirx.Stmt:
        """All of it."""
        declared = [tirx.AllocBuffer(array) for array in self.states.values()]
        steps = loop(self.operands.steps, self._step)
        return sequence([*declared, *self._start(), steps, *self._end()])

    def _each(self, body: Body) -> tirx.Stmt:
        """``body`` for each sequence's number in the group."""
        rows, parts = number(self.group.loops.rows), self.group.parts
        if isinstance(parts, tirx.Min):
            # Stays one: its first part says what the work is at most.
            return loop(
                tirx.Min(*(Analyzer().simplify(n * rows) for n in (parts.a, parts.b))), body
            )
        return loop(Analyzer().simplify(parts * rows), body)

    def _start(self) -> list[tirx.Stmt]:
        found: list[tirx.Stmt] = []
        for name in self.recurrence.states():
            array = self.states[name]
            found += self._filled(array, tirx.const(0, str(array.dtype)))
        given = {"h": self.recurrence.initial_h, "c": self.recurrence.initial_c}
        for name in (name for name, is_there in given.items() if is_there):
            found.append(self._each(partial(self._initial, name)))
        return found

    def _initial(self, name: str, row: tvm.ir.Expr) -> tirx.Stmt:
        sequence_number = self.group.first + row

        def store(unit: tirx.Expr) -> tirx.Stmt:
            where = self.operands.state_indices(self.group.direction, sequence_number, unit)
            value = self.operands.load(f"initial_{name}", *where)
            return tirx.BufferStore(self.states[name], value, [self.group.at(row, unit)])

        stored = self._over_units(store)
        if not self.recurrence.lengths:
            return stored
        # As in ONNX Runtime, a sequence without a step ends in zeros.
        length = self.operands.load("lengths", sequence_number)
        return tirx.IfThenElse(length > tirx.const(0, str(length.ty)), stored, None)

    def _end(self) -> list[tirx.Stmt]:
        names = ("h", "c") if "c" in self.states else ("h",)
        return [self._each(partial(self._last, name)) for name in names]

    def _last(self, name: str, row: tvm.ir.Expr) -> tirx.Stmt:
        def store(unit: tvm.ir.Expr) -> tirx.Stmt:
            which = self.group.direction, self.group.first + row
            value = tirx.BufferLoad(self.states[name], [self.group.at(row, unit)])
            where = self.operands.state_indices(*which, unit)
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
        size = static_extent(array.shape[0]) or 0
        return self._over(size, lambda i: tirx.BufferStore(array, value, [i]))

    def _step(self, step: tvm.ir.Expr) -> tirx.Stmt:
        found: list[tirx.Stmt] = []
        if self.recurrence.quantized_state:
            found.append(self._each(self._rounded))
        for index in range(len(self.recurrence.products())):
            found.append(self._blocks(index, step))
        found.append(self._each(lambda row: self._commit(row, step)))
        return sequence(found)

    def _rounded(self, row: tvm.ir.Expr) -> tirx.Stmt:
        start, size = self.group.at(row, number(0)), self.recurrence.padded
        return QuantizedState(self.states, row, start, size, self._width()).statement()

    def _blocks(self, index: int, step: tvm.ir.Expr) -> tirx.Stmt:
        """One product of a step, and what follows on it, block by block."""
        loops = self.group.loops

        def block(j: tvm.ir.Expr) -> tirx.Stmt:
            return loop(self.recurrence.units // loops.units, lambda part: some_units(j, part))

        def some_units(j: tvm.ir.Expr, part: tvm.ir.Expr) -> tirx.Stmt:
            return BlockPart(self.group, index, step, j, part * number(loops.units)).statement()

        kind = tirx.ForKind.PARALLEL if loops.step_threads else tirx.ForKind.SERIAL
        return loop(self.recurrence.blocks, block, kind)

    def _commit(self, row: tvm.ir.Expr, step: tvm.ir.Expr) -> tirx.Stmt:
        """The new state becomes the state and the step's output; zeros behind a sequence's end."""
        y, time = self.operands.arrays["y"], self.group.time(row, step)

        def where(unit: tvm.ir.Expr) -> list[tvm.ir.Expr]:
            which = self.group.direction, self.group.first + row
            return self.operands.y_indices(time.position, *which, unit)

        def store(unit: tvm.ir.Expr) -> tirx.Stmt:
            place = [self.group.at(row, unit)]
            new = tirx.BufferLoad(self.states["next_h"], place)
            kept = tirx.BufferStore(self.states["h"], new, place)
            return sequence([kept, tirx.BufferStore(y, new, where(unit))])

        running = self._over_units(store)
        if time.active is None:
            return sequence([*time.binds, running])
        zero = tirx.const(0, self.operands.dtype)
        ended = self._over_units(lambda unit: tirx.BufferStore(y, zero, where(unit)))
        return sequence([*time.binds, tirx.IfThenElse(time.active, running, ended)])


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

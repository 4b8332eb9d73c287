"""A recurrent layer with a launch for each step, its units shared by many multiprocessors.

Where the recurrent weights do not fit into the registers of one multiprocessor, it would read all
of them from L2 in every step, at 64 bytes a cycle. Shared by many blocks they come at the rate of
all of L2, and a launch costs less than what is won; between two launches all states are in memory.
Every block reads the whole state, and computes the next one of its own units.
"""

from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.cuda.launch import bound, guarded
from tvm_ext.tir_schedules.cuda.recurrence.recurrence_code import RecurrenceKernel
from tvm_ext.tir_schedules.cuda.recurrence.recurrence_places import RecurrenceLaunch
from tvm_ext.tir_schedules.recurrence.description import RecurrenceOperands
from tvm_ext.tir_schedules.recurrence.loops import INDEX, SequenceTime, loop, number
from tvm_ext.tir_schedules.statements import sequence

_THREADS = 128


def steps_code(
    operands: RecurrenceOperands, launch: RecurrenceLaunch
) -> tuple[tirx.Stmt, list[Any]]:
    """The launches of a layer whose steps and sequences are known, and the arrays they allocate."""
    kernel = StepKernel(operands, launch)
    return kernel.launches(), kernel.arrays.buffers


class StepKernel(RecurrenceKernel):
    """One step: a block for each direction, group of sequences and group of units."""

    def __init__(self, operands: RecurrenceOperands, launch: RecurrenceLaunch) -> None:
        super().__init__(operands, launch)
        self.steps = static_extent(operands.steps) or 1
        self.sequences = static_extent(operands.batch) or 1
        shape = [self.recurrence.directions, self.sequences, self.recurrence.padded]
        # What a step reads and what it writes; a unit's cell is read and written by its own thread.
        self.state_h = self._allocated("state_h", [2, *shape], "global")
        self.state_c = None
        if "c" in self.own:
            self.state_c = self._allocated("state_c", shape, "global")
        self.step = number(0)

    def launches(self) -> tirx.Stmt:
        """What the layer begins with, and all steps, in order."""
        return sequence([self._beginning(), loop(self.steps, self._launch)])

    def _beginning(self) -> tirx.Stmt:
        """The first states into memory, a thread for each."""
        padded = self.recurrence.padded
        count = self.recurrence.directions * self.sequences * padded

        def state(block: Any, thread: Any) -> tirx.Stmt:
            at = block * number(_THREADS) + thread
            unit, rest = tirx.FloorMod(at, number(padded)), tirx.FloorDiv(at, number(padded))
            row = tirx.FloorMod(rest, number(self.sequences))
            direction = tirx.FloorDiv(rest, number(self.sequences))
            found = []
            for name in (name for name in ("h", "c") if name in self.own):
                value = self._first_state(name, direction, row, unit)
                buffer, place = self._kept_state(name, number(0), direction, row, unit)
                found.append(tirx.BufferStore(buffer, value, place))
            return guarded(at < number(count) if count % _THREADS else None, sequence(found))

        return bound(
            "blockIdx.x",
            -(-count // _THREADS),
            INDEX,
            lambda b: bound("threadIdx.x", _THREADS, INDEX, lambda t: state(b, t)),
        )

    def _launch(self, step: Any) -> tirx.Stmt:
        self.step = step
        groups = -(-self.sequences // self.launch.rows)

        def units(block: Any) -> tirx.Stmt:
            self.first_unit = block * number(self.units_of_block)
            return sequence([*self._states(), self._step(step)])

        def sequences(group: Any) -> tirx.Stmt:
            self.first = group * number(self.launch.rows)
            return bound("blockIdx.x", self.launch.blocks, INDEX, units)

        def directions(direction: Any) -> tirx.Stmt:
            self.direction = direction
            return bound("blockIdx.y", groups, INDEX, sequences)

        return bound("blockIdx.z", self.recurrence.directions, INDEX, directions)

    def _states(self) -> list[tirx.Stmt]:
        """All of the state into shared memory, that of own units into registers."""
        padded, threads = self.recurrence.padded, self.launch.units * self.launch.ways
        count = self.launch.rows * padded

        def shared() -> tirx.Stmt:
            thread = self.y * number(self.launch.units) + self.x

            def element(n: Any) -> tirx.Stmt:
                at = n * number(threads) + thread
                row, unit = tirx.FloorDiv(at, number(padded)), tirx.FloorMod(at, number(padded))
                store = tirx.BufferStore(self.shared["h"], self._before("h", row, unit), [at])
                return guarded(None if count % threads == 0 else at < number(count), store)

            return loop(-(-count // threads), element)

        def own(part: int, unit: Any) -> tirx.Stmt:
            found = []
            for row in self.rows:
                for name in (name for name in ("h", "c") if name in self.own):
                    buffer, at = self.element(name, row, part, unit)
                    value = self._before(name, number(row), unit)
                    found.append(tirx.BufferStore(buffer, value, at))
            return sequence(found)

        return [self.threads(shared), self.by_first_way(own, padded)]

    def _before(self, name: str, row: Any, unit: Any) -> Any:
        """A state before the step; behind the last sequence that of the last."""
        place = tirx.Min(self.first + row, number(self.sequences - 1))
        kept = self._kept_state(name, self.step, self.direction, place, unit)
        return tirx.BufferLoad(*kept)

    def _first_state(self, name: str, direction: Any, row: Any, unit: Any) -> Any:
        """What the layer begins with."""
        zero = tirx.const(0, self.operands.dtype)
        if not (self.recurrence.initial_h if name == "h" else self.recurrence.initial_c):
            return zero
        condition = unit < number(self.recurrence.hidden)
        if self.recurrence.lengths:
            # As in ONNX Runtime, a sequence without a step ends in zeros.
            length = self.operands.load("lengths", row)
            condition = tirx.And(condition, length > tirx.const(0, str(length.ty)))
        where = self.operands.state_indices(direction, row, unit)
        value = self.operands.load(f"initial_{name}", *where)
        return tirx.if_then_else(condition, value, zero)

    def _kept_state(
        self, name: str, step: Any, direction: Any, row: Any, unit: Any
    ) -> tuple[Any, list[Any]]:
        at = [direction, row, unit]
        if name == "h":
            return self.state_h, [tirx.FloorMod(step, number(2)), *at]
        return self.state_c, at

    def _publish(self, state: Any, row: int, unit: Any) -> list[tirx.Stmt]:
        return []

    def _commit(self, row: int, part: int, unit: Any, time: SequenceTime) -> tirx.Stmt:
        found = [super()._commit(row, part, unit, time)]
        last = self.step.equal(number(self.steps - 1))
        for name in ("h", "c") if "c" in self.own else ("h",):
            value = tirx.BufferLoad(*self.element(name, row, part, unit))
            after = self.step + number(1)
            buffer, at = self._kept_state(name, after, self.direction, self.row(row), unit)
            found.append(guarded(self.inside(row), tirx.BufferStore(buffer, value, at)))
            where = self.operands.state_indices(self.direction, self.row(row), unit)
            result = tirx.BufferStore(self.operands.arrays[f"last_{name}"], value, where)
            conditions = [last, unit < number(self.recurrence.hidden), self.inside(row)]
            for condition in conditions:
                result = guarded(condition, result)
            found.append(result)
        return sequence(found)

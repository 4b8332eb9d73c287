"""Recurrent layers on a GPU: all steps in one kernel, one block for each group of sequences.

Steps wait for one another, so a sequence stays with one block of threads: its state is in
shared memory, and each thread sums for one unit of the layer over a part of the state. The
floor of a step is the time to read the recurrent weights: at 64 bytes a cycle from L2 about ``4
* gates * hidden**2 / 64`` cycles, which several sequences of a block share; the weights of
small layers stay in registers from the first step to the last. Where that is longer than a
launch takes, each step is one, shared by many multiprocessors.
"""

from dataclasses import replace
from typing import Any

import tvm
from tvm import s_tir, tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import element_bytes, static_extent
from tvm_ext.tir_schedules.cuda.device_code import without_offsets
from tvm_ext.tir_schedules.cuda.launch import bound, guarded
from tvm_ext.tir_schedules.cuda.recurrent_layer_code import (
    RecurrenceKernel,
    RecurrenceLaunch,
    recurrence_code,
)
from tvm_ext.tir_schedules.operators.recurrence import (
    INDEX,
    SUM_UNROLL,
    RecurrenceOperands,
    SequenceTime,
    loop,
    number,
    recurrence_of,
)
from tvm_ext.tir_schedules.statements import in_root_block, sequence
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# A recurrent layer with a launch for each step, its units shared by many multiprocessors.
#
# Where the recurrent weights do not fit into the registers of one multiprocessor, it would read
# all of them from L2 in every step, at 64 bytes a cycle. Shared by many blocks they come at the
# rate of all of L2, and a launch costs less than what is won; between two launches all states are
# in memory. Every block reads the whole state, and computes the next one of its own units.


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

        def state(block: tvm.ir.Expr, thread: Any) -> tirx.Stmt:
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

    def _launch(self, step: tirx.Expr) -> tirx.Stmt:
        self.step = step
        groups = -(-self.sequences // self.launch.rows)

        def units(block: tvm.ir.Expr) -> tirx.Stmt:
            self.first_unit = block * number(self.units_of_block)
            return sequence([*self._states(), self._step(step)])

        def sequences(group: tirx.Expr) -> tirx.Stmt:
            self.first = group * number(self.launch.rows)
            return bound("blockIdx.x", self.launch.blocks, INDEX, units)

        def directions(direction: tirx.Expr) -> tirx.Stmt:
            self.direction = direction
            return bound("blockIdx.y", groups, INDEX, sequences)

        return bound("blockIdx.z", self.recurrence.directions, INDEX, directions)

    def _states(self) -> list[tirx.Stmt]:
        """All of the state into shared memory, that of own units into registers."""
        padded, threads = self.recurrence.padded, self.launch.units * self.launch.ways
        count = self.launch.rows * padded

        def shared() -> tirx.Stmt:
            thread = self.y * number(self.launch.units) + self.x

            def element(n: tirx.Expr) -> tirx.Stmt:
                at = n * number(threads) + thread
                row, unit = tirx.FloorDiv(at, number(padded)), tirx.FloorMod(at, number(padded))
                store = tirx.BufferStore(self.shared["h"], self._before("h", row, unit), [at])
                return guarded(None if count % threads == 0 else at < number(count), store)

            return loop(-(-count // threads), element)

        def own(part: int, unit: tirx.Expr) -> tirx.Stmt:
            found = []
            for row in self.rows:
                for name in (name for name in ("h", "c") if name in self.own):
                    buffer, at = self.element(name, row, part, unit)
                    value = self._before(name, number(row), unit)
                    found.append(tirx.BufferStore(buffer, value, at))
            return sequence(found)

        return [self.threads(shared), self.by_first_way(own, padded)]

    def _before(self, name: str, row: tirx.Expr, unit: tirx.Expr) -> tirx.Expr:
        """A state before the step; behind the last sequence that of the last."""
        place = tirx.Min(self.first + row, number(self.sequences - 1))
        kept = self._kept_state(name, self.step, self.direction, place, unit)
        return tirx.BufferLoad(*kept)

    def _first_state(
        self, name: str, direction: tirx.Expr, row: tirx.Expr, unit: tirx.Expr
    ) -> tirx.Expr:
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
        self, name: str, step: tirx.Expr, direction: tirx.Expr, row: tirx.Expr, unit: tirx.Expr
    ) -> tuple[Any, list[Any]]:
        at = [direction, row, unit]
        if name == "h":
            return self.state_h, [tirx.FloorMod(step, number(2)), *at]
        return self.state_c, at

    def _publish(self, state: tirx.Expr, row: int, unit: tirx.Expr) -> list[tirx.Stmt]:
        return []

    def _commit(self, row: int, part: int, unit: tirx.Expr, time: SequenceTime) -> tirx.Stmt:
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


_WAYS = (1, 2, 4, 8, 16, 32)

# The same where blocks share the units: more of them take longer to add up than to load.
_SHARED_WAYS = (1, 2, 4, 8, 16)

# What L2 sends to one multiprocessor: NVIDIA's whitepapers since Volta.
_L2_BYTES_PER_CYCLE = 64
_SECTOR_BYTES = 32

# Sequences that share each weight; more of them wait for multiply-adds rather than for weights.
_ROWS = (1, 2, 4, 8)

# Threads of a block that hide the latency of loads and leave each of them 128 registers.
_ENOUGH_THREADS = 512

# Registers of a thread that are not weights it keeps: sums, addresses, the cell.
_OTHER_REGISTERS = 56

# Weights of a thread that may stay in registers; all of their loads are written out.
_MOST_HELD = 96


class CudaRecurrentLayer:
    """LSTM, GRU and RNN, without their input projection."""

    name = "recurrent layer"
    machine_type = CudaDescription

    def apply(
        self, func: tirx.PrimFunc, machine: CudaDescription, decisions: Decisions
    ) -> s_tir.Schedule:
        """See ``Template.apply``."""
        func = without_offsets(func)
        operands = recurrence_of(func)
        if operands is None:
            raise NotApplicable("the kernel is no recurrent layer")
        if operands.recurrence.quantized_state:
            raise NotApplicable("the state is quantised in every step")
        launch = decide_recurrence(operands, machine, decisions)
        code = steps_code if launch.blocks > 1 else recurrence_code
        body, arrays = code(operands, launch)
        return s_tir.Schedule(func.with_body(in_root_block(body, arrays)))


def decide_recurrence(
    operands: RecurrenceOperands, machine: CudaDescription, decisions: Decisions = DEFAULT_DECISIONS
) -> RecurrenceLaunch:
    """One sequence a block until all multiprocessors have one; threads enough to hide latency.

    Asks for ``rows``, ``ways`` and ``held``, and for ``blocks`` where each step may be a launch.
    """
    recurrence = operands.recurrence
    most = machine.max_threads_per_block
    units = recurrence.padded if recurrence.padded <= most else most // 2
    batch = static_extent(operands.batch)
    rows = [n for n in _ROWS if n == 1 or (batch is not None and n <= batch)]
    rows = [n for n in rows if _bytes(operands, n, 1) <= machine.shared_memory_bytes]
    if not rows:
        raise NotApplicable("the state of a sequence does not fit in shared memory")
    shared = 1 if batch is None else batch * recurrence.directions // machine.sms
    row = decisions.pick("rows", rows, max(n for n in rows if n <= max(1, shared)))
    ways = [
        n
        for n in _WAYS
        if units * n <= most
        and n * SUM_UNROLL <= recurrence.summed
        and _bytes(operands, row, n) <= machine.shared_memory_bytes
    ]
    if not ways:
        raise NotApplicable("the sums of a step do not fit in shared memory")
    enough = [n for n in ways if units * n <= _ENOUGH_THREADS]
    way = decisions.pick("ways", ways, max(enough, default=ways[0]))
    launch = RecurrenceLaunch(row, units, way, False)
    weights = _weights(operands, launch)
    registers = units * way * (weights + row * recurrence.gates + _OTHER_REGISTERS)
    fits = weights <= _MOST_HELD and registers <= machine.registers_per_block
    held = decisions.pick("held", (0, 1) if fits else (0,), int(fits))
    launch = replace(launch, held=bool(held))
    options = {1: launch}
    if not held:
        shared_rows = [n for n in rows if batch is not None and n <= batch]
        shared_launches = [x for n in shared_rows for x in _shared_launches(operands, n, machine)]
        shared_launches.sort(key=lambda item: -_step_seconds(operands, item, machine))
        # Of those with as many blocks the fastest.
        options |= {found.blocks: found for found in shared_launches}
    best = min(options.values(), key=lambda item: _step_seconds(operands, item, machine))
    return options[decisions.pick("blocks", sorted(options), best.blocks)]


def _shared_launches(
    operands: RecurrenceOperands, rows: int, machine: CudaDescription
) -> list[RecurrenceLaunch]:
    """How blocks may share the units of a layer, whole sectors of weights for each."""
    recurrence = operands.recurrence
    known = all(static_extent(size) is not None for size in (operands.steps, operands.batch))
    if not known or len(recurrence.products()) > 1:
        return []
    sector = _SECTOR_BYTES // element_bytes(operands.arrays["x"])
    found = []
    for units in (sector, 2 * sector, 4 * sector):
        blocks = recurrence.padded // units
        if recurrence.padded % units or recurrence.units % units or blocks < 2:
            continue
        ways = [n for n in _SHARED_WAYS if n * SUM_UNROLL <= recurrence.summed]
        launch = RecurrenceLaunch(rows, units, max(ways, default=1), False, blocks)
        if _bytes(operands, rows, launch.ways, blocks) <= machine.shared_memory_bytes:
            found.append(launch)
    return found


def _step_seconds(
    operands: RecurrenceOperands, launch: RecurrenceLaunch, machine: CudaDescription
) -> float:
    """Estimated time of a step: weights from L2 to each multiprocessor, products, and a launch.

    The batch of a symbolic size is taken for one sequence.
    """
    if launch.held:
        return 0.0
    recurrence = operands.recurrence
    gates = sum(len(product.gates) for product in recurrence.products())
    weights = gates * recurrence.summed * recurrence.padded * element_bytes(operands.arrays["x"])
    groups = -(-(static_extent(operands.batch) or 1) // launch.rows) * recurrence.directions
    blocks = groups * launch.blocks
    hertz = machine.clock_ghz * 1e9
    products = gates * recurrence.summed * recurrence.padded * launch.rows
    cycles = max(weights / _L2_BYTES_PER_CYCLE, products / machine.fp32_lanes_per_sm)
    alone = -(-blocks // machine.sms) * cycles / launch.blocks / hertz
    together = groups * weights / (machine.l2_gbs * 1e9)
    started = machine.kernel_overhead_us * 1e-6 if launch.blocks > 1 else 0.0
    return max(alone, together) + started


def _weights(operands: RecurrenceOperands, launch: RecurrenceLaunch) -> int:
    """32-bit registers of a thread that all of its weights take."""
    recurrence = operands.recurrence
    parts = -(-recurrence.padded // launch.units)
    gates = sum(len(product.gates) for product in recurrence.products())
    words = max(1, element_bytes(operands.arrays["x"]) // 4)
    return parts * gates * launch.depth(recurrence) * words


def _bytes(operands: RecurrenceOperands, rows: int, ways: int, blocks: int = 1) -> int:
    """Shared memory of a block: states, and partial sums of several ways."""
    recurrence = operands.recurrence
    states = len(recurrence.products()) * recurrence.padded
    gates = max(len(product.gates) for product in recurrence.products())
    partial = ways * gates * recurrence.padded // blocks if ways > 1 else 0
    return rows * (states + partial) * element_bytes(operands.arrays["x"])

"""How many sequences of a recurrent layer go together, and what is handed to threads."""

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import element_bytes, static_extent
from tvm_ext.tir_schedules.cpu.parallel_vectorize import pick_threads, worth_threads
from tvm_ext.tir_schedules.cpu.quantized_state import StateDotProduct
from tvm_ext.tir_schedules.cpu.register_blocking import vector_registers
from tvm_ext.tir_schedules.operators.recurrence import (
    SUM_UNROLL,
    RecurrenceLoops,
    RecurrenceOperands,
)
from tvm_ext.tir_schedules.template import DEFAULT_DECISIONS, Decisions

# Sums in registers that hide the latency of a multiply-add: four cycles, two of them a cycle.
_ENOUGH_SUMS = 8

# Sequences that are worth sharing a weight: with more, multiply-adds take longer than loads.
_MOST_ROWS = 6

# Sequences that take a step together at most, and the part of a core's cache for their states.
_MOST_SEQUENCES = 32
_STATES_SHARE = 4
_LINE_BYTES = 64

# The part of L1 for the weights that sequences share, and steps that are worth keeping sums for.
_WEIGHTS_SHARE = 4
_LEAST_DEPTH = 32

# Microseconds of multiply-adds. Threads that have just ended a step wait for the next one: handing
# it over takes less than waking them, and a loop that turns out short stays with its caller.
_SHORTEST_SHARED_STEP_US = 2.0

# Where the model leaves steps or sequences dynamic.
_STEPS_GUESSED = 16


def decide_recurrence(
    operands: RecurrenceOperands,
    machine: CpuDescription,
    decisions: Decisions = DEFAULT_DECISIONS,
    dot: StateDotProduct | None = None,
) -> RecurrenceLoops:
    """By default as many sequences together as leave work for all cores and fit in registers.

    Where sequences do not fill all cores, each step's units are shared.

    Asks for ``step_threads``, ``rows``, ``gates``, ``units``, ``ways``, ``sequences``,
    ``depth`` and ``threads``.
    """
    return _Decision(operands, machine, decisions, dot).loops()


class _Decision:
    def __init__(
        self,
        operands: RecurrenceOperands,
        machine: CpuDescription,
        decisions: Decisions,
        dot: StateDotProduct | None,
    ) -> None:
        self.recurrence = operands.recurrence
        self.machine = machine
        self.decisions = decisions
        self.dot = dot
        self.batch = static_extent(operands.batch)
        self.element = element_bytes(operands.arrays["x"])
        self.lanes = min(machine.vector_lanes(operands.dtype), self.recurrence.units)
        self.gates = max(len(product.gates) for product in self.recurrence.products())
        self.registers = vector_registers(machine)
        self.most = next(
            rows for rows in range(_MOST_ROWS, 0, -1) if rows == 1 or self._fits(rows, 1, self.line)
        )
        self.added = self.lanes if dot is None else self.lanes * dot.steps
        self.threads_worth = worth_threads(machine, _multiply_adds(operands), self.added)

    def loops(self) -> RecurrenceLoops:
        """What is decided."""
        decisions, batch = self.decisions, self.batch
        shared = self._shares_steps()
        options = range(1, min(self.most, batch or self.most) + 1)
        rows = decisions.pick("rows", options, self._rows(shared))
        gates = decisions.pick("gates", *self._gates(rows))
        units = decisions.pick("units", *self._units(rows, gates))
        ways = decisions.pick("ways", *self._ways(rows, gates, units))
        sequences = decisions.pick("sequences", *self._sequences(rows))
        depth = decisions.pick("depth", *self._depth(gates, units, sequences > rows))
        tasks = self.recurrence.directions * (rows if batch is None else -(-batch // rows))
        default = self.threads_worth and tasks > 1
        threads = not shared and pick_threads(decisions, self.machine, lambda: tasks, default)
        groups = -(-self.machine.cores // self.recurrence.directions) if threads else 1
        rest = tuple(self._rest(size, shared, threads) for size in self._sizes_of_rest(rows))
        return RecurrenceLoops(
            rows=rows,
            sequences=sequences,
            gates=gates,
            units=units,
            ways=ways,
            depth=depth,
            threads=threads,
            tasks=groups,
            step_threads=shared,
            rest=rest,
        )

    @property
    def line(self) -> int:
        """Vectors of weights that fill a line of a cache, or a block of units."""
        units = min(_LINE_BYTES // self.element, self.recurrence.units)
        return max(1, units // self.lanes)

    def _fits(self, rows: int, gates: int, vectors: int, ways: int = 1) -> bool:
        """Whether registers hold that many sums, the weights that rows share, and the state."""
        shared = gates * vectors if rows > 1 else gates
        return ways * rows * gates * vectors + shared + 1 <= self.registers

    def _shares_steps(self) -> bool:
        """Whether units are shared in each step: by default where sequences do not fill all cores,
        and a step is long, for which the products of one sequence count: handing a step over means
        that the states of all move from core to core.
        """
        if self.machine.cores < 2 or self.recurrence.blocks < 2:
            return False
        tasks = None if self.batch is None else self.batch * self.recurrence.directions
        cores = self.machine.cores
        leaves_cores = tasks is None or tasks < cores or tasks % cores != 0
        products = self.recurrence.gates * self.recurrence.hidden**2
        microseconds = products / (self.added * self.machine.clock_ghz * 1e3)
        default = leaves_cores and microseconds > _SHORTEST_SHARED_STEP_US
        return bool(self.decisions.pick("step_threads", (0, 1), int(default)))

    def _rows(self, shares_steps: bool) -> int:
        """In groups of like size; where the batch is not known, a power of two."""
        if not self.batch:
            return 1 << (self.most.bit_length() - 1)
        fitting = min(self.most, self.batch)
        if self.threads_worth and not shares_steps:
            tasks = self.batch * self.recurrence.directions
            fitting = max(1, min(fitting, tasks // self.machine.cores))
        return -(-self.batch // -(-self.batch // fitting))

    def _gates(self, rows: int) -> tuple[list[int], int]:
        """Options, and the default: as many as leave whole lines of weights in registers; of one
        sequence, which waits for its weights, as few as give enough sums.
        """
        options = [n for n in range(1, self.gates + 1) if self.gates % n == 0]
        fitting = [n for n in options if n == 1 or self._fits(rows, n, 1)]
        if rows == 1:
            return fitting, next((n for n in fitting if self._sums(n) >= _ENOUGH_SUMS), fitting[-1])
        return fitting, max(n for n in fitting if n == 1 or self._fits(rows, n, self.line))

    def _sums(self, gates: int) -> int:
        """Vectors of sums of one sequence."""
        return gates * max(1, self._units(1, gates)[1] // self.lanes)

    def _units(self, rows: int, gates: int) -> tuple[list[int], int]:
        """Options, and the default."""
        widths = range(self.lanes, self.recurrence.units + 1, self.lanes)
        whole = [width for width in widths if self.recurrence.units % width == 0]
        fitting = [n for n in whole if self._fits(rows, gates, n // self.lanes)] or whole[:1]
        return fitting, fitting[-1]

    def _ways(self, rows: int, gates: int, units: int) -> tuple[list[int], int]:
        """Options, and the default."""
        # The steps that partial sums would share are one instruction of a dot product.
        several = (1, 2, SUM_UNROLL) if self.dot is None else (1,)
        vectors = max(1, units // self.lanes)
        ways = [n for n in several if n == 1 or self._fits(rows, gates, vectors, n)]
        sums = rows * gates * vectors
        return ways, next((n for n in ways if n * sums >= _ENOUGH_SUMS), ways[-1])

    def _sequences(self, rows: int) -> tuple[list[int], int]:
        """Options, and the default: as many as leave most of a core's cache to the weights."""
        state = self.recurrence.padded * self.element * len(self.recurrence.states())
        room = self.machine.l2_bytes // _STATES_SHARE
        batch = self.batch or _MOST_SEQUENCES
        options = [rows << n for n in range(_MOST_SEQUENCES.bit_length()) if rows << n < 2 * batch]
        options = [n for n in options if n == rows or n <= _MOST_SEQUENCES] or [rows]
        return options, max(n for n in options if n == rows or n * state <= room)

    def _depth(self, gates: int, units: int, shared: bool) -> tuple[list[int], int]:
        """Options, and the default: what of the weights stays in L1 beside states and sums."""
        summed = self.recurrence.summed
        parts = [n for n in range(SUM_UNROLL, summed, SUM_UNROLL) if summed % n == 0]
        options = [0, *(n for n in parts if n >= _LEAST_DEPTH)] if shared else [0]
        room = self.machine.l1d_bytes // _WEIGHTS_SHARE // (gates * units * self.element)
        return options, max(n for n in options if n <= room)

    def _sizes_of_rest(self, rows: int) -> list[int]:
        """Sequences of the groups that take what is left of a batch: in one group whatever is left,
        as each reads all weights for itself.
        """
        if self.batch is None:
            return list(range(rows - 1, 0, -1))
        return [self.batch % rows] if self.batch % rows else []

    def _rest(self, rows: int, shares_steps: bool, threads: bool) -> RecurrenceLoops:
        _, gates = self._gates(rows)
        _, units = self._units(rows, gates)
        _, ways = self._ways(rows, gates, units)
        # They are one group.
        on_threads = threads and self.recurrence.directions > 1
        return RecurrenceLoops(
            rows=rows,
            sequences=rows,
            gates=gates,
            units=units,
            ways=ways,
            threads=on_threads,
            step_threads=shares_steps,
        )


def _multiply_adds(operands: RecurrenceOperands) -> int:
    """Those of all steps; sizes that are symbolic are guessed."""
    recurrence = operands.recurrence
    steps = static_extent(operands.steps) or _STEPS_GUESSED
    rows = (static_extent(operands.batch) or 1) * recurrence.directions
    return steps * rows * recurrence.gates * recurrence.hidden**2

"""How many sequences of a recurrent layer go together, and what is handed to threads."""

from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.analysis.buffer_access import static_extent
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

    Asks for ``step_threads``, ``rows``, ``units``, ``ways`` and ``threads``.
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
        self.lanes = min(machine.vector_lanes(operands.dtype), self.recurrence.units)
        self.gates = max(len(product.gates) for product in self.recurrence.products())
        self.free = vector_registers(machine) - self.gates - 1
        self.most = max(1, min(_MOST_ROWS, self.free // self.gates))
        self.added = self.lanes if dot is None else self.lanes * SUM_UNROLL
        self.threads_worth = worth_threads(machine, _multiply_adds(operands), self.added)

    def loops(self) -> RecurrenceLoops:
        """What is decided."""
        decisions, batch = self.decisions, self.batch
        shared = self._shares_steps()
        options = range(1, min(self.most, batch or self.most) + 1)
        rows = decisions.pick("rows", options, self._rows(shared))
        units = decisions.pick("units", *self._units(rows))
        ways = decisions.pick("ways", *self._ways(rows, units))
        tasks = self.recurrence.directions * (rows if batch is None else -(-batch // rows))
        default = self.threads_worth and tasks > 1
        threads = not shared and pick_threads(decisions, self.machine, lambda: tasks, default)
        rest = tuple(self._rest(size, shared, threads) for size in self._sizes_of_rest(rows))
        return RecurrenceLoops(rows, units, ways, threads, shared, rest)

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
        """In groups of like size; where the batch is not known, a power of two, whose halves take
        what is left.
        """
        if self.batch is None:
            return 1 << (self.most.bit_length() - 1)
        fitting = min(self.most, self.batch)
        if self.threads_worth and not shares_steps:
            tasks = self.batch * self.recurrence.directions
            fitting = max(1, min(fitting, tasks // self.machine.cores))
        return -(-self.batch // -(-self.batch // fitting))

    def _units(self, rows: int) -> tuple[list[int], int]:
        """Options, and the default."""
        widths = range(self.lanes, self.recurrence.units + 1, self.lanes)
        whole = [width for width in widths if self.recurrence.units % width == 0]
        sums = rows * self.gates
        fitting = [n for n in whole if sums * (n // self.lanes) <= self.free] or whole[:1]
        return fitting, fitting[-1]

    def _ways(self, rows: int, units: int) -> tuple[list[int], int]:
        """Options, and the default."""
        sums = rows * self.gates
        # The steps that partial sums would share are one instruction of a dot product.
        several = (1, 2, SUM_UNROLL) if self.dot is None else (1,)
        ways = [n for n in several if n == 1 or n * sums * units <= self.free * self.lanes]
        vectors = sums * max(1, units // self.lanes)
        return ways, next((n for n in ways if n * vectors >= _ENOUGH_SUMS), ways[-1])

    def _sizes_of_rest(self, rows: int) -> list[int]:
        """Sequences of the groups that take what is left of a batch."""
        if self.batch is None:
            return [rows >> place for place in range(1, rows.bit_length())]
        return [self.batch % rows] if self.batch % rows else []

    def _rest(self, rows: int, shares_steps: bool, threads: bool) -> RecurrenceLoops:
        _, units = self._units(rows)
        _, ways = self._ways(rows, units)
        # They are one group.
        on_threads = threads and self.recurrence.directions > 1
        return RecurrenceLoops(rows, units, ways, on_threads, shares_steps)


def _multiply_adds(operands: RecurrenceOperands) -> int:
    """Those of all steps; sizes that are symbolic are guessed."""
    recurrence = operands.recurrence
    steps = static_extent(operands.steps) or _STEPS_GUESSED
    rows = (static_extent(operands.batch) or 1) * recurrence.directions
    return steps * rows * recurrence.gates * recurrence.hidden**2

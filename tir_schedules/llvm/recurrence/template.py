"""Recurrent layers: all steps in one kernel, the sums of a block of units in registers.

A step multiplies the state with the recurrent weights, which fill a cache level and are read from
beginning to end: contiguous vectors, one multiply-add each, and nothing else in the inner loop.
"""

from tvm import s_tir, tirx

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.llvm.knobs import pick_threads
from tvm_ext.tir_schedules.llvm.loop_nest import worth_threads
from tvm_ext.tir_schedules.llvm.recurrence.code import RecurrenceLoops, recurrence_code
from tvm_ext.tir_schedules.llvm.register_tile_decision import vector_registers
from tvm_ext.tir_schedules.llvm.row_code import with_body
from tvm_ext.tir_schedules.recurrence.description import (
    SUM_UNROLL,
    RecurrenceOperands,
    recurrence_of,
)
from tvm_ext.tir_schedules.template import Machine, NotMine

# Sums in registers that hide the latency of a multiply-add: four cycles, two of them a cycle.
_ENOUGH_SUMS = 8

# Sequences that are worth sharing a weight: with more, multiply-adds take longer than loads.
_MOST_ROWS = 6

# Where the model leaves steps or sequences open.
_STEPS_GUESSED = 16


class RecurrentLayer:
    """LSTM, GRU and RNN, without their input projection."""

    name = "recurrent layer"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, CpuDescription):
            return NotMine("the target is not a CPU")
        operands = recurrence_of(func)
        if operands is None:
            return NotMine("the kernel is no recurrent layer")
        loops = decide_recurrence(operands, machine, decisions)
        return s_tir.Schedule(with_body(func, recurrence_code(operands, loops)))


def decide_recurrence(
    operands: RecurrenceOperands, machine: CpuDescription, decisions: Decisions = CLOSED_FORM
) -> RecurrenceLoops:
    """In closed form as many sequences together as leave work for all cores and fit in registers.

    Asks for ``rows``, ``units``, ``ways`` and ``threads``.
    """
    recurrence = operands.recurrence
    lanes = min(machine.vector_lanes(operands.dtype), recurrence.units)
    gates = max(len(product.gates) for product in recurrence.products())
    free = vector_registers(machine) - gates - 1
    batch = static_extent(operands.batch)
    threads_worth = worth_threads(machine, _multiply_adds(operands), lanes)

    most = max(1, min(_MOST_ROWS, free // gates))
    shared = most if batch is None else min(most, batch)
    if batch is not None and threads_worth:
        busy = max(1, batch * recurrence.directions // machine.cores)
        shared = min(shared, busy)
    rows = decisions.pick("rows", range(1, min(most, batch or most) + 1), shared)

    widths = [n for n in range(lanes, recurrence.units + 1, lanes) if recurrence.units % n == 0]
    fitting = [n for n in widths if rows * gates * (n // lanes) <= free] or widths[:1]
    units = decisions.pick("units", fitting, fitting[-1])

    sums = rows * gates * max(1, units // lanes)
    ways = [n for n in (1, 2, SUM_UNROLL) if n == 1 or n * rows * gates * units <= free * lanes]
    enough = next((n for n in ways if n * sums >= _ENOUGH_SUMS), ways[-1])
    ways_chosen = decisions.pick("ways", ways, enough)

    tasks = recurrence.directions * (-(-batch // rows) if batch is not None else rows)
    threads = pick_threads(decisions, machine, lambda: tasks, threads_worth and tasks > 1)
    return RecurrenceLoops(rows, units, ways_chosen, threads)


def _multiply_adds(operands: RecurrenceOperands) -> int:
    """Those of all steps; sizes that are open are guessed."""
    recurrence = operands.recurrence
    steps = static_extent(operands.steps) or _STEPS_GUESSED
    rows = (static_extent(operands.batch) or 1) * recurrence.directions
    return steps * rows * recurrence.gates * recurrence.hidden**2

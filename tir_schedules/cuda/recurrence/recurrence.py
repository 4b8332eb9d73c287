"""Recurrent layers on a GPU: all steps in one kernel, one block for each group of sequences.

Steps wait for one another, so a sequence stays with one block of threads: its state is in shared
memory, and each thread sums for one unit of the layer over a part of the state. The floor of a step
is the time to read the recurrent weights: at 64 bytes a cycle from L2 about
``4 * gates * hidden**2 / 64`` cycles, which several sequences of a block share; the weights of
small layers stay in registers from the first step to the last. Where that is longer than a launch
takes, each step is one, shared by many multiprocessors.
"""

from dataclasses import replace

from tvm import s_tir, tirx

from tvm_ext.hardware.description import GpuDescription
from tvm_ext.tir_schedules.block_access import element_bytes, static_extent
from tvm_ext.tir_schedules.cuda.as_loops import without_offsets
from tvm_ext.tir_schedules.cuda.recurrence.recurrence_code import recurrence_code
from tvm_ext.tir_schedules.cuda.recurrence.recurrence_places import RecurrenceLaunch
from tvm_ext.tir_schedules.cuda.recurrence.recurrence_steps import steps_code
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.recurrence.description import (
    SUM_UNROLL,
    RecurrenceOperands,
    recurrence_of,
)
from tvm_ext.tir_schedules.template import Machine, NotMine

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


class RecurrentLayer:
    """LSTM, GRU and RNN, without their input projection."""

    name = "recurrent layer"

    def apply(
        self, func: tirx.PrimFunc, machine: Machine, decisions: Decisions = CLOSED_FORM
    ) -> s_tir.Schedule | NotMine:
        """See ``Template.apply``."""
        if not isinstance(machine, GpuDescription):
            return NotMine("the target is not an NVIDIA GPU")
        func = without_offsets(func)
        operands = recurrence_of(func)
        if operands is None:
            return NotMine("the kernel is no recurrent layer")
        if operands.recurrence.quantized_state:
            return NotMine("the state is quantised in every step")
        launch = decide_recurrence(operands, machine, decisions)
        if isinstance(launch, NotMine):
            return launch
        code = steps_code if launch.blocks > 1 else recurrence_code
        body, arrays = code(operands, launch)
        root = s_tir.SBlock([], [], [], "root", body, None, arrays)
        realized = s_tir.SBlockRealize([], tirx.const(True, "bool"), root)
        return s_tir.Schedule(func.with_body(realized))


def decide_recurrence(
    operands: RecurrenceOperands, machine: GpuDescription, decisions: Decisions = CLOSED_FORM
) -> RecurrenceLaunch | NotMine:
    """One sequence a block until all multiprocessors have one; threads enough to hide latency.

    Asks for ``rows``, ``ways`` and ``held``, and for ``blocks`` where each step may be a launch.
    """
    recurrence = operands.recurrence
    most = machine.max_threads_per_block
    units = recurrence.padded if recurrence.padded <= most else most // 2
    batch = static_extent(operands.batch)
    rows = [n for n in _ROWS if n == 1 or (batch is not None and n <= batch)]
    rows = [n for n in rows if _bytes(operands, units, n, 1) <= machine.shared_memory_bytes]
    if not rows:
        return NotMine("the state of a sequence does not fit in shared memory")
    shared = 1 if batch is None else batch * recurrence.directions // machine.sms
    row = decisions.pick("rows", rows, max(n for n in rows if n <= max(1, shared)))
    ways = [
        n
        for n in _WAYS
        if units * n <= most
        and n * SUM_UNROLL <= recurrence.summed
        and _bytes(operands, units, row, n) <= machine.shared_memory_bytes
    ]
    if not ways:
        return NotMine("the sums of a step do not fit in shared memory")
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
        shared_launches.sort(key=lambda one: -_step_seconds(operands, one, machine))
        # Of those with as many blocks the fastest.
        options |= {found.blocks: found for found in shared_launches}
    best = min(options.values(), key=lambda one: _step_seconds(operands, one, machine))
    return options[decisions.pick("blocks", sorted(options), best.blocks)]


def _shared_launches(
    operands: RecurrenceOperands, rows: int, machine: GpuDescription
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
        if _bytes(operands, units, rows, launch.ways, blocks) <= machine.shared_memory_bytes:
            found.append(launch)
    return found


def _step_seconds(
    operands: RecurrenceOperands, launch: RecurrenceLaunch, machine: GpuDescription
) -> float:
    """Estimated time of a step: weights from L2 to each multiprocessor, products, and a launch.

    The batch of an open size is taken for one sequence.
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


def _bytes(operands: RecurrenceOperands, units: int, rows: int, ways: int, blocks: int = 1) -> int:
    """Shared memory of a block: states, and partial sums of several ways."""
    recurrence = operands.recurrence
    states = len(recurrence.products()) * recurrence.padded
    gates = max(len(product.gates) for product in recurrence.products())
    partial = ways * gates * recurrence.padded // blocks if ways > 1 else 0
    return rows * (states + partial) * element_bytes(operands.arrays["x"])

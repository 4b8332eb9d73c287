"""How the rows of a kernel run, by a closed-form rule over the machine."""

from collections.abc import Callable
from dataclasses import dataclass

import tvm

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.decisions import CLOSED_FORM, Decisions
from tvm_ext.tir_schedules.inlining import count_calls
from tvm_ext.tir_schedules.llvm.knobs import distinct, pick_threads
from tvm_ext.tir_schedules.llvm.loop_nest import CYCLES_PER_CALL, worth_threads
from tvm_ext.tir_schedules.llvm.row_options import AcrossOptions, AlongOptions, ways
from tvm_ext.tir_schedules.rows.row_kernel import (
    RowKernel,
    buffer_key,
    is_reduction_only,
    product,
)
from tvm_ext.tir_schedules.rows.row_strides import is_dense

# Accumulators of a reduction: latency of an add times the adds that start in a cycle.
ACCUMULATORS = 4

# From the lanes of a vector to one result.
CYCLES_PER_COMBINATION = 16.0

# Vectors of a row up to which it has one accumulator, and up to which two: more of them take longer
# to combine than they save. Rows that short are mostly latency, so as many run at once.
SHORT_ROW = 8
MIDDLE_ROW = 32

# Of a reduction whose rows lie side by side: longer stretches of memory at once.
WIDE_ACCUMULATORS = 8

# Vectors of partial results that stay in cache while a matrix that does not is read row by row.
STREAMED_VECTORS = 256


@dataclass(frozen=True)
class RowDecision:
    """How the rows of a kernel run.

    Attributes
    ----------
    across : bool
        Whether the lanes of a vector hold the same element of several rows; else they hold
        neighbours in one row.
    lanes : int
        Elements of a vector.
    registers : int
        Vectors that are in work at once: accumulators of a reduction, or rows over ``lanes``.
    chunks : int
        Parts in which the rows are handed to threads; 1 for a serial loop.
    together : int
        Rows along which the vectors run that are in work at once.
    in_output : bool
        Whether a row that is needed again waits in the output, where that fits, or in a buffer of
        its own.
    """

    across: bool
    lanes: int
    registers: int
    chunks: int
    together: int = 1
    in_output: bool = True


def decide_rows(
    kernel: RowKernel, machine: CpuDescription, decisions: Decisions = CLOSED_FORM
) -> RowDecision:
    """The closed-form choice.

    Asks whether to run ``across`` the rows, for ``registers`` and ``threads`` and, with these, for
    ``chunks``; along the rows also for ``together`` and ``in_output``.
    """
    lanes = _lanes(kernel, machine)
    if is_open(kernel):
        return _open_rows(kernel, lanes, machine)
    runs_across = _runs_across(kernel, lanes)
    across = bool(decisions.pick("across", ways(kernel, lanes), int(runs_across)))
    busy = worth_threads(machine, operations(kernel, across, lanes), lanes)
    if across:
        tiles = AcrossOptions(kernel, lanes, machine.cores if busy else 1)
        default = _registers_across(kernel, machine, lanes)
        most = max(default, machine.l2_bytes // (2 * _bytes_waiting(kernel) * lanes))
        registers = decisions.pick("registers", tiles.registers(default, most), default)
        chunks = _chunks(lambda n: tiles.shared(registers, n), busy, machine, decisions)
        return RowDecision(True, lanes, registers, chunks)
    row = AlongOptions(kernel, lanes)
    registers, together = _registers_along(kernel, lanes)
    registers = decisions.pick("registers", row.registers(registers), registers)
    together = decisions.pick("together", row.together(registers, together), together)
    in_output = bool(decisions.pick("in_output", row.in_output(), 1))
    chunks = _chunks(lambda _: row.shared(together), busy, machine, decisions)
    return RowDecision(False, lanes, registers, chunks, together, in_output)


def is_open(kernel: RowKernel) -> bool:
    """Whether it is known in the run only how many rows there are, or how long they are."""
    lengths = [block.length for block in kernel.blocks]
    return not all(isinstance(count, int) for count in (kernel.count, *lengths))


def _open_rows(kernel: RowKernel, lanes: int, machine: CpuDescription) -> RowDecision:
    """Along the rows, on threads."""
    known = all(isinstance(block.length, int) for block in kernel.blocks)
    registers, together = _registers_along(kernel, lanes) if known else (ACCUMULATORS, 1)
    return RowDecision(False, lanes, registers, machine.cores, together)


def _chunks(
    shared: Callable[[int], int], busy: bool, machine: CpuDescription, decisions: Decisions
) -> int:
    """In how many parts rows are handed to threads: ``shared(parts)`` tiles of them."""
    cores = machine.cores
    if not pick_threads(decisions, machine, lambda: shared(cores), busy):
        return 1

    def outcome(parts: int) -> tuple[int, int]:
        count = shared(parts)
        return count, -(-count // min(parts, count))

    options = (n for n in distinct((2 * cores, 4 * cores), cores, outcome) if shared(cores) > 1)
    return decisions.pick("chunks", options, cores)


def operations(kernel: RowKernel, across: bool, lanes: int) -> float:
    """Work of the kernel in elements, with what calls and the end of each reduction take."""
    total = 0.0
    for block in kernel.blocks:
        calls = sum(count_calls(store.value) for store in block.stores)
        total += kernel.count * block.length * (1 + CYCLES_PER_CALL * calls)
        if block.starts and not across:
            total += kernel.count * len(block.stores) * CYCLES_PER_COMBINATION * lanes
    return total


def _lanes(kernel: RowKernel, machine: CpuDescription) -> int:
    """Elements of a vector of the widest type that is computed with; positions do not count."""
    dtypes = {str(load.source.dtype) for load in kernel.loads()}
    values = {dtype for dtype in dtypes if "float" in dtype} or dtypes
    return min((machine.vector_lanes(_stored(dtype)) for dtype in values), default=1)


def _stored(dtype: str) -> str:
    return "int8" if dtype == "bool" else dtype


def _runs_across(kernel: RowKernel, lanes: int) -> bool:
    if kernel.count == 1:
        return False
    blocks = [block for block in kernel.blocks if block.columns]
    if all(is_dense(kernel, block.columns, [block]) for block in blocks):
        # A row that fills a small part of a vector is better off gathered with others.
        shortest = lanes // 2 if is_reduction_only(kernel) else lanes // 4
        return kernel.length <= shortest and kernel.count >= lanes
    return is_dense(kernel, kernel.rows, kernel.blocks) or kernel.length < lanes


def _registers_along(kernel: RowKernel, lanes: int) -> tuple[int, int]:
    """Accumulators of a row, and rows at once."""
    vectors = -(-kernel.length // lanes)
    if vectors <= SHORT_ROW:
        return 1, 4
    if vectors <= MIDDLE_ROW:
        return 2, 2
    return ACCUMULATORS, 1


def _registers_across(kernel: RowKernel, machine: CpuDescription, lanes: int) -> int:
    if not is_dense(kernel, kernel.rows, kernel.blocks):
        # Lanes that are gathered one by one do not gain from more of them.
        return 1
    if is_reduction_only(kernel):
        if _bytes_read(kernel) <= machine.l2_bytes or len(kernel.blocks[0].stores) > 1:
            return WIDE_ACCUMULATORS
        share = -(-kernel.count // (lanes * machine.cores))
        return max(WIDE_ACCUMULATORS, min(share, STREAMED_VECTORS))
    # Rows that wait for a later block are to stay in L1.
    fitting = machine.l1d_bytes // (2 * _bytes_waiting(kernel) * lanes)
    return 1 << max(0, min(fitting, ACCUMULATORS).bit_length() - 1)


def _bytes_waiting(kernel: RowKernel) -> int:
    """What one row keeps for later blocks; 1 at least."""
    buffers = {buffer_key(s.buffer): s.buffer for k in kernel.blocks for s in k.stores}
    waiting = sum(
        product(static_extent(buffer.shape[d]) or 1 for d in kernel.inner[key])
        * tvm.DataType(str(buffer.dtype)).bits
        // 8
        for key, buffer in buffers.items()
        if key in kernel.inner
    )
    return max(waiting, 1)


def _bytes_read(kernel: RowKernel) -> int:
    sizes = {
        buffer_key(load.source): product(static_extent(s) or 1 for s in load.source.shape)
        * tvm.DataType(str(load.source.dtype)).bits
        // 8
        for load in kernel.loads()
        if buffer_key(load.source) not in kernel.inner
    }
    return sum(sizes.values())

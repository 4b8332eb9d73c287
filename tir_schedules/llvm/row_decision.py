"""How the rows of a kernel run, by a closed-form rule over the machine."""

from dataclasses import dataclass

import tvm

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tir_schedules.block_access import static_extent
from tvm_ext.tir_schedules.llvm.inlining import count_calls
from tvm_ext.tir_schedules.llvm.loop_nest import CYCLES_PER_CALL, worth_threads
from tvm_ext.tir_schedules.llvm.row_kernel import RowKernel, buffer_key, product
from tvm_ext.tir_schedules.llvm.row_strides import is_dense

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


def decide_rows(kernel: RowKernel, machine: CpuDescription) -> RowDecision:
    """The closed-form choice."""
    lanes = _lanes(kernel, machine)
    across = _runs_across(kernel, lanes)
    chunks = (
        machine.cores if worth_threads(machine, operations(kernel, across, lanes), lanes) else 1
    )
    if across:
        return RowDecision(True, lanes, _registers_across(kernel, machine, lanes), chunks)
    registers, together = _registers_along(kernel, lanes)
    return RowDecision(False, lanes, registers, chunks, together)


def operations(kernel: RowKernel, across: bool, lanes: int) -> float:
    """Work of the kernel in elements, with what calls and the end of each reduction take."""
    total = 0.0
    for block in kernel.blocks:
        calls = sum(count_calls(store.value) for store in block.stores)
        total += kernel.count * block.length * (1 + CYCLES_PER_CALL * calls)
        if block.starts and not across:
            total += kernel.count * len(block.stores) * CYCLES_PER_COMBINATION * lanes
    return total


def is_reduction_only(kernel: RowKernel) -> bool:
    """Whether the kernel computes nothing but values of whole rows."""
    return all(block.starts or not block.columns for block in kernel.blocks)


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
    waiting = sum(
        product(static_extent(b.shape[d]) or 1 for d in kernel.inner[buffer_key(b)])
        * tvm.DataType(str(b.dtype)).bits
        // 8
        for b in {buffer_key(s.buffer): s.buffer for k in kernel.blocks for s in k.stores}.values()
        if buffer_key(b) in kernel.inner
    )
    fitting = machine.l1d_bytes // (2 * max(waiting, 1) * lanes)
    return 1 << max(0, min(fitting, ACCUMULATORS).bit_length() - 1)


def _bytes_read(kernel: RowKernel) -> int:
    sizes = {
        buffer_key(load.source): product(static_extent(s) or 1 for s in load.source.shape)
        * tvm.DataType(str(load.source.dtype)).bits
        // 8
        for load in kernel.loads()
        if buffer_key(load.source) not in kernel.inner
    }
    return sum(sizes.values())

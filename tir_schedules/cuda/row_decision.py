"""How a row kernel is dealt to threads: along the rows or across them, and how many."""

import math
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import tirx

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.analysis.buffer_access import LoopAxis, element_bytes, nodes
from tvm_ext.tir_schedules.analysis.row_kernel import (
    RowBlock,
    RowKernel,
    Store,
    accesses,
    buffer_key,
    strides,
)
from tvm_ext.tir_schedules.cuda.launch import nominal_extent
from tvm_ext.tir_schedules.cuda.vector_group import power_above, powers_down
from tvm_ext.tir_schedules.template import Decisions

PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

# 32-bit registers of a thread that may hold rows: with 255 at most, the rest is for arithmetic.
ROW_REGISTERS = 64

# Vectors of a row that one thread of a warp takes before a row is worth several warps.
_VECTORS_PER_LANE = 8

# Rows up to this length are one thread's work: combining would take longer.
_SHORT_ROW = 8

_BLOCK_THREADS = 128

# Rows for each multiprocessor where their number is known in the run only.
_ROWS_OF_SYMBOLIC_COUNT = 16


@dataclass(frozen=True)
class RowLaunch:
    """How a block of threads works on its rows.

    Attributes
    ----------
    across : bool
        Whether neighbouring threads work on neighbouring rows instead of on parts of one row.
    parts : int
        Threads of one row, a power of two.
    rows : int
        Rows of one block of threads.
    vector : int
        Neighbouring elements of a row that a thread takes at once.
    """

    across: bool
    parts: int
    rows: int
    vector: int

    def steps(self, length: int) -> int:
        """How many vectors a thread takes of a row."""
        return -(-length // (self.parts * self.vector))


def decide_launch(
    kernel: RowKernel, fits: Any, machine: CudaDescription, decisions: Decisions
) -> RowLaunch:
    """How ``kernel`` is launched; ``fits`` says whether a width of vectors suits all blocks."""
    across = runs_across(kernel)
    widths = [1] if across else [w for w in powers_down(_widest(kernel, machine)) if fits(w)]
    vector = decisions.pick("vector", widths, widths[0])
    vectors = -(-kernel.length // vector)
    most = machine.max_threads_per_block
    warp = machine.warp_size
    least = 1 if across else warp
    options = [
        parts
        for parts in PARTS
        if least <= parts <= (most // warp if across else most)
        and parts < 2 * max(vectors, least)
        and row_registers(kernel, parts, vector) <= ROW_REGISTERS
    ]
    if not options:
        raise NotApplicable("a row does not fit in the registers of a block's threads")
    wanted = _wanted_parts(kernel, vectors, across, machine)
    default = min(options, key=lambda parts: (abs(parts.bit_length() - wanted.bit_length()), parts))
    parts = decisions.pick("parts", options, default)
    fewest = warp if across else 1
    nominal = nominal_count(kernel, machine)
    counts = [
        n for n in PARTS if fewest <= n and n * parts <= most and n < 2 * max(nominal, fewest)
    ]
    occupying = [
        n for n in counts if n * parts <= _BLOCK_THREADS and -(-nominal // n) >= machine.sms
    ]
    rows = decisions.pick("rows", counts, max(occupying, default=min(counts)))
    return RowLaunch(across, parts, rows, vector)


def _wanted_parts(kernel: RowKernel, vectors: int, across: bool, machine: CudaDescription) -> int:
    """Threads for a row: few while there are rows enough for all multiprocessors."""
    resident = 2048 * machine.sms // 2
    count = nominal_count(kernel, machine)
    if across:
        enough = max(1, resident // max(count, machine.warp_size))
        return min(power_above(enough), max(1, power_above(vectors) // 4), 32)
    if vectors <= machine.warp_size * _VECTORS_PER_LANE and count >= 4 * machine.sms:
        return machine.warp_size
    return max(machine.warp_size, power_above(-(-vectors // 4)))


def nominal_count(kernel: RowKernel, machine: CudaDescription) -> int:
    """How many rows a launch is chosen for: enough for all multiprocessors when it is not known.

    The fewer there are in the run, the less it matters how they are dealt.
    """
    if isinstance(kernel.count, int):
        return kernel.count
    return max(nominal_extent(kernel.count), _ROWS_OF_SYMBOLIC_COUNT * machine.sms)


def runs_across(kernel: RowKernel) -> bool:
    """Whether rows are neighbours in memory rather than the elements of one, or very short."""
    if kernel.length <= _SHORT_ROW:
        return True
    longest = [block for block in kernel.blocks if block.length == kernel.length]
    along, beside = along_and_beside(kernel, longest)
    return beside > along


def along_and_beside(kernel: RowKernel, blocks: list[RowBlock]) -> tuple[int, int]:
    """How many accesses move by one element along the rows of some blocks, and from row to row."""
    if not kernel.rows:
        return 1, 0
    along = _unit_steps(kernel, blocks, lambda block: block.columns[-1:])
    return along, _unit_steps(kernel, blocks, lambda block: kernel.rows[-1:])


def _unit_steps(kernel: RowKernel, blocks: list[RowBlock], axes: Any) -> int:
    """How many accesses to memory move by one element with some axes of each block."""
    zero = tirx.const(0, "int32")
    total = 0
    for block in blocks:
        # What is reduced to is in registers until the end of the row.
        held = {buffer_key(store.buffer) for store in block.stores} if block.starts else set()
        outside = tuple(
            Store(buffer, indices, zero)
            for buffer, indices in accesses(block.stores)
            if buffer_key(buffer) not in {*kernel.inner, *held}
        )
        total += strides(kernel, axes(block), [replace(block, stores=outside)]).count(1)
    return total


def row_registers(kernel: RowKernel, parts: int, vector: int) -> int:
    """32-bit registers of a thread for the rows that wait between blocks."""
    total = 0
    for buffer, size in inner_buffers(kernel):
        if size > 1:
            elements = -(-size // (parts * vector)) * vector
            total += elements * max(1, -(-element_bytes(buffer) // 4))
    return total


def inner_buffers(kernel: RowKernel) -> list[tuple[Any, int]]:
    """The buffers that only the kernel sees, with their elements for one row."""
    found: dict[int, Any] = {}
    for block in kernel.blocks:
        for store in block.stores:
            if buffer_key(store.buffer) in kernel.inner:
                found[buffer_key(store.buffer)] = store.buffer
    return [
        (buffer, math.prod(int(buffer.shape[d].value) for d in kernel.inner[key]))
        for key, buffer in found.items()
    ]


def _widest(kernel: RowKernel, machine: CudaDescription) -> int:
    """Elements in 16 bytes of the widest type that moves along the longest rows in memory."""
    dtypes: set[str] = set()
    for block in kernel.blocks:
        if block.length != kernel.length:
            continue
        columns = {buffer_key(axis.var) for axis in block.columns}
        stores = block.stores if not block.starts else ()
        moved = [(store.buffer, store.indices) for store in stores]
        values = [store.value for store in block.stores]
        moved += [
            (load.source, load.indices)
            for value in values
            for load in nodes(value, tvm.ir.TensorLoad)
        ]
        for buffer, indices in moved:
            used = {buffer_key(v) for i in indices for v in tirx.analysis.undefined_vars(i)}
            if used & columns and buffer_key(buffer) not in kernel.inner:
                dtypes.add(str(buffer.dtype))
    return min((machine.vector_lanes(dtype) for dtype in dtypes - {"bool"}), default=1)


def step_axis(name: str, extent: Any, dtype: str) -> LoopAxis:
    """A variable with its range."""
    return LoopAxis(tirx.Var(name, dtype), extent)

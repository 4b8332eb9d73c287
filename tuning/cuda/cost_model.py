"""What limits a scheduled kernel on a GPU: a roofline over its multiprocessors and memories.

S. Williams, A. Waterman, D. Patterson, "Roofline", Communications of the ACM 52(4), 2009, asked of
what the schedule does: matrix instructions, arithmetic, shared memory and the sectors that each
block of threads fetches, on the multiprocessor with the most blocks. By Little's law, memory is as
fast as the bytes that are under way allow.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir.utils import derived_object

from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.hardware.matrix_instructions import MatrixInstruction, read_call
from tvm_ext.tir_schedules.analysis.buffer_access import (
    buffer_bytes,
    element_bytes,
    nodes,
    static_extent,
)
from tvm_ext.tir_schedules.analysis.index_values import values_of
from tvm_ext.tuning.candidate import lowered
from tvm_ext.tuning.cost_models.base import FormulaModel

# Reads a scheduled kernel for a GPU: its blocks of threads, and what one warp of them does.
#
# Addresses are looked at as the first warp of a block in the middle of the grid has them: which
# sectors of global memory its 32 threads touch at a time, and which banks of shared memory.
# Conditions are taken by the share of the block's warps for which they hold.


WARP = 32
SECTOR_BYTES = 32
"""What global memory is read in. CUDA C++ Best Practices Guide, "Coalesced Access"."""

BANKS = 32
BANK_BYTES = 4

# A matrix instruction of a warpgroup is one of four warps: PTX ISA, "wgmma.mma_async".
_GROUP_WARPS = 4

_SIMPLE = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Min, tirx.Max, tirx.Select, tirx.Cast),
    *(tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.EQ, tirx.NE),
)
_CHEAP_CALLS = ("prim.if_then_else", "tirx.reinterpret", "tirx.likely", "tirx.fabs")


@dataclass
class CudaKernel:
    """What a kernel does.

    Attributes
    ----------
    blocks, threads : int
        Blocks of the grid, threads of a block.
    shared_bytes : int
        Shared memory of a block.
    parameter_bytes : int
        All tensors, each once.
    matrix_flops : dict[MatrixInstruction, float]
        Operations of a warp's matrix instructions.
    operations, functions : float
        Other operations of a thread on values: those done at the full rate, and exponentials,
        divisions and the like.
    memory_instructions : float
        Loads and stores of a warp, to global and shared memory.
    sectors : float
        Sectors of global memory that they touch.
    bank_cycles : float
        Cycles in which the banks of shared memory serve a warp.
    widest : int
        Bytes of the widest access of a thread to global memory.
    """

    blocks: int = 1
    threads: int = 1
    shared_bytes: int = 0
    parameter_bytes: int = 0
    matrix_flops: dict[MatrixInstruction, float] | None = None
    operations: float = 0.0
    functions: float = 0.0
    memory_instructions: float = 0.0
    sectors: float = 0.0
    bank_cycles: float = 0.0
    widest: int = 1

    @property
    def warps(self) -> int:
        """Warps of a block."""
        return math.ceil(self.threads / WARP)


def read_kernel(func: tirx.PrimFunc) -> CudaKernel:
    """The kernel of a function that ``lowered`` returned."""
    launches = [stmt for stmt in nodes(func.body, tirx.AttrStmt) if _tag(stmt)]
    extents: dict[str, int] = {}
    for stmt in launches:
        tag = _tag(stmt)
        extents[tag] = max(extents.get(tag, 1), static_extent(stmt.value) or 1)
    kernel = CudaKernel(
        math.prod(n for tag, n in extents.items() if tag.startswith("blockIdx")),
        math.prod(n for tag, n in extents.items() if tag.startswith("threadIdx")),
        parameter_bytes=sum(buffer_bytes(p) for p in func.params if hasattr(p, "shape")),
        matrix_flops={},
    )
    reader = _WarpReader(kernel, extents)
    reader.read(func.body, 1.0)
    return kernel


def _tag(stmt: tirx.AttrStmt) -> str:
    return str(stmt.node.thread_tag) if stmt.attr_key == "thread_extent" else ""


class _WarpReader:
    def __init__(self, kernel: CudaKernel, extents: dict[str, int]) -> None:
        self._kernel, self._extents = kernel, extents
        self._places = _places(extents, kernel.warps)
        self._known: dict[int, np.ndarray] = {}
        self._readers = {
            tirx.SeqStmt: self._sequence,
            tirx.For: self._loop,
            tirx.AttrStmt: self._attribute,
            tirx.IfThenElse: self._branch,
            tirx.BufferStore: self._store,
            tirx.AllocBuffer: self._allocate,
            tirx.Bind: self._bind,
            tirx.Evaluate: self._evaluate,
        }

    def read(self, stmt: tirx.Stmt, times: float) -> None:
        """Adds a statement that each warp runs ``times`` times."""
        reader = self._readers.get(type(stmt))
        if reader is not None:
            reader(stmt, times)
        elif hasattr(stmt, "body"):
            self.read(stmt.body, times)

    def _sequence(self, stmt: tirx.SeqStmt, times: float) -> None:
        for part in stmt.seq:
            self.read(part, times)

    def _loop(self, loop: tirx.For, times: float) -> None:
        extent = self._turns(loop.extent)
        first = values_of(loop.min, self._known)
        self._known[hash(loop.loop_var)] = np.asarray(0 if first is None else first) + extent // 2
        self.read(loop.body, times * extent)

    def _turns(self, extent: tirx.Expr) -> int:
        """How often a loop runs, for the threads that are looked at where that differs."""
        fixed = static_extent(extent)
        if fixed is not None:
            return fixed
        found = values_of(extent, self._known)
        return 1 if found is None else max(1, int(np.max(found)))

    def _attribute(self, stmt: tirx.AttrStmt, times: float) -> None:
        tag = _tag(stmt)
        if tag in self._extents:
            # Of several kernels one has the most blocks; the others do their work in some of them.
            own = static_extent(stmt.value) or 1
            times *= own / self._extents[tag]
            # The block in the middle; of a cluster, where all do the same, the first.
            block = own // 2 if tag.startswith("blockIdx") else 0
            self._known[hash(stmt.node.var)] = self._places.get(tag, np.asarray(block))
        self.read(stmt.body, times)

    def _branch(self, stmt: tirx.IfThenElse, times: float) -> None:
        holds = values_of(stmt.condition, self._known)
        taken = 0.5 if holds is None else self._share_of_warps(holds)
        missed = 0.5 if holds is None else self._share_of_warps(np.logical_not(holds))
        self.read(stmt.then_case, times * taken)
        if stmt.else_case is not None:
            self.read(stmt.else_case, times * missed)

    def _share_of_warps(self, holds: np.ndarray) -> float:
        """Warps with a thread for which a condition holds."""
        threads = np.broadcast_to(holds, WARP * self._kernel.warps)
        return float(threads.reshape(-1, WARP).any(axis=1).mean())

    def _allocate(self, stmt: tirx.AllocBuffer, times: float) -> None:
        if stmt.buffer.scope().startswith("shared"):
            self._kernel.shared_bytes += buffer_bytes(stmt.buffer)

    def _bind(self, stmt: tirx.Bind, times: float) -> None:
        value = values_of(stmt.value, self._known)
        if value is not None:
            self._known[hash(stmt.var)] = value
        self._value(stmt.value, times)

    def _store(self, stmt: tirx.BufferStore, times: float) -> None:
        self._value(stmt.value, times)
        self._access(stmt.buffer, stmt.indices, _lanes(stmt.value), times)

    def _evaluate(self, stmt: tirx.Evaluate, times: float) -> None:
        call = stmt.value
        if not isinstance(call, tvm.ir.Call):
            return
        words = [str(arg.value) for arg in call.args if isinstance(arg, tvm.ir.StringImm)]
        name = str(getattr(call.op, "name", ""))
        found = read_call(name, words)
        if found is not None:
            self._matrix_instruction(*found, times)
        elif "ldmatrix" in name:
            # Four tiles of 8 rows of 16 bytes, each a cycle of all banks.
            self._kernel.bank_cycles += 4 * times
            self._kernel.memory_instructions += times

    def _matrix_instruction(
        self, instruction: MatrixInstruction, columns: int, times: float
    ) -> None:
        flops = 2.0 * instruction.m * columns * instruction.k * times
        if instruction.held == "shared":
            flops /= _GROUP_WARPS
        totals = self._kernel.matrix_flops
        if totals is not None:
            totals[instruction] = totals.get(instruction, 0.0) + flops

    def _value(self, value: tirx.Expr, times: float) -> None:
        for load in nodes(value, tvm.ir.TensorLoad):
            self._access(load.source, load.indices, _lanes(load), times)
        for kind in _SIMPLE:
            self._kernel.operations += times * sum(map(_lanes, nodes(value, kind)))
        for call in nodes(value, tvm.ir.Call):
            if str(getattr(call.op, "name", "")) not in _CHEAP_CALLS:
                self._kernel.functions += times * _lanes(call)
        self._kernel.functions += times * sum(map(_lanes, nodes(value, tirx.Div)))

    def _access(self, buffer: tirx.Buffer, indices: Any, lanes: int, times: float) -> None:
        scope = buffer.scope()
        if scope.startswith("local") or not len(indices):
            return
        size = element_bytes(buffer)
        first = self._addresses(indices[-1], lanes, size)
        kernel = self._kernel
        kernel.memory_instructions += times
        if scope.startswith("shared"):
            kernel.bank_cycles += times * _bank_cycles(first, lanes * size)
        else:
            kernel.sectors += times * len(_pieces(first, lanes * size, SECTOR_BYTES))
            kernel.widest = max(kernel.widest, lanes * size)

    def _addresses(self, index: tirx.Expr, lanes: int, size: int) -> np.ndarray:
        """Byte address of each thread's first element; side by side where it depends on data."""
        base = index.base if isinstance(index, tirx.Ramp) else index
        values = values_of(base, self._known)
        if values is None:
            values = np.arange(WARP) * lanes
        threads = WARP * self._kernel.warps if np.ndim(values) and np.size(values) > WARP else WARP
        return np.broadcast_to(np.asarray(values, dtype=np.int64), threads)[:WARP] * size


def _places(extents: dict[str, int], warps: int) -> dict[str, np.ndarray]:
    """By tag, the indices of all threads of a block."""
    places = {}
    rest = np.arange(WARP * warps)
    for tag in ("threadIdx.x", "threadIdx.y", "threadIdx.z"):
        extent = extents.get(tag, 1)
        places[tag] = rest % extent
        rest = rest // extent
    return places


def _lanes(expr: tirx.Expr) -> int:
    dtype = getattr(getattr(expr, "ty", None), "dtype", None)
    return int(tvm.DataType(str(dtype)).lanes) if dtype is not None else 1


def _pieces(first: np.ndarray, width: int, step: int) -> np.ndarray:
    """The pieces of ``step`` bytes that the threads' accesses of ``width`` bytes touch."""
    offsets = np.arange(0, max(width, 1), min(step, max(width, 1)))
    return np.unique((first[:, None] + offsets[None, :]) // step)


def _bank_cycles(first: np.ndarray, width: int) -> int:
    """Cycles in which the banks serve a warp: words of the bank that has most of them."""
    words = _pieces(first, width, BANK_BYTES)
    return int(np.bincount(words % BANKS).max())


# CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability": threads and
# blocks of a multiprocessor.
_MAX_THREADS = 2048
_MAX_BLOCKS = 32

# Registers of a thread where nobody has counted them.
_REGISTERS = 64

# Warps that keep the four schedulers of a multiprocessor busy.
_BUSY_WARPS = 8

# Functions a cycle of a multiprocessor's special function units: the same guide, "Arithmetic
# Instructions".
_FUNCTIONS_PER_CYCLE = 16

# Estimates: time until memory answers, and loads that a thread has under way at a time.
_LATENCY_SECONDS = 0.6e-6
_LOADS_UNDER_WAY = 2

# Part of the shorter times that does not hide behind the longest.
_EXPOSED = 0.25


@dataclass(frozen=True)
class CudaCost:
    """A kernel's cost, part by part.

    Attributes
    ----------
    kernel : CudaKernel
        What it does.
    machine : CudaDescription
        Where.
    """

    kernel: CudaKernel
    machine: CudaDescription

    @property
    def resident_blocks(self) -> int:
        """Blocks that a multiprocessor can run at a time."""
        kernel, machine = self.kernel, self.machine
        limits = [
            _MAX_BLOCKS,
            _MAX_THREADS // kernel.threads,
            machine.registers_per_block // (_REGISTERS * kernel.warps * WARP),
        ]
        if kernel.shared_bytes:
            limits.append(machine.dynamic_shared_memory_bytes // kernel.shared_bytes)
        return max(1, min(limits))

    @property
    def rounds(self) -> int:
        """Blocks of the multiprocessor that has most of them."""
        return math.ceil(self.kernel.blocks / self.machine.sms)

    @property
    def resident_warps(self) -> int:
        """Warps that a multiprocessor has at a time."""
        return min(self.resident_blocks, self.rounds) * self.kernel.warps

    @property
    def compute_seconds(self) -> float:
        """Arithmetic and shared memory of the multiprocessor with the most blocks."""
        kernel, machine = self.kernel, self.machine
        hertz = machine.clock_ghz * 1e9
        matrix = sum(
            flops * machine.sms / machine.instruction_flops(instruction) * hertz
            for instruction, flops in (kernel.matrix_flops or {}).items()
        )
        arithmetic = kernel.operations * WARP / machine.fp32_lanes_per_sm
        functions = kernel.functions * WARP / _FUNCTIONS_PER_CYCLE
        memory = max(kernel.bank_cycles, kernel.memory_instructions)
        cycles = max(matrix, arithmetic + functions, memory) * kernel.warps * self.rounds
        return cycles / hertz / min(1.0, self.resident_warps / _BUSY_WARPS)

    @property
    def memory_seconds(self) -> float:
        """What all blocks fetch from L2, and every tensor once from where it is."""
        kernel, machine = self.kernel, self.machine
        fetched = kernel.sectors * SECTOR_BYTES * kernel.warps * kernel.blocks
        once = kernel.parameter_bytes
        seconds = max(once / machine.bandwidth(once), max(fetched, once) / (machine.l2_gbs * 1e9))
        # Loads of a thread, or tiles that a pipeline copies ahead.
        loads = self.resident_warps * WARP * kernel.widest * _LOADS_UNDER_WAY
        tiles = min(self.resident_blocks, self.rounds) * kernel.shared_bytes
        busy = min(kernel.blocks, machine.sms)
        needed = machine.memory_gbs * 1e9 * _LATENCY_SECONDS
        return seconds / min(1.0, max(loads, tiles) * busy / needed)

    @property
    def seconds(self) -> float:
        """All of it."""
        parts = (self.compute_seconds, self.memory_seconds)
        hidden = max(parts)
        return hidden + _EXPOSED * (sum(parts) - hidden) + self.machine.kernel_overhead_us * 1e-6


def cuda_cost(mod: tvm.IRModule, machine: CudaDescription) -> CudaCost:
    """The cost of the scheduled kernel "main" of ``mod``. NotApplicable where TVM refuses."""
    return CudaCost(read_kernel(lowered(mod, machine)), machine)


# Ranks candidates for a GPU by a roofline over what they do, without any training.


@derived_object
class CudaCostModel(FormulaModel):
    """``cuda_cost`` as a model that MetaSchedule can ask."""

    def modelled_seconds(self, mod: tvm.IRModule) -> float:
        """See ``FormulaModel``."""
        return cuda_cost(mod, self.machine).seconds

"""What limits a scheduled kernel on a GPU: a roofline over its multiprocessors and memories.

S. Williams, A. Waterman, D. Patterson, "Roofline", Communications of the ACM 52(4), 2009, asked of
what the schedule does: matrix instructions, arithmetic, shared memory and the sectors that each
block of threads fetches, on the multiprocessor with the most blocks. By Little's law, memory is as
fast as the bytes that are under way allow.
"""

import math
from dataclasses import dataclass

import tvm
from tvm.ir.utils import derived_object

from tvm_ext.hardware.cuda.description import CudaDescription
from tvm_ext.tir_schedules.cuda.warp_reader import SECTOR_BYTES, WARP, CudaKernel, read_kernel
from tvm_ext.tir_schedules.lowered_kernel import lowered
from tvm_ext.tuning.cost_models.base import FormulaModel

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
            for instruction, flops in kernel.matrix_flops.items()
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

"""What limits a scheduled kernel: seconds of its instructions, its memory and its threads."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import tvm
from tvm.ir.utils import derived_object

from tvm_ext.hardware.cost_model import Work, cost_model
from tvm_ext.hardware.cpu.description import CpuDescription
from tvm_ext.tir_schedules.cpu.cache_traffic import Traffic, traffic
from tvm_ext.tir_schedules.cpu.loop_tree import Kernel, LoopNode, kernel_loops
from tvm_ext.tir_schedules.lowered_kernel import lowered
from tvm_ext.tuning.cost_models.base import FormulaModel
from tvm_ext.tuning.cpu.cycles import LoopBody, bodies

# Part of the shorter times that does not hide behind the longest.
_EXPOSED = 0.5


@dataclass(frozen=True)
class CpuCost:
    """A kernel's cost, part by part.

    Attributes
    ----------
    kernel : Kernel
        Its loops.
    bodies : tuple[LoopBody, ...]
        What they run.
    traffic : Traffic
        Bytes between the caches.
    machine : CpuDescription
        Where.
    """

    kernel: Kernel
    bodies: tuple[LoopBody, ...]
    traffic: Traffic
    machine: CpuDescription

    @property
    def operations(self) -> float:
        """Arithmetic operations on single elements, padding and repeated work included."""
        return sum(body.operations for body in self.bodies)

    @property
    def roofline_seconds(self) -> float:
        """What the machine needs at least: the same for all schedules that do no extra work."""
        work = Work(self.operations, float(self.kernel.parameter_bytes), self._arithmetic_dtype())
        return cost_model(self.machine).seconds(work)

    @property
    def compute_seconds(self) -> float:
        """Instructions, on the core that has most of them."""
        return sum(body_seconds(body, self.machine) for body in self.bodies)

    @property
    def busy_cores(self) -> int:
        """Cores that work for most of the time."""
        serial = sum(body.cycles for body in self.bodies if parallel_loop(body) is None)
        total = sum(body.cycles for body in self.bodies)
        if serial * 2 > total:
            return 1
        extents = [loop.extent for loop in self.parallel_loops()]
        return max(1, min(self.machine.cores, math.ceil(max(extents, default=1.0))))

    @property
    def memory_seconds(self) -> tuple[float, float, float]:
        """From L2, from L3 and from memory."""
        return self.traffic.seconds(self.machine, self.busy_cores)

    @property
    def launches(self) -> float:
        """How often the threads are started."""
        return _launches(self.kernel.root, 1.0)

    @property
    def seconds(self) -> float:
        """All of it."""
        parts = (self.compute_seconds, *self.memory_seconds)
        longest = max(parts)
        machine = self.machine
        starts = machine.kernel_overhead_us
        if machine.cores > 1:
            starts += self.launches * machine.parallel_overhead_us
        return longest + _EXPOSED * (sum(parts) - longest) + starts * 1e-6

    def parallel_loops(self) -> Iterable[LoopNode]:
        """The loops that run on threads."""
        return (node for node in self.kernel.root.walk() if node.kind == "parallel")

    def _arithmetic_dtype(self) -> str:
        """float64 where nothing narrower is computed; else float32, which narrower ones may beat.

        What a kernel computes addresses with does not count as its arithmetic.
        """
        bits = {s.bits for s in self.kernel.root.all_statements() if s.instructions.operations}
        return "float64" if bits and min(bits) > 32 else "float32"


def kernel_cost(mod: tvm.IRModule, machine: CpuDescription) -> CpuCost:
    """The cost of the scheduled kernel "main" of ``mod``."""
    kernel = kernel_loops(lowered(mod, machine), machine)
    return CpuCost(kernel, tuple(bodies(kernel, machine)), traffic(kernel.root, machine), machine)


def body_seconds(body: LoopBody, machine: CpuDescription) -> float:
    """Time of a body's cycles; on threads, those of the busiest."""
    seconds = body.cycles / (machine.clock_ghz * 1e9)
    loop = parallel_loop(body)
    return seconds if loop is None else seconds * busiest_share(loop, machine)


def parallel_loop(body: LoopBody) -> LoopNode | None:
    """The loop around a body that runs on threads."""
    return next((loop for loop in body.around if loop.kind == "parallel"), None)


def busiest_share(loop: LoopNode, machine: CpuDescription) -> float:
    """Part of a loop's iterations that the busiest thread gets."""
    return math.ceil(loop.extent / machine.cores) / loop.extent if loop.extent > 0 else 1.0


def _launches(node: LoopNode, runs: float) -> float:
    if node.kind == "parallel":
        return runs
    inside = runs * (node.extent if node.number >= 0 else 1.0)
    return sum(_launches(child, inside * child.share) for child in node.children)


# Ranks candidates by a formula: what their loops need of the machine, without any training.


def modelled_seconds(mod: tvm.IRModule, machine: CpuDescription) -> float:
    """Time of one call of the scheduled kernel "main" of ``mod``: modelled, not measured.

    The roofline's question asked of what the schedule really does: instructions on vectors as full
    as they are, loads and stores, sums that wait for themselves, registers that spill, bytes that
    each cache has to fetch, and threads with the work of the busiest one and their start.
    """
    return kernel_cost(mod, machine).seconds


@derived_object
class CpuCostModel(FormulaModel):
    """``modelled_seconds`` as a model that MetaSchedule can ask."""

    def modelled_seconds(self, mod: tvm.IRModule) -> float:
        """See ``FormulaModel``."""
        return modelled_seconds(mod, self.machine)

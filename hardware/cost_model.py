"""What work costs on a machine: the question every cost model answers, and the roofline's answer.

A kernel is limited by arithmetic or by memory, whichever takes longer. S. Williams, A. Waterman,
D. Patterson, "Roofline: an insightful visual performance model for multicore architectures",
Communications of the ACM 52(4), 2009. To the paper's bound,

    seconds = max(flops / (peak_flops * vector_fraction), bytes / bandwidth)

the roofline here adds the fixed time of starting a kernel, without which every fusion would look
worthless on small tensors, and takes the bandwidth of the smallest memory that holds all of the
kernel's bytes, as if the kernel before had left them there.
"""

from dataclasses import dataclass
from typing import Protocol

from tvm_ext.hardware.machine import MachineDescription


@dataclass(frozen=True)
class Work:
    """What a kernel does, in numbers that do not depend on a machine.

    Raises ValueError for a negative amount or a fraction outside its range.
    """

    flops: float
    """Arithmetic operations; a multiply-add is two."""
    bytes: float
    """Bytes read from and written to tensors, each tensor counted once."""
    dtype: str = "float32"
    """Type the arithmetic is done on."""
    vector_fraction: float = 1.0
    """Share of the vector lanes that hold useful values, above 0 and at most 1."""

    def __post_init__(self) -> None:
        if self.flops < 0 or self.bytes < 0:
            raise ValueError(
                f"work of {self.flops} operations on {self.bytes} bytes; expected 0 or more of each"
            )
        if not 0 < self.vector_fraction <= 1:
            raise ValueError(
                f"vector_fraction is {self.vector_fraction}; expected above 0 and at most 1"
            )


class CostModel(Protocol):
    """Estimates times. Its answers are modelled, never measured, and must be shown as such."""

    def seconds(self, work: Work) -> float:
        """Time in seconds of one kernel that does ``work`` and nothing else."""
        ...

    def conversion_seconds(self, nbytes: float) -> float:
        """Time in seconds to rewrite a tensor of ``nbytes`` bytes in another layout."""
        ...


@dataclass(frozen=True)
class Roofline:
    """Roofline model of one CPU, GPU or mesh; the module's docstring has the formula.

    That of a mesh is for comparisons between graphs: all PEs at work, and no communication.
    """

    description: MachineDescription

    def seconds(self, work: Work) -> float:
        """Time in seconds of one kernel that does ``work``, its start included.

        On a CPU with several cores the better of one core and all cores: a kernel too small to pay
        for waking the other threads is taken to run on one.
        """
        machine = self.description
        busy = machine.fastest_seconds(lambda part: _bound(part, work))
        return machine.kernel_overhead_us * 1e-6 + busy

    def conversion_seconds(self, nbytes: float) -> float:
        """Time in seconds to rewrite ``nbytes`` bytes in another layout, each read and written."""
        return self.seconds(Work(flops=0, bytes=2 * nbytes))


def cost_model(description: MachineDescription) -> CostModel:
    """The cost model for ``description``: a roofline for CPUs, GPUs and meshes."""
    return Roofline(description)


def _bound(machine: MachineDescription, work: Work) -> float:
    arithmetic = work.flops / (machine.peak_flops(work.dtype) * work.vector_fraction)
    return max(arithmetic, work.bytes / machine.bandwidth(work.bytes))

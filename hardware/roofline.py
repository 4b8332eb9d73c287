"""Roofline cost model: a kernel is limited by arithmetic or by memory, whichever takes longer.

S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful visual performance model for
multicore architectures", Communications of the ACM 52(4), 2009. To the paper's bound,

    seconds = max(flops / (peak_flops * vector_fraction), bytes / bandwidth)

this adds the fixed time of starting a kernel, without which every fusion would look worthless on
small tensors, and takes the bandwidth of the smallest memory that holds all of the kernel's bytes,
as if the kernel before had left them there.
"""

from dataclasses import dataclass

from tvm_ext.hardware.cost import CostModel, Work
from tvm_ext.hardware.description import CpuDescription, Description


@dataclass(frozen=True)
class Roofline:
    """Roofline model of one CPU, GPU or mesh; see the module's text for the formula.

    That of a mesh is for comparisons between graphs: all PEs at work, and no communication.
    """

    description: Description

    def seconds(self, work: Work) -> float:
        """Time in seconds of one kernel that does ``work``, its start included.

        On a CPU with several cores the better of one core and all cores: a kernel too small to pay
        for waking the other threads is taken to run on one.
        """
        machine = self.description
        launch = machine.kernel_overhead_us * 1e-6
        if not isinstance(machine, CpuDescription) or machine.cores == 1:
            return launch + _bound(machine, work)
        serial = _bound(machine.with_cores(1), work)
        parallel = _bound(machine, work) + machine.parallel_overhead_us * 1e-6
        return launch + min(serial, parallel)

    def conversion_seconds(self, nbytes: float) -> float:
        """Time in seconds to rewrite ``nbytes`` bytes in another layout, each read and written."""
        return self.seconds(Work(flops=0, bytes=2 * nbytes))


def cost_model(description: Description) -> CostModel:
    """The cost model for ``description``: a roofline for CPUs, GPUs and meshes."""
    return Roofline(description)


def _bound(machine: Description, work: Work) -> float:
    arithmetic = work.flops / (machine.peak_flops(work.dtype) * work.vector_fraction)
    return max(arithmetic, work.bytes / machine.bandwidth(work.bytes))

"""Bytes that move between the caches and memory, from the bytes that each loop touches.

A loop whose bytes fit into a cache fetches them once. One that does not, but whose iterations do,
fetches what it touches once, too: what comes again comes in the next iteration. Any other fetches
what its iterations fetch, each anew.
"""

from dataclasses import dataclass

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tuning.loop_analysis.footprint import footprints
from tvm_ext.tuning.loop_analysis.loop_tree import LoopNode

# L2 is read faster than it is copied, and ahead of its use.
_READ_FROM_L2 = 2.0


@dataclass(frozen=True)
class Traffic:
    """Bytes that one run of the kernel fetches, over all cores.

    Attributes
    ----------
    l1, l2, l3 : float
        Into L1 from L2, into L2 from L3, and into L3 from memory.
    """

    l1: float
    l2: float
    l3: float

    def seconds(self, machine: CpuDescription, cores: int) -> tuple[float, float, float]:
        """Time that each takes with so many cores at work."""
        memory = min(machine.memory_gbs, machine.core_memory_gbs * cores)
        return (
            self.l1 / (_READ_FROM_L2 * machine.core_l2_gbs * cores * 1e9),
            self.l2 / (machine.core_l3_gbs * cores * 1e9),
            self.l3 / (memory * 1e9),
        )


def traffic(root: LoopNode, machine: CpuDescription) -> Traffic:
    """Traffic of a run that finds in the caches what the run before left there.

    As a description's ``bandwidth`` has it, that is spread over the caches of all cores; a loop
    that does not run on threads uses those of one.
    """
    touched = footprints(root)
    sizes = (machine.l1d_bytes, machine.l2_bytes)
    last = max(machine.l3_bytes, machine.l2_bytes * machine.cores)
    own = [0.0 if touched[-1][0] <= size * machine.cores else size for size in sizes]
    l1, l2 = (_fetched(root, size, machine.cores, touched) if size else 0.0 for size in own)
    l3 = 0.0 if touched[-1][0] <= last else _fetched(root, last, 1, touched)
    return Traffic(l1, l2, l3)


def _fetched(
    node: LoopNode, size: float, cores: int, touched: dict[int, tuple[float, float]]
) -> float:
    """Bytes that one run of the loop fetches into caches of ``size`` each, one for each core."""
    whole, iteration = touched.get(node.number, (0.0, float("inf")))
    together = size * cores if node.kind == "parallel" else size
    if node.kind != "unrolled" and (whole <= together or iteration <= size):
        return whole
    inside = 1 if node.kind == "parallel" else cores
    inner = sum(child.share * _fetched(child, size, inside, touched) for child in node.children)
    return max(whole, node.extent * inner)

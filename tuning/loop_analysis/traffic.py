"""Bytes that move between the caches and memory, from the bytes that each loop touches.

A loop whose bytes fit into a cache fetches them once. One that does not, but whose iterations do,
fetches what it touches once, too: what comes again comes in the next iteration. Any other fetches
what its iterations fetch, each anew.
"""

from dataclasses import dataclass

from tvm_ext.hardware.description import CpuDescription
from tvm_ext.tuning.loop_analysis.footprint import footprints
from tvm_ext.tuning.loop_analysis.loop_tree import LoopNode


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
            self.l1 / (machine.core_l2_gbs * cores * 1e9),
            self.l2 / (machine.core_l3_gbs * cores * 1e9),
            self.l3 / (memory * 1e9),
        )


def traffic(root: LoopNode, machine: CpuDescription) -> Traffic:
    """Traffic of a run that finds in the caches what the run before left there."""
    touched = footprints(root)
    cores = machine.cores
    sizes = (machine.l1d_bytes * cores, machine.l2_bytes * cores)
    last = max(machine.l3_bytes, sizes[1])
    l1, l2, l3 = (
        0.0 if touched[-1][0] <= size else _fetched(root, size, cores, touched)
        for size in (*sizes, last)
    )
    return Traffic(l1, l2, l3)


def _fetched(
    node: LoopNode, size: float, cores: int, touched: dict[int, tuple[float, float]]
) -> float:
    """Bytes that one run of the loop fetches into caches of ``size`` in all."""
    if node.kind == "unrolled":
        return sum(_fetched(child, size, cores, touched) for child in node.children)
    whole, iteration = touched[node.number]
    # An iteration of a loop on threads has the cache of one core.
    own = size / cores if node.kind == "parallel" else size
    if whole <= size or iteration <= own:
        return whole
    inner = sum(child.share * _fetched(child, own, 1, touched) for child in node.children)
    return max(whole, node.extent * inner)

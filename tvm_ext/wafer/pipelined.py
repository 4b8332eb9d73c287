"""A pipeline over the wafer: a rectangle for each group of consecutive kernels."""

from collections.abc import Iterator, Sequence

from tvm_ext.hardware.mesh_description import MeshDescription
from tvm_ext.wafer.dataflow import Dataflow
from tvm_ext.wafer.kernel_cost import KernelCost, KernelCosts
from tvm_ext.wafer.placement import PIPELINED, Placement, staged
from tvm_ext.wafer.regions import Region, cut_region, groups_within

# Of the most expensive kernel's cycles: how much a group of kernels may cost.
_BOUNDS = (1.0, 2.0, 4.0)

# PEs that a stage has on average at least.
_LEAST_PROCESSING_ELEMENTS = 4


def pipelined(
    flow: Dataflow, costs: KernelCosts, mesh: MeshDescription, one_by_one: Placement
) -> Placement | None:
    """The pipeline with the most runs a second among a few; None if there is nothing to cut.

    One stage for each call, and fewer, in which no group of calls costs more than a few times the
    most expensive call, with what has to move for it when the kernels run ``one_by_one``.
    """
    kernels = [costs.on_mesh(call.kernel) for call in flow.calls]
    found = [
        Placement(PIPELINED, staged(flow, costs, mesh, _stages(groups, kernels, mesh)))
        for groups in _groupings(kernels, mesh, one_by_one)
    ]
    return min(
        found,
        key=lambda one: (bool(one.refusal), one.interval_cycles, one.cycles),
        default=None,
    )


def _groupings(
    kernels: Sequence[KernelCost], mesh: MeshDescription, one_by_one: Placement
) -> Iterator[list[tuple[int, ...]]]:
    """Ways to group the calls into stages, each once."""
    cycles = [one.cost.cycles if one.cost is not None else 0.0 for one in kernels]
    for move in one_by_one.moves:
        cycles[move.call] += move.change.cycles
    most = max(1, mesh.processing_elements // _LEAST_PROCESSING_ELEMENTS)
    seen = set()
    for bound in (0.0, *_BOUNDS):
        groups = groups_within(cycles, bound * max(cycles, default=0.0))
        if 1 < len(groups) <= most and len(groups) not in seen:
            seen.add(len(groups))
            yield groups


def _stages(
    groups: Sequence[tuple[int, ...]], kernels: Sequence[KernelCost], mesh: MeshDescription
) -> list[tuple[Region, tuple[int, ...]]]:
    works = [sum(_work(kernels[position]) for position in group) for group in groups]
    regions = cut_region(Region(0, 0, mesh.rows, mesh.columns), works)
    return list(zip(regions, groups, strict=True))


def _work(kernel: KernelCost) -> float:
    """Busy cycles of all PEs."""
    cost = kernel.cost
    return cost.mean_busy_cycles * cost.rows * cost.columns if cost is not None else 0.0

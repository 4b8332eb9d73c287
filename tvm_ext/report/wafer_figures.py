"""The figures of a model on a mesh that its text, page and JSON share. All times are modelled."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_ext.report.units import Scale, format_count

if TYPE_CHECKING:
    from tvm_ext.hardware.wafer.program_cost import MeshCost
    from tvm_ext.wafer.kernel_cost import KernelCost
    from tvm_ext.wafer.model_cost import ModelCost
    from tvm_ext.wafer.placement import Placement

PARTS = ("compute", "memory", "communication", "launch", "idle")
"""Parts of a kernel's time, in the order in which they are shown."""

_COUNTS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))


@dataclass(frozen=True)
class PlacementFigures:
    """Sums over the stages of a placement.

    Attributes
    ----------
    kernel_cycles, move_cycles, stream_cycles : float
        Of the kernels, of activations between them, of weights over the host link.
    bytes_per_pe : int
        Of the stage that takes the most.
    weight_bytes : int
        Of one PE, for weights that stay; of the same stage.
    runs_per_second : float
        With a run in each stage.
    """

    kernel_cycles: float
    move_cycles: float
    stream_cycles: float
    bytes_per_pe: int
    weight_bytes: int
    runs_per_second: float


def placement_figures(cost: "ModelCost", placement: "Placement") -> PlacementFigures:
    stages = placement.stages
    fullest = max(stages, key=lambda stage: stage.bytes_per_pe, default=None)
    interval = cost.mesh.seconds(placement.interval_cycles)
    return PlacementFigures(
        kernel_cycles=math.fsum(stage.kernel_cycles for stage in stages),
        move_cycles=math.fsum(stage.move_cycles for stage in stages),
        stream_cycles=math.fsum(stage.stream_cycles for stage in stages),
        bytes_per_pe=fullest.bytes_per_pe if fullest is not None else 0,
        weight_bytes=fullest.weight_bytes if fullest is not None else 0,
        runs_per_second=1 / interval if interval else 0.0,
    )


def most_runs(cost: "ModelCost") -> "tuple[Placement, float]":
    """The placement with the most runs a second among those that fit, and how many."""
    fitting = [one for one in cost.placements if not one.refusal] or list(cost.placements)
    rates = [(one, placement_figures(cost, one).runs_per_second) for one in fitting]
    return max(rates, key=lambda pair: pair[1])


def kernel_share(cost: "ModelCost", kernel: "KernelCost") -> float:
    """Share of a kernel's calls in the cycles of all kernels, from 0 to 1."""
    total = math.fsum(one.cycles for one in cost.kernels)
    return kernel.cycles / total if total else 0.0


def schedule_text(kernel: "KernelCost") -> str:
    """The schedule with its decisions, for example "mesh matmul (rows=4, columns=4)"."""
    listed = ", ".join(f"{name}={value}" for name, value in kernel.decisions.items())
    return f"{kernel.schedule} ({listed})" if listed else kernel.schedule


def grid_text(cost: "MeshCost | None", absent: str) -> str:
    """Rows and columns of the PEs that are used, for example "55x46"."""
    return f"{cost.rows}x{cost.columns}" if cost is not None else absent


def overall_efficiency(cost: "ModelCost", placement: "Placement") -> float:
    """Useful operations by what all PEs of the mesh could do in float32 meanwhile, 0 to 1."""
    flops = math.fsum(
        kernel.cost.flops * kernel.calls for kernel in cost.kernels if kernel.cost is not None
    )
    seconds = cost.mesh.seconds(placement.cycles)
    return flops / (cost.mesh.peak_flops("float32") * seconds) if seconds else 0.0


def refusal_lines(cost: "ModelCost") -> list[str]:
    """What does not fit: kernels by name, or how they lie together if no placement fits."""
    lines = [f"{kernel.name}: {kernel.refusal}" for kernel in cost.refused]
    if not lines and cost.chosen.refusal:
        lines = [f"{one.name}: {one.refusal}" for one in cost.placements]
    return lines


def note_lines(cost: "ModelCost") -> list[str]:
    """What to know of the numbers, and which placement does not fit where another one does."""
    others = [one for one in cost.placements if one.refusal and not cost.chosen.refusal]
    return [*cost.notes, *(f"{one.name} do not fit: {one.refusal}" for one in others)]


def format_large(value: float) -> str:
    """Return a count with three digits, for example "12.3M"."""
    factor, unit = next((step for step in _COUNTS if value >= step[0] * 0.9995), _COUNTS[-1])
    digits = 1 + math.floor(math.log10(max(value / factor, 1.0)))
    return Scale(factor, unit, max(0, 3 - digits) if unit else 0).number(value) + unit


def calls_text(kernels: "Sequence[KernelCost]") -> str:
    """How many kernels and calls, for example "17 kernels, 97 calls"."""
    calls = sum(kernel.calls for kernel in kernels)
    return f"{format_count(len(kernels), 'kernel')}, {format_count(calls, 'call')}"

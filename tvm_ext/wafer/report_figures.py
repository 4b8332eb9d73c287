"""The figures of a model on a mesh that its text and page share, and all of them as JSON. All
times are modelled.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tvm_ext.report.units import Scale, format_count

if TYPE_CHECKING:
    from tvm_ext.hardware.wafer.program import Item, WaferProgram
    from tvm_ext.hardware.wafer.program_cost import WaferCost
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
    """The schedule with its decisions, for example "wafer matmul (rows=4, columns=4)"."""
    listed = ", ".join(f"{name}={value}" for name, value in kernel.decisions.items())
    return f"{kernel.schedule} ({listed})" if listed else kernel.schedule


def grid_text(cost: "WaferCost | None", absent: str) -> str:
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


# A model on a mesh as JSON values. All times are modelled; SRAM is in bytes of one PE.


SCHEMA = 1


def wafer_json(
    cost: "ModelCost", kernels: "Sequence[KernelCost]", with_programs: bool = False
) -> dict[str, Any]:
    """Return what the page shows, for ``kernels``; with what each asks of the mesh if wanted."""
    there, back = cost.host_cycles
    return {
        "schema": SCHEMA,
        "modelled": True,
        "model": cost.model,
        "target": cost.mesh.name,
        "device": cost.mesh.device,
        "clock_mhz": cost.mesh.clock_mhz,
        "opt_level": cost.opt_level,
        "chosen": cost.chosen.name,
        "cycles": cost.chosen.cycles,
        "seconds": cost.mesh.seconds(cost.chosen.cycles),
        "efficiency": overall_efficiency(cost, cost.chosen),
        "host_link": {"input_cycles": there, "output_cycles": back},
        "refusals": refusal_lines(cost),
        "notes": note_lines(cost),
        "placements": [_placement(cost, placement) for placement in cost.placements],
        "kernels": [_kernel(cost, kernel, with_programs) for kernel in kernels],
        "calls": [
            {"kernel": call.kernel, "origins": list(call.origins)} for call in cost.flow.calls
        ],
    }


def _kernel(cost: "ModelCost", kernel: "KernelCost", with_program: bool) -> dict[str, Any]:
    found = kernel.cost
    figures: dict[str, Any] = {}
    if found is not None:
        figures = {**asdict(found), "shares": found.shares}
        # These are said once, in their own words.
        del figures["refusal"], figures["rows"], figures["columns"]
    program = kernel.program if with_program else None
    return {
        "name": kernel.name,
        "calls": kernel.calls,
        "origins": list(kernel.origins),
        "schedule": kernel.schedule,
        "source": kernel.source,
        "reason": kernel.reason,
        "decisions": dict(kernel.decisions),
        "refusal": kernel.refusal,
        "grid": [found.rows, found.columns] if found is not None else None,
        "total_cycles": kernel.cycles if found is not None else None,
        "share": kernel_share(cost, kernel) if found is not None else None,
        "cost": figures or None,
        **({"program": _program(program)} if program is not None else {}),
    }


def _placement(cost: "ModelCost", placement: "Placement") -> dict[str, Any]:
    figures = placement_figures(cost, placement)
    return {
        "name": placement.name,
        "cycles": placement.cycles,
        "seconds": cost.mesh.seconds(placement.cycles),
        "interval_cycles": placement.interval_cycles,
        **asdict(figures),
        "refusal": placement.refusal,
        "stages": [
            {
                "region": asdict(stage.region),
                "calls": list(stage.calls),
                "cycles": stage.cycles,
                "kernel_cycles": stage.kernel_cycles,
                "move_cycles": stage.move_cycles,
                "stream_cycles": stage.stream_cycles,
                "weight_bytes": stage.weight_bytes,
                "streamed_bytes": stage.streamed_bytes,
                "bytes_per_pe": stage.bytes_per_pe,
                "is_spread": stage.is_spread,
                "refusal": stage.refusal,
            }
            for stage in placement.stages
        ],
        "moves": [
            {"call": move.call, "operand": move.operand, **asdict(move.change)}
            for move in placement.moves
        ],
    }


def _program(program: "WaferProgram") -> dict[str, Any]:
    return {
        "rows": program.rows,
        "columns": program.columns,
        "items": [_item(item) for item in program.items],
        "shards": program.shards,
        "buffers": program.buffers,
        "homes": {str(position): asdict(home) for position, home in program.homes.items()},
    }


def _item(item: "Item") -> dict[str, Any]:
    from tvm_ext.hardware.wafer.program import Steps, Transfer

    if isinstance(item, Steps):
        inner = [_item(one) for one in item.items]
        return {"kind": "steps", "times": item.times, "overlapped": item.overlapped, "items": inner}
    values = asdict(item)
    if isinstance(item, Transfer):
        return {"kind": "transfer", **values}
    # The busiest PE's share of a full tile says enough.
    del values["row_share"], values["column_share"]
    most = float(item.row_share.max(initial=0)) * float(item.column_share.max(initial=0))
    return {"kind": "work", **values, "share": most}

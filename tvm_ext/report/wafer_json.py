"""A model on a mesh as JSON values. All times are modelled; SRAM is in bytes of one PE."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tvm_ext.report.wafer_figures import (
    kernel_share,
    note_lines,
    overall_efficiency,
    placement_figures,
    refusal_lines,
)

if TYPE_CHECKING:
    from tvm_ext.hardware.wafer.program import Item, MeshProgram
    from tvm_ext.wafer.kernel_cost import KernelCost
    from tvm_ext.wafer.model_cost import ModelCost
    from tvm_ext.wafer.placement import Placement

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


def _program(program: "MeshProgram") -> dict[str, Any]:
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

"""The regions of a placement on the wafer, laid out for an SVG drawing."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_ext.report.heat_map import LEVELS
from tvm_ext.report.units import format_count

if TYPE_CHECKING:
    from tvm_ext.wafer.model_cost import ModelCost
    from tvm_ext.wafer.placement import Placement


_LISTED = 8


@dataclass(frozen=True)
class RegionCell:
    """One region: where, its shade from 1 to ``LEVELS``, and what it is in words."""

    x: int
    y: int
    width: int
    height: int
    level: int
    label: str


@dataclass(frozen=True)
class SlowRegion:
    """A region as a row of a table: its first kernel, its PEs, its calls and cycles."""

    name: str
    grid: str
    calls: int
    cycles: float


@dataclass(frozen=True)
class RegionMap:
    """What the template draws, in PEs, and the regions that take longest."""

    width: int
    height: int
    cells: list[RegionCell]
    slowest: list[SlowRegion]
    description: str


def region_map(cost: "ModelCost", placement: "Placement") -> RegionMap | None:
    """Return the drawing, shaded by cycles; None for a single region."""
    stages = placement.stages
    if len(stages) < 2:
        return None
    slowest = max(stage.cycles for stage in stages)
    cells = []
    for number, stage in enumerate(stages, start=1):
        names = [cost.flow.calls[position].kernel for position in stage.calls]
        more = f" and {len(names) - 1:,} more" if len(names) > 1 else ""
        region = stage.region
        label = (
            f"region {number}: {names[0]}{more}, {region.rows}x{region.columns} PEs, "
            f"{stage.cycles:,.0f} cycles"
        )
        level = max(1, round(LEVELS * stage.cycles / slowest)) if slowest else 1
        place = region.column, region.row, region.columns, region.rows
        cells.append(RegionCell(*place, level, label))
    description = (
        f"{format_count(len(stages), 'region')} of {cost.mesh.rows}x{cost.mesh.columns} PEs; the "
        f"slowest takes {slowest:,.0f} cycles"
    )
    return RegionMap(
        cost.mesh.columns, cost.mesh.rows, cells, _slowest(cost, placement), description
    )


def _slowest(cost: "ModelCost", placement: "Placement") -> list[SlowRegion]:
    stages = sorted(placement.stages, key=lambda stage: -stage.cycles)[:_LISTED]
    return [
        SlowRegion(
            cost.flow.calls[stage.calls[0]].kernel,
            f"{stage.region.rows}x{stage.region.columns}",
            len(stage.calls),
            stage.cycles,
        )
        for stage in stages
    ]

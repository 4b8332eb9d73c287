"""A model on a mesh as one self-contained HTML page. All times are modelled.

How it looks is in the templates next to this file. Names come from model files: the templates
escape every value.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tvm_ext.report.page import KeyFigure, page_environment
from tvm_ext.report.units import (
    ABSENT,
    bytes_scale,
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    seconds_scale,
)
from tvm_ext.wafer import report_drawings
from tvm_ext.wafer.report_drawings import LEVELS, HeatMap, heat_map, region_map
from tvm_ext.wafer.report_figures import (
    PARTS,
    calls_text,
    format_large,
    grid_text,
    kernel_share,
    most_runs,
    note_lines,
    overall_efficiency,
    placement_figures,
    refusal_lines,
    schedule_text,
)

if TYPE_CHECKING:
    from tvm_ext.wafer.kernel_cost import KernelCost
    from tvm_ext.wafer.model_cost import ModelCost
    from tvm_ext.wafer.placement import Placement

MAPPED_KERNELS = 4
"""Kernels with maps of their grid."""


@dataclass(frozen=True)
class WaferKernel:
    """One kernel as the page shows it.

    Attributes
    ----------
    record : KernelCost
        The kernel.
    number : int
        Of its row.
    schedule, grid : str
        With decisions, and the PEs that it uses.
    share, length : float
        Share in the cycles of all kernels, and length of its bar, 0 to 1.
    parts : list[tuple[str, float]]
        What it does, with the shares of its time.
    anchor : str
        Where on the page its maps are; empty without any.
    """

    record: "KernelCost"
    number: int
    schedule: str
    grid: str
    share: float
    length: float
    parts: list[tuple[str, float]]
    anchor: str


@dataclass(frozen=True)
class PlacementRow:
    """One placement in words, and the lengths (0 to 1) of its bars' parts."""

    record: "Placement"
    is_chosen: bool
    regions: str
    run: str
    rate: str
    kernels: str
    moves: str
    streams: str
    sram: str


def render_wafer_html(cost: "ModelCost") -> str:
    """Return the page; it names no resource outside itself and has no JavaScript."""
    kernels = _kernels(cost)
    known = [kernel.record.cost for kernel in kernels if kernel.record.cost is not None]
    points = [
        point
        for kernel in kernels
        if (point := report_drawings.roofline_point(kernel.record, kernel.number)) is not None
    ]
    dtypes = sorted({report_drawings.main_dtype(kernel.record) for kernel in kernels} - {""})
    pipeline = next((one for one in cost.placements if len(one.stages) > 1), None)
    return (
        page_environment("tvm_ext.wafer")
        .get_template("report_page.html.j2")
        .render(
            cost=cost,
            tiles=_tiles(cost),
            parts=PARTS,
            levels=LEVELS,
            kernels=kernels,
            cycles=lambda value: f"{value:,.0f}",
            times=seconds_scale(max((one.seconds for one in known), default=0.0)),
            sizes=bytes_scale(max((one.bytes_per_pe for one in known), default=0)),
            large=format_large,
            placements=[_placement(cost, one) for one in cost.placements],
            regions=region_map(cost, pipeline) if pipeline is not None else None,
            maps=[(kernel, _maps(cost, kernel.record)) for kernel in kernels if kernel.anchor],
            roofline=report_drawings.roofline(points, cost.mesh, dtypes),
            drawing=report_drawings,
            refusals=refusal_lines(cost),
            notes=note_lines(cost),
            facts=_facts(cost),
            absent=ABSENT,
        )
    )


def _kernels(cost: "ModelCost") -> list[WaferKernel]:
    longest = max((kernel_share(cost, kernel) for kernel in cost.kernels), default=0.0)
    rows = []
    for number, kernel in enumerate(cost.kernels, start=1):
        share = kernel_share(cost, kernel)
        mapped = kernel.cost is not None and number <= MAPPED_KERNELS
        rows.append(
            WaferKernel(
                record=kernel,
                number=number,
                schedule=schedule_text(kernel),
                grid=grid_text(kernel.cost, ABSENT),
                share=share,
                length=share / longest if longest else 0.0,
                parts=list(kernel.cost.shares.items()) if kernel.cost is not None else [],
                anchor=f"maps-{number}" if mapped else "",
            )
        )
    return rows


def _maps(cost: "ModelCost", kernel: "KernelCost") -> list[HeatMap]:
    from tvm_ext.hardware.wafer.heatmaps import link_map, memory_map
    from tvm_ext.hardware.wafer.program_cost import busy_map

    program = kernel.program
    if program is None:
        return []
    busiest = link_map(program).max(axis=2)
    return [
        heat_map("Busy cycles", busy_map(program, cost.mesh), lambda value: f"{value:,.0f}"),
        heat_map("SRAM", memory_map(program), format_bytes),
        heat_map("Link words", busiest, lambda value: f"{value:,.0f}"),
    ]


def _tiles(cost: "ModelCost") -> list[KeyFigure]:
    mesh, chosen = cost.mesh, cost.chosen
    most, rate = most_runs(cost)
    own = placement_figures(cost, chosen)
    joules = math.fsum(
        kernel.cost.joules * kernel.calls for kernel in cost.kernels if kernel.cost is not None
    )
    cycles = f"{format_large(chosen.cycles)} cycles, {chosen.title}"
    return [
        KeyFigure("One run", format_seconds(mesh.seconds(chosen.cycles)), cycles, "modelled"),
        KeyFigure("Throughput", f"{format_large(rate)}/s", f"{most.title}, modelled"),
        KeyFigure("Kernels", f"{len(cost.kernels):,}", calls_text(cost.kernels)),
        KeyFigure(
            "SRAM a PE",
            format_bytes(own.bytes_per_pe),
            f"of {format_bytes(mesh.usable_bytes)}; weights {format_bytes(own.weight_bytes)}",
        ),
        KeyFigure(
            "Efficiency",
            format_percent(overall_efficiency(cost, chosen)),
            f"of all {mesh.processing_elements:,} PEs in float32",
            "modelled",
        ),
        KeyFigure("Energy", f"{joules:,.3g} J", "of the kernels of one run", "modelled"),
    ]


def _placement(cost: "ModelCost", placement: "Placement") -> PlacementRow:
    figures = placement_figures(cost, placement)
    seconds = cost.mesh.seconds
    return PlacementRow(
        record=placement,
        is_chosen=placement is cost.chosen and len(cost.placements) > 1,
        regions=format_count(len(placement.stages), "region"),
        run=format_seconds(seconds(placement.cycles)),
        rate=f"{figures.runs_per_second:,.0f}",
        kernels=format_seconds(seconds(figures.kernel_cycles)),
        moves=format_seconds(seconds(figures.move_cycles)),
        streams=format_seconds(seconds(figures.stream_cycles)),
        sram=format_bytes(figures.bytes_per_pe),
    )


def _facts(cost: "ModelCost") -> list[tuple[str, str]]:
    mesh = cost.mesh
    there, back = (format_seconds(mesh.seconds(cycles)) for cycles in cost.host_cycles)
    return [
        ("Target", f"{mesh.name}: {mesh.summary}"),
        ("PEs for programs", f"{mesh.rows:,} rows x {mesh.columns:,} columns"),
        ("Clock", f"{mesh.clock_mhz:,.0f} MHz"),
        ("SRAM for data", f"{format_bytes(mesh.usable_bytes)} a PE"),
        ("Routes", format_count(mesh.usable_colours, "colour")),
        ("Optimisation", cost.opt_level),
        ("Host link", f"{there} for the inputs, {back} for the outputs; not counted in a run"),
        ("Numbers", "modelled from published figures of the machine; nothing was measured"),
    ]

"""A model on a mesh, for a terminal. All times are modelled.

Names come from model files, so they enter as `Text`, never as rich markup.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tvm_ext.report.text import flexible_table
from tvm_ext.report.units import (
    ABSENT,
    bytes_scale,
    format_bytes,
    format_percent,
    format_seconds,
    plain,
    seconds_scale,
)
from tvm_ext.report.wafer_figures import (
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


def wafer_summary(cost: "ModelCost", kernels: "Sequence[KernelCost]") -> RenderableType:
    """Return the summary as one rich renderable, with ``kernels`` in its tables."""
    parts = [
        _title(cost),
        _key_figures(cost),
        Text(),
        _schedules(cost, kernels),
        _costs(kernels),
        _placements(cost),
        _lines("Does not run on this mesh", refusal_lines(cost)),
        _lines("Notes", note_lines(cost)),
    ]
    return Group(*(part for part in parts if part is not None))


def _title(cost: "ModelCost") -> Text:
    title = Text(plain(cost.model), style="bold")
    facts = f"  optimisation {cost.opt_level}, target {cost.mesh.name}; modelled, not measured"
    return title.append(plain(facts), style="not bold dim")


def _key_figures(cost: "ModelCost") -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    chosen = cost.chosen
    mesh = cost.mesh
    seconds = format_seconds(mesh.seconds(chosen.cycles))
    table.add_row("One run", f"{chosen.cycles:,.0f} cycles, {seconds}  ({chosen.title})")
    most, rate = most_runs(cost)
    table.add_row("Runs a second", f"{rate:,.0f}  ({most.title})")
    table.add_row("Kernels", calls_text(cost.kernels))
    efficiency = format_percent(overall_efficiency(cost, chosen))
    table.add_row("Efficiency", f"{efficiency} of what all PEs could do in float32")
    there, back = (format_seconds(mesh.seconds(cycles)) for cycles in cost.host_cycles)
    table.add_row("Host link", f"{there} for the inputs, {back} for the outputs, not counted above")
    return table


def _schedules(cost: "ModelCost", kernels: "Sequence[KernelCost]") -> Table:
    """Name, schedule and time."""
    scale = seconds_scale(max((cost.mesh.seconds(one.cycles) for one in kernels), default=0.0))
    title = "Kernels by cycles of one run (modelled)"
    table = _table(title, "~Kernel", "~Schedule", ">Calls", ">Grid", ">Cycles, 1 call")
    table.add_column("Time, 1 run", justify="right", no_wrap=True)
    table.add_column("Share", justify="right", no_wrap=True)
    for kernel in kernels:
        known = kernel.cost is not None
        table.add_row(
            Text(plain(kernel.name)),
            Text(plain(schedule_text(kernel))),
            f"{kernel.calls:,}",
            grid_text(kernel.cost, ABSENT),
            f"{kernel.cost.cycles:,.0f}" if kernel.cost is not None else ABSENT,
            scale(cost.mesh.seconds(kernel.cycles)) if known else ABSENT,
            format_percent(kernel_share(cost, kernel)) if known else ABSENT,
        )
    return table


def _costs(kernels: "Sequence[KernelCost]") -> Table | None:
    """What the PEs do in one call."""
    found = [(kernel.name, kernel.cost) for kernel in kernels if kernel.cost is not None]
    if not found:
        return None
    sizes = bytes_scale(max(one.bytes_per_pe for _, one in found))
    numbers = ("Comp.", "Mem.", "Comm.", "Start", "Idle", "Eff.", "Imbal.", "SRAM", "Col.", "Hops")
    columns = [f">{name}" for name in (*numbers, "Word-hops")]
    table = _table("One call: parts of the time, and what it takes (modelled)", "~Kernel", *columns)
    for name, one in found:
        shares = one.shares
        table.add_row(
            Text(plain(name)),
            *(f"{100 * share:.0f} %" for share in shares.values()),
            format_percent(one.efficiency),
            f"{one.imbalance:.2f}",
            sizes(one.bytes_per_pe),
            f"{one.colours:,}",
            f"{one.hops:,.0f}",
            format_large(one.word_hops),
        )
    return table


def _placements(cost: "ModelCost") -> Table:
    numbers = ("Regions", "One run", "Runs a second", "Kernels", "Moves", "Weights in", "SRAM")
    columns = [f">{name}" for name in numbers]
    table = flexible_table("Placement (modelled)", "~Where", *columns)
    scale = seconds_scale(max(cost.mesh.seconds(one.cycles) for one in cost.placements))
    for placement in cost.placements:
        figures = placement_figures(cost, placement)
        cycles = figures.kernel_cycles, figures.move_cycles, figures.stream_cycles
        table.add_row(
            placement.title,
            f"{len(placement.stages):,}",
            scale(cost.mesh.seconds(placement.cycles)),
            f"{figures.runs_per_second:,.0f}",
            *(scale(cost.mesh.seconds(part)) for part in cycles),
            format_bytes(figures.bytes_per_pe),
        )
    return table


def _lines(heading: str, lines: Sequence[str]) -> Text | None:
    if not lines:
        return None
    text = Text(heading, style="bold")
    for line in lines:
        text.append(f"\n  ! {plain(line)}", style="not bold")
    return text


def _table(title: str, *columns: str) -> Table:
    """As ``flexible_table``, with names folded rather than cut."""
    heading = Text(title, style="bold")
    table = Table(
        title=heading, title_justify="left", box=box.SIMPLE_HEAD, expand=True, padding=(0, 1, 0, 0)
    )
    for column in columns:
        flexible = column.startswith("~")
        table.add_column(
            column.lstrip(">~"),
            justify="right" if column.startswith(">") else "left",
            ratio=1 if flexible else None,
            no_wrap=not flexible,
            overflow="fold",
        )
    return table

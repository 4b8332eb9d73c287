"""A model on a mesh, for a terminal. All times are modelled.

Names come from model files, so they enter as `Text`, never as rich markup.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tvm_ext.report.records import computes
from tvm_ext.report.terminal_tables import (
    FlexibleTable,
    ShortName,
    facts_table,
    marked_lines,
    names_table,
)
from tvm_ext.report.units import (
    ABSENT,
    bytes_scale,
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    plain,
    seconds_scale,
)
from tvm_ext.wafer.report_figures import (
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
    from tvm_ext.hardware.wafer.description import WaferDescription
    from tvm_ext.hardware.wafer.program import BlockWork, Item, Layout, Transfer
    from tvm_ext.wafer.kernel_cost import KernelCost
    from tvm_ext.wafer.model_cost import ModelCost


def wafer_summary(
    cost: "ModelCost", kernels: "Sequence[KernelCost]", verbose: bool = False
) -> RenderableType:
    """Return the summary as one rich renderable, with ``kernels`` in its tables.

    ``verbose`` adds names of kernels and decisions of their schedules.
    """
    parts = [
        _title(cost),
        _key_figures(cost),
        Text(),
        _schedules(cost, kernels),
        _costs(kernels),
        names_table((one, schedule_text(one)) for one in kernels) if verbose else None,
        _placements(cost),
        marked_lines("Does not run on this mesh", refusal_lines(cost)),
        marked_lines("Notes", note_lines(cost)),
    ]
    return Group(*(part for part in parts if part is not None))


def _title(cost: "ModelCost") -> Text:
    title = Text(plain(cost.model), style="bold")
    facts = f"  optimisation {cost.opt_level}, target {cost.mesh.name}; modelled, not measured"
    return title.append(plain(facts), style="not bold dim")


def _key_figures(cost: "ModelCost") -> Table:
    chosen, mesh = cost.chosen, cost.mesh
    seconds = format_seconds(mesh.seconds(chosen.cycles))
    most, rate = most_runs(cost)
    efficiency = format_percent(overall_efficiency(cost, chosen))
    there, back = (format_seconds(mesh.seconds(cycles)) for cycles in cost.host_cycles)
    return facts_table(
        {
            "One run": f"{chosen.cycles:,.0f} cycles, {seconds}  ({chosen.title})",
            "Runs a second": f"{rate:,.0f}  ({most.title})",
            "Kernels": calls_text(cost.kernels),
            "Efficiency": f"{efficiency} of what all PEs could do in float32",
            "Host link": f"{there} for inputs, {back} for outputs, not counted above",
        }
    )


def _schedules(cost: "ModelCost", kernels: "Sequence[KernelCost]") -> Table:
    """Schedule and time."""
    scale = seconds_scale(max((cost.mesh.seconds(one.cycles) for one in kernels), default=0.0))
    numbers = (">Calls", ">Grid", ">Cycles", ">Time", ">Share")
    title = "Kernels by time of one run, with cycles of one call (modelled)"
    table = FlexibleTable(title, "~Computes", "~Schedule", *numbers)
    for kernel in kernels:
        known = kernel.cost is not None
        table.add_row(
            ShortName(computes(kernel)),
            ShortName(kernel.schedule),
            f"{kernel.calls:,}",
            grid_text(kernel.cost, ABSENT),
            f"{kernel.cost.cycles:,.0f}" if kernel.cost is not None else ABSENT,
            scale(cost.mesh.seconds(kernel.cycles)) if known else ABSENT,
            format_percent(kernel_share(cost, kernel)) if known else ABSENT,
        )
    return table


def _costs(kernels: "Sequence[KernelCost]") -> Table | None:
    """What the PEs do in one call."""
    found = [(kernel, kernel.cost) for kernel in kernels if kernel.cost is not None]
    if not found:
        return None
    sizes = bytes_scale(max(one.bytes_per_pe for _, one in found))
    shares = (">Comp.", ">Mem.", ">Comm.", ">Start", ">Idle")
    more = (">Eff.", ">Imbal.", ">SRAM", ">Col.@100", ">Hops@100", ">Word-hops@100")
    title = "One call: parts of the time, and what it takes (modelled)"
    table = FlexibleTable(title, "~Computes", *shares, *more)
    for kernel, one in found:
        table.add_row(
            ShortName(computes(kernel)),
            *(f"{100 * share:.0f} %" for share in one.shares.values()),
            format_percent(one.efficiency),
            f"{one.imbalance:.2f}",
            sizes(one.bytes_per_pe),
            f"{one.colours:,}",
            f"{one.hops:,.0f}",
            format_large(one.word_hops),
        )
    return table


def _placements(cost: "ModelCost") -> Table:
    numbers = ("Regions@90", "One run", "Runs/s", "Kernels", "Moves", "Weights", "SRAM")
    columns = [f">{name}" for name in numbers]
    table = FlexibleTable("Placement (modelled)", "~Where", *columns)
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


# One kernel on a mesh, step by step, for a terminal. All times are modelled.


def program_parts(
    cost: "ModelCost", kernel: "KernelCost", verbose: bool = False
) -> "Iterator[RenderableType]":
    """Yield what a kernel does, where its tensors lie, and what it costs."""
    title = Text(plain(computes(kernel)), style="bold")
    title.append(f"  {format_count(kernel.calls, 'call')} of {plain(cost.model)}", "not bold dim")
    yield title
    yield facts_table({"kernel": kernel.name if verbose else "", **_kernel_facts(kernel)})
    if kernel.program is not None:
        yield Text("Program of one PE", style="bold")
        for item in kernel.program.items:
            yield from _item(item, cost.mesh, 2)
    yield Text()


def _kernel_facts(kernel: "KernelCost") -> dict[str, str]:
    facts = {
        "schedule": f"{schedule_text(kernel)}, {kernel.source}: {kernel.reason}",
        "refused": kernel.refusal,
    }
    found = kernel.cost
    if found is not None:
        sent = f"{format_large(found.word_hops)} word-hops, at most {found.hops:,.0f} hops"
        parts = ", ".join(f"{name} {format_percent(part)}" for name, part in found.shares.items())
        facts |= {
            "grid": f"{found.rows} rows x {found.columns} columns",
            "cycles": f"{found.cycles:,.0f} for 1 call, {format_seconds(found.seconds)} (modelled)",
            "of these": parts,
            "efficiency": f"{format_percent(found.efficiency)} of the grid's peak",
            "imbalance": f"{found.imbalance:.2f} (busiest by mean)",
            "messages": sent,
            "routes": format_count(found.colours, "colour"),
        }
    if kernel.program is not None:
        facts["SRAM"] = f"{format_bytes(kernel.program.bytes_per_pe)} a PE"
        for position, home in sorted(kernel.program.homes.items()):
            facts[f"tensor {position}"] = _home(home)
        for number, (name, nbytes) in enumerate(kernel.program.buffers.items()):
            facts[f"buffer {number}"] = f"{name}: {format_bytes(nbytes)}"
    return facts


def _home(home: "Layout") -> str:
    words = []
    for size, axis, piece in zip(home.shape, home.axes, home.pieces, strict=True):
        words.append(f"{size}" if axis == "-" else f"{size} by {piece} over {axis}s")
    shard = format_bytes(home.shard_bytes)
    return f"{home.tensor}: [{', '.join(words)}], {shard} in each of {home.rows}x{home.columns} PEs"


def _item(item: "Item", mesh: "WaferDescription", indent: int) -> "Iterator[RenderableType]":
    from tvm_ext.hardware.wafer.program import Steps, Transfer

    if isinstance(item, Steps):
        how = "messages under way meanwhile" if item.overlapped else "in turn"
        text = f"{format_count(item.times, 'step')}, {how}"
    else:
        text = _transfer(item) if isinstance(item, Transfer) else _work(item, mesh)
    yield Padding(Text(plain(text)), (0, 0, 0, indent))
    for one in item.items if isinstance(item, Steps) else ():
        yield from _item(one, mesh, indent + 2)


def _transfer(item: "Transfer") -> str:
    text = f"{item.pattern} of {item.name}: {format_count(round(item.words), 'word')} to each PE"
    text += f", line of {item.extent}, {item.distance:,.0f} hops"
    if item.load > 1:
        text += f", busiest link takes {item.load:,.0f} in turn"
    return text


def _work(item: "BlockWork", mesh: "WaferDescription") -> str:
    from tvm_ext.hardware.wafer.program_cost import work_cycles

    compute, memory = work_cycles(item, mesh)
    instructions = format_count(round(item.instructions), "vector instruction")
    text = f"{item.name}: {instructions} of {format_count(round(item.length), 'element')}"
    if item.scalar_operations:
        text += f", {item.scalar_operations:,.0f} scalar operations"
    return f"{text}, {item.dtype}; {compute + memory:,.0f} cycles"

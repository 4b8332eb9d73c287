"""One kernel on a mesh, step by step, for a terminal. All times are modelled."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.text import Text

from tvm_ext.report.units import format_bytes, format_count, format_percent, format_seconds, plain
from tvm_ext.report.wafer_figures import format_large, schedule_text

if TYPE_CHECKING:
    from tvm_ext.hardware.mesh_description import MeshDescription
    from tvm_ext.hardware.wafer.program import Item, Layout, Transfer, Work
    from tvm_ext.wafer.kernel_cost import KernelCost
    from tvm_ext.wafer.model_cost import ModelCost


def program_text(cost: "ModelCost", kernel: "KernelCost") -> Text:
    """Return what a kernel does, where its tensors lie, and what it costs."""
    lines = list(_lines(cost, kernel))
    text = Text(plain(kernel.name), style="bold")
    text.append(f"  {format_count(kernel.calls, 'call')} of {plain(cost.model)}", "not bold dim")
    for line in lines:
        text.append(f"\n{plain(line)}", style="not bold")
    return text.append("\n")


def _lines(cost: "ModelCost", kernel: "KernelCost") -> Iterator[str]:
    yield f"  computes     {kernel.origins[0] if kernel.origins else kernel.name}"
    yield f"  schedule     {schedule_text(kernel)}, {kernel.source}: {kernel.reason}"
    if kernel.refusal:
        yield f"  refused      {kernel.refusal}"
    found = kernel.cost
    if found is not None:
        seconds = format_seconds(found.seconds)
        yield f"  grid         {found.rows} rows x {found.columns} columns"
        yield f"  cycles       {found.cycles:,.0f} for 1 call, {seconds} (modelled)"
        parts = ", ".join(f"{name} {format_percent(part)}" for name, part in found.shares.items())
        yield f"  of these     {parts}"
        yield f"  efficiency   {format_percent(found.efficiency)} of the grid's peak"
        yield f"  imbalance    {found.imbalance:.2f} (busiest by mean)"
        hops = f"{format_large(found.word_hops)} word-hops, at most {found.hops:,.0f} hops"
        yield f"  messages     {hops}"
        yield f"  routes       {format_count(found.colours, 'colour')}"
    if kernel.program is None:
        return
    yield f"  SRAM         {format_bytes(kernel.program.bytes_per_pe)} a PE"
    for position, home in sorted(kernel.program.homes.items()):
        yield f"    tensor {position}   {_home(home)}"
    for name, nbytes in kernel.program.buffers.items():
        yield f"    buffer     {name}: {format_bytes(nbytes)}"
    yield "  program of one PE"
    for item in kernel.program.items:
        yield from _item(item, cost.mesh, "    ")


def _home(home: "Layout") -> str:
    words = []
    for size, axis, piece in zip(home.shape, home.axes, home.pieces, strict=True):
        words.append(f"{size}" if axis == "-" else f"{size} by {piece} over {axis}s")
    shard = format_bytes(home.shard_bytes)
    return f"{home.tensor}: [{', '.join(words)}], {shard} in each of {home.rows}x{home.columns} PEs"


def _item(item: "Item", mesh: "MeshDescription", indent: str) -> Iterator[str]:
    from tvm_ext.hardware.wafer.program import Steps, Transfer

    if isinstance(item, Steps):
        how = "messages under way meanwhile" if item.overlapped else "in turn"
        yield f"{indent}{format_count(item.times, 'step')}, {how}"
        for one in item.items:
            yield from _item(one, mesh, indent + "  ")
    elif isinstance(item, Transfer):
        yield indent + _transfer(item)
    else:
        yield indent + _work(item, mesh)


def _transfer(item: "Transfer") -> str:
    text = f"{item.pattern} of {item.name}: {format_count(round(item.words), 'word')} to each PE"
    text += f", line of {item.extent}, {item.distance:,.0f} hops"
    if item.load > 1:
        text += f", busiest link takes {item.load:,.0f} in turn"
    return text


def _work(item: "Work", mesh: "MeshDescription") -> str:
    from tvm_ext.hardware.wafer.program_cost import work_cycles

    compute, memory = work_cycles(item, mesh)
    instructions = format_count(round(item.instructions), "vector instruction")
    text = f"{item.name}: {instructions} of {format_count(round(item.length), 'element')}"
    if item.scalar_operations:
        text += f", {item.scalar_operations:,.0f} scalar operations"
    return f"{text}, {item.dtype}; {compute + memory:,.0f} cycles"

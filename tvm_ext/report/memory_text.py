"""A memory plan as text for a terminal.

Names come from model files, so they enter as `Text`, never as rich markup.
"""

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from tvm_ext.report.terminal_tables import FlexibleTable, ShortName, facts_table
from tvm_ext.report.text import kernel_arrays_figure, limit_figure
from tvm_ext.report.units import ABSENT, format_bytes, format_count, format_percent, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tvm_ext.report.memory_plan import FunctionPlan, ModelMemory

# Values of the peak that are listed without "verbose".
TENSORS_SHOWN = 10
_NOT_KNOWN = "decided in each run"


def key_figures(found: "ModelMemory") -> list[tuple[str, str, str]]:
    """Label, value and note of each figure of a plan."""
    memory = found.memory
    planned, bound = memory.planned_peak_bytes, memory.lower_bound_bytes
    if planned is None:
        return [("Peak memory", ABSENT, _NOT_KNOWN)]
    arena = sum(one.arena_bytes or 0 for one in found.plan.functions)
    own = memory.workspace_bytes or 0
    results = planned - arena - own
    outside = [f"{format_bytes(results)} of results outside"] if results > 0 else []
    outside += [f"{format_bytes(own)} of arrays of kernels"] if own else []
    figures = [
        ("Peak memory", format_bytes(planned), ", ".join(outside)),
        ("Arena", format_bytes(arena), memory.planner),
        ("Lower bound", format_bytes(bound or planned), f"gap {_gap(planned, bound)}"),
        ("TVM's planner", _times(found.tvm_bytes, planned), _ratio(found.tvm_bytes, planned)),
        (
            "Without reuse",
            _times(memory.unplanned_bytes, planned),
            _ratio(memory.unplanned_bytes, planned),
        ),
        ("Kernels' arrays", *kernel_arrays_figure(memory)),
        ("Weights", format_bytes(memory.weights_bytes), "constants of the program"),
        ("In place", format_count(len(found.in_place), "result"), "written over an operand"),
        ("Views", format_count(len(found.plan.views), "value"), "that nobody copies"),
        ("Memory limit", *limit_figure(memory)),
    ]
    return [figure for figure in figures if figure[1]]


def _gap(planned: int, bound: int | None) -> str:
    return format_percent(planned / bound - 1) if bound else ABSENT


def _times(nbytes: int | None, planned: int) -> str:
    return format_bytes(nbytes) if nbytes is not None else ABSENT


def _ratio(nbytes: int | None, planned: int) -> str:
    return f"{nbytes / planned:.2f} times the plan" if nbytes is not None and planned else ""


def plan_parts(found: "ModelMemory", verbose: bool = False) -> "list[RenderableType]":
    """The plan as renderables; ``verbose`` lists all values, and names those that share memory."""
    facts = {
        label: f"{value}  ({note})" if note else value for label, value, note in key_figures(found)
    }
    title = Text(plain(found.model), style="bold")
    title.append(f"  optimisation {found.opt_level}, target {plain(found.target)}", style="dim")
    parts: list[RenderableType] = [title, facts_table(facts)]
    for function in found.plan.functions:
        if function.arena_bytes is not None and function.calls:
            parts += [Text(), *_function_parts(function, verbose)]
    if verbose:
        parts += _shared(found)
    return parts


def _function_parts(plan: "FunctionPlan", verbose: bool) -> "list[RenderableType]":
    peak = plan.peak_call
    shown = plan.alive_at(peak)
    alive = len(shown)
    shown = list(plan.in_arena) if verbose else shown[:TENSORS_SHOWN]
    where = "" if plan.name == "main" else f" of {plain(plan.name)}"
    needs = (
        f"Call {peak} of {len(plan.calls)}{where} needs most, {format_bytes(plan.live_bytes[peak])}"
    )
    if own := plan.workspace_at(peak):
        needs += f", {format_bytes(own)} of it arrays of the kernel"
    heading = Group(Text(needs, style="bold"), ShortName(plan.calls[peak]))
    table = FlexibleTable("", "~Value", "Type", ">Size", ">Offset", ">Calls")
    for one in shown:
        table.add_row(
            ShortName(one.name),
            one.type,
            format_bytes(one.size),
            f"{one.offset:,}",
            f"{one.first}-{one.last}",
        )
    parts: list[RenderableType] = [heading, table]
    if not verbose and alive > len(shown):
        parts.append(
            Text(f"{format_count(alive - len(shown), 'smaller value')} alive at that call")
        )
    return parts


def _shared(found: "ModelMemory") -> "list[RenderableType]":
    parts: list[RenderableType] = []
    if found.in_place:
        table = FlexibleTable("", "~Result", "~Written over")
        for one in found.in_place:
            table.add_row(ShortName(one.name), ShortName(one.in_place_of))
        parts += [Text(), Text("In place", style="bold"), table]
    if found.plan.views:
        table = FlexibleTable("", "~View")
        for name in found.plan.views:
            table.add_row(ShortName(name))
        parts += [Text(), Text("Views", style="bold"), table]
    return parts

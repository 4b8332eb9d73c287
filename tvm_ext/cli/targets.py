"""``tvm-ext targets``: the machines that there are descriptions of."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_ext.cli import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from tvm_ext.hardware.machine import MachineDescription
    from tvm_ext.hardware.targets import TargetSummary

app = options.command_group("List the targets, or show the description of one.")

# Ending of a field's name to its unit.
_UNITS = {
    "_bytes": "B",
    "_bits": "bits",
    "_ghz": "GHz",
    "_gbs": "GB/s",
    "_us": "µs",
    "_tflops": "TFLOP/s",
    "_mhz": "MHz",
    "_cycles": "cycles",
    "bytes_per_cycle": "B/cycle",
    "words_per_cycle": "words/cycle",
    "cycles_per_element": "cycles",
    "_watts": "W",
}


@app.command("list", epilog="Example: tvm-ext targets list --json")
def list_command(json_output: options.Json = False) -> None:
    """List the targets: this machine ('cpu'), 'cuda', and the presets."""
    from dataclasses import asdict

    from tvm_ext.cli import output as out
    from tvm_ext.hardware.targets import list_targets

    found = list_targets()
    if json_output:
        out.print_json([asdict(summary) for summary in found])
        return
    out.print_rich(targets_table(found))


@app.command("show", epilog="Example: tvm-ext targets show cpu")
def show_command(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of a target, or a .toml file.")],
    json_output: options.Json = False,
) -> None:
    """Show a target's description, its CPU features, and the TVM target that is made from it."""
    from tvm_ext.cli import output as out
    from tvm_ext.hardware.targets import resolve_target

    description = resolve_target(name)
    if json_output:
        out.print_json(describe_target(description))
    else:
        out.print_rich(*description_parts(description))


def describe_target(description: "MachineDescription") -> dict[str, Any]:
    """The description as JSON values, with what follows from it.

    Besides its own fields, whose names end in their units: ``features`` (LLVM names),
    ``peak_flops`` (operations a second by dtype, from the description, not measured),
    ``tvm_target``, and what the backend adds: of a GPU, ``vendor_libraries``.
    """
    from tvm_ext.hardware.backend import backend_of

    return {
        **description.model_dump(mode="json"),
        **backend_of(description).facts(),
        "features": list(description.required_features),
        "peak_flops": {dtype: description.peak_flops(dtype) for dtype in _PEAK_DTYPES},
        "tvm_target": _tvm_target(description),
    }


_PEAK_DTYPES = ("float32", "float16", "bfloat16", "int8")


def _tvm_target(description: "MachineDescription") -> dict[str, Any]:
    """The target as TVM takes it, without what TVM derives at each construction."""
    import json

    exported = json.loads(json.dumps(dict(description.tvm_target().export()), default=_plain))
    return {key: value for key, value in exported.items() if not key.startswith("feature.")}


def _plain(value: Any) -> Any:
    """TVM's maps and arrays as Python's own."""
    return dict(value) if hasattr(value, "items") else list(value)


def targets_table(found: "Sequence[TargetSummary]") -> "Table":
    """One row a target, for a terminal."""
    from rich.text import Text

    from tvm_ext.report.terminal_tables import FlexibleTable, ShortName
    from tvm_ext.report.units import plain

    table = FlexibleTable("Targets", "Target", "Kind", "=What it is")
    for one in found:
        table.add_row(ShortName(one.name), one.kind, Text(plain(one.summary)))
    return table


def description_parts(description: "MachineDescription") -> "list[RenderableType]":
    """The description in numbers with their units, for a terminal."""
    from rich.text import Text

    from tvm_ext.report.terminal_tables import facts_table
    from tvm_ext.report.units import format_bytes, plain

    facts: dict[str, str] = {}
    for key, value in describe_target(description).items():
        if key == "peak_flops":
            for dtype, rate in value.items():
                facts[f"peak {dtype}"] = f"{rate / 1e9:,.0f} GFLOP/s (computed)"
        elif unit_of(key) == "B":
            facts[key] = format_bytes(value)
        elif key not in ("name", "summary"):
            facts[key] = f"{_text(value)} {unit_of(key)}".strip()
    title = Text(plain(description.name), style="bold")
    title.append(f"  {plain(description.summary)}", style="not bold dim")
    return [title, facts_table(facts)]


def unit_of(field: str) -> str:
    """The unit that a field's name ends in; empty for a count or a text."""
    return next((unit for ending, unit in _UNITS.items() if field.endswith(ending)), "")


def _text(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{key}={_text(item)}" for key, item in value.items())
    return ", ".join(map(_text, value))

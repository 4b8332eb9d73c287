"""``tvm-ext analyze``: what is known of the values of a model before it is compiled."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_ext.cli import options
from tvm_ext.cli.input_parsing import parse_input_ranges, parse_input_shapes
from tvm_ext.cli.stderr_lines import progress_line

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tvm_ext.compiler.analyze_model import FunctionAnalysis, ModelAnalysis, ValueAnalysis

EXAMPLE = "Example: tvm-ext analyze model.onnx --analysis ranges,precision --input-range x=0:1"


def analyze_command(
    model: options.Model,
    analysis: Annotated[
        list[str] | None,
        typer.Option(
            "--analysis",
            metavar="NAME,...",
            show_default="all",
            help="ranges, constants, equal, shapes, precision, liveness, memory or effects. "
            "Repeatable.",
        ),
    ] = None,
    input_range: Annotated[
        list[str] | None,
        typer.Option(
            "--input-range",
            metavar="NAME=LOW:HIGH",
            help="Assume that all numbers of an input lie between these two. Repeatable.",
        ),
    ] = None,
    input_shape: options.InputShapes = None,
    verbose: options.Verbose = False,
    json_output: options.Json = False,
) -> None:
    """Print what is known of each value of a model in every run, by ONNX node.

    Bounds of its numbers and of its rounding error, sizes, how long it is alive,
    and what may be left out. The model is analysed as it is after import.
    """
    options.require_onnx_model(model)
    names = [one.strip() for text in analysis or () for one in text.split(",")]
    shapes, ranges = parse_input_shapes(input_shape or ()), parse_input_ranges(input_range or ())
    from tvm_ext.cli import output as out
    from tvm_ext.compiler.analyze_model import analyze_model

    with progress_line():
        found = analyze_model(model, shapes or None, names, ranges)
    if json_output:
        out.print_json(found.to_dict())
    else:
        out.print_rich(*_parts(found, verbose))


def _parts(found: "ModelAnalysis", verbose: bool) -> "list[RenderableType]":
    from rich.text import Text

    from tvm_ext.compiler.analyze_model import ANALYSES
    from tvm_ext.report.units import format_count, plain

    parts: list[RenderableType] = [Text(plain(found.model), style="bold")]
    for analysis in found.analyses:
        parts += [Text(), Text(f"{analysis}: {ANALYSES[analysis]}", style="bold")]
        hidden = 0
        for function in found.functions:
            rows = [value for value in function.values if _is_shown(value, analysis, verbose)]
            hidden += len(function.values) - len(rows)
            if rows:
                parts.append(_table(function, rows, analysis))
            if analysis == "memory":
                parts.append(Text(plain(_peak_line(function))))
        if hidden:
            rest = "without effects" if analysis == "effects" else "without a finding"
            parts.append(Text(f"{format_count(hidden, 'other value')} {rest}"))
    return parts


def _is_shown(value: "ValueAnalysis", analysis: str, verbose: bool) -> bool:
    fact = value.facts.get(analysis)
    if fact is None or verbose:
        return fact is not None
    if analysis == "effects":
        return bool(fact["effects"])
    # Another name for a value adds nothing to what is said of the value.
    return bool(value.operator)


def _table(
    function: "FunctionAnalysis", rows: "list[ValueAnalysis]", analysis: str
) -> "RenderableType":
    from rich.text import Text

    from tvm_ext.report.terminal_tables import FlexibleTable, ShortName
    from tvm_ext.report.units import plain

    title = "" if function.name == "main" else plain(function.name)
    columns, cells = _COLUMNS[analysis]
    table = FlexibleTable(title, "~Node", "Operator", *columns)
    for value in rows:
        texts = [
            Text(plain(str(cell)), overflow="ellipsis") for cell in cells(value.facts[analysis])
        ]
        table.add_row(ShortName(value.node), ShortName(value.operator), *texts)
    return table


def _peak_line(function: "FunctionAnalysis") -> str:
    from tvm_ext.report.units import format_bytes

    usage = function.memory
    if usage is None or usage.place < 0:
        return f"{function.name}: nothing is computed"
    node = function.values[usage.place].node
    more = "" if usage.is_complete else ", and more that is not known"
    text = f"{function.name}: peak {format_bytes(usage.peak)}{more}, at {node}"
    is_formula = any(letter.isalpha() for letter in usage.formula)
    return f"{text}: {usage.formula} bytes" if is_formula else text


def _range_cells(fact: dict[str, Any]) -> list[str]:
    if fact.get("unreached"):
        return ["", "", "never computed"]
    words = {"NaN": fact["may_be_nan"], "-0": fact["may_be_negative_zero"]}
    found = [word for word, may_be in words.items() if may_be]
    return [
        _short(fact["low"]),
        _short(fact["high"]),
        ", ".join([*found, *(["whole"] if fact["is_integral"] else [])]),
    ]


def _short(number: float | str) -> str:
    return number if isinstance(number, str) else f"{number:.6g}"


def _constant_cells(fact: dict[str, Any]) -> list[str]:
    shown = [_short(one) for one in fact["values"][:6]]
    return [" ".join([*shown, *(["..."] if len(fact["values"]) > 6 else [])])]


def _shape_cells(fact: dict[str, Any]) -> list[str]:
    from tvm_ext.relay_passes.dataflow.sizes import MOST

    if "rank" in fact:
        return [f"{fact['rank']} axes", ""]
    pairs = zip(fact["sizes"], fact["bounds"], strict=True)
    limits = [f"{n} <= {high}" for n, (_, high) in pairs if isinstance(n, str) and high < MOST]
    return [" x ".join(map(str, fact["sizes"])) or "scalar", ", ".join(dict.fromkeys(limits))]


def _live_cells(fact: dict[str, Any]) -> list[str]:
    if not fact["is_needed"]:
        return ["no", ""]
    return ["yes", fact["until"] or "the end"]


def _effect_cells(fact: dict[str, Any]) -> list[str]:
    allowed = [one for one in ("removed", "moved", "duplicated") if fact[f"may_be_{one}"]]
    return [", ".join(fact["effects"]).replace("_", " "), ", ".join(allowed) or "nothing"]


def _memory_cells(fact: dict[str, Any]) -> list[str]:
    from tvm_ext.report.units import format_bytes

    return [format_bytes(fact["bytes"])]


_COLUMNS: dict[str, Any] = {
    "ranges": ([">Low", ">High", "May be"], _range_cells),
    "constants": (["~Value"], _constant_cells),
    "equal": (["~Equal to"], lambda fact: [fact["to"]]),
    "shapes": (["~Sizes", "~Bounds"], _shape_cells),
    "precision": (
        [">Absolute/eps", ">Relative/eps"],
        lambda fact: [_short(fact["absolute"]), _short(fact["relative"])],
    ),
    "liveness": (["Needed", "~Alive until"], _live_cells),
    "memory": ([">Alive"], _memory_cells),
    "effects": (["Effects", "May be"], _effect_cells),
}

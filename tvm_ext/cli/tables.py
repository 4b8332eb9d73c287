"""Tables that commands print: arrays in a few numbers, and the operators of a model."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import typer
from rich.table import Table
from rich.text import Text

from tvm_ext.cli.options import is_saved_model
from tvm_ext.cli.output import print_json, print_rich
from tvm_ext.errors import InputError
from tvm_ext.report.terminal_tables import FlexibleTable, ShortName, ShortNames
from tvm_ext.report.units import ABSENT, format_count, plain

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tvm_ext.onnx_frontend.operator_table import OperatorUse

_TEXT = "OUS"


def summarise(array: np.ndarray, top: int = 0) -> dict[str, Any]:
    """Shape, dtype, and minimum, mean and maximum of the finite values (None without any).

    ``top`` asks for the largest values with their indices as well.
    """
    summary: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.dtype.kind in _TEXT:
        return {**summary, "min": None, "mean": None, "max": None, "non_finite": 0}
    values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    summary["min"], summary["mean"], summary["max"] = (
        (float(finite.min()), float(finite.mean()), float(finite.max()))
        if finite.size
        else (None, None, None)
    )
    summary["non_finite"] = int(values.size - finite.size)
    if top:
        pairs = largest(values, top)
        # JSON has no NaN and no infinity: they become text.
        summary["top"] = [
            {"index": list(i), "value": v if np.isfinite(v) else str(v)} for i, v in pairs
        ]
    return summary


def largest(values: np.ndarray, count: int) -> list[tuple[tuple[int, ...], float]]:
    """The ``count`` largest values with their indices, NaN last, ties in their order."""
    flat = values.ravel()
    order = np.argsort(np.where(np.isnan(flat), -np.inf, flat)[::-1], kind="stable")[::-1]
    places = (flat.size - 1 - order)[:count]
    return [
        (tuple(int(i) for i in np.unravel_index(place, values.shape)), float(flat[place]))
        for place in places
    ]


def summary_table(arrays: Mapping[str, np.ndarray], top: int = 0) -> Table:
    """One row an array, and its largest values below it."""
    summaries = {name: summarise(array) for name, array in arrays.items()}
    columns = ["~Output", "Type", "Shape", ">Min", ">Mean", ">Max"]
    has_bad = any(summary["non_finite"] for summary in summaries.values())
    table = FlexibleTable("", *columns, *([">NaN or Inf"] if has_bad else []))
    for name, array in arrays.items():
        summary = summaries[name]
        numbers = [_number(summary[key]) for key in ("min", "mean", "max")]
        bad = [f"{summary['non_finite']:,}"] if has_bad else []
        table.add_row(ShortName(name), summary["dtype"], shape_text(array.shape), *numbers, *bad)
        values = () if array.dtype.kind in _TEXT else largest(array.astype(np.float64), top)
        for index, value in values:
            place = f"  at {', '.join(map(str, index))}" if index else ""
            table.add_row(place, "", "", "", "", _number(value))
    return table


def shape_text(shape: Sequence[int]) -> str:
    """Sizes in one word, such as "1x3x224x224"."""
    return "x".join(map(str, shape)) or "scalar"


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.6g}"


# ``tvm-ext compile --dry-run``: the operators of a model, and what becomes of them.


def print_operators(
    model: Path, input_shapes: Mapping[str, Sequence[int | str]], json_output: bool
) -> None:
    """Prints the table; exit code 1 where an operator is unsupported.

    Raises
    ------
    InputError, ModelError
        The model or the shapes are not valid, or a node has a form that cannot be converted.
    """
    if is_saved_model(model):
        raise InputError(f"{model} is a compiled model; expected an ONNX model")
    from tvm_ext.onnx_frontend.operator_table import UNSUPPORTED, operator_uses

    uses = operator_uses(model, input_shapes)
    if json_output:
        print_json({"operators": [asdict(use) for use in uses]})
    else:
        print_rich(*operator_parts(model.name, uses))
    if any(use.support == UNSUPPORTED for use in uses):
        raise typer.Exit(1)


def operator_parts(model: str, uses: "Sequence[OperatorUse]") -> "list[RenderableType]":
    """What becomes of each operator of ``model``, for a terminal."""
    counts = Counter(use.support for use in uses)
    differ = len(counts) > 1
    supports = [f"{count if differ else 'all'} {support}" for support, count in counts.items()]
    nodes = format_count(sum(len(use.nodes) for use in uses), "node")
    facts = ", ".join([f"{nodes} of {format_count(len(uses), 'operator')}", *supports])
    title = Text(plain(model), style="bold").append(f"  {facts}", "not bold dim")
    table = FlexibleTable("", "Operator", *(["Support"] if differ else []), ">Count", "~Nodes")
    for use in uses:
        support = [use.support] if differ else []
        table.add_row(plain(use.operator), *support, f"{len(use.nodes):,}", ShortNames(use.nodes))
    return [title, table]

"""Tables that commands print: arrays in a few numbers, cells of tuning records, and the operators
of a model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich import box
from rich.table import Table
from rich.text import Text

from tvm_ext.cli.options import is_saved_model
from tvm_ext.cli.output import print_json, print_rich
from tvm_ext.errors import InputError
from tvm_ext.report.units import ABSENT, format_percent, format_seconds, plain

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
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("Output", "Type", "Shape"):
        table.add_column(column, overflow="fold")
    for column in ("Min", "Mean", "Max", "NaN or Inf"):
        table.add_column(column, justify="right", no_wrap=True)
    for name, array in arrays.items():
        summary = summarise(array)
        numbers = [_number(summary[key]) for key in ("min", "mean", "max")]
        shape = " x ".join(map(str, array.shape)) or "scalar"
        bad = f"{summary['non_finite']:,}"
        table.add_row(Text(plain(name)), summary["dtype"], shape, *numbers, bad)
        values = () if array.dtype.kind in _TEXT else largest(array.astype(np.float64), top)
        for index, value in values:
            table.add_row(Text(f"  {list(index)}"), "", "", "", "", _number(value), "")
    return table


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.6g}"


# Cells of tuning records.


_LONGEST_ORIGIN = 40


def text(words: str) -> Text:
    """Words from a file: no markup, no escape sequences."""
    return Text(plain(words))


def seconds_cell(seconds: float | None, is_modelled: bool = False) -> str:
    """A time; that of a model is marked as such."""
    return _marked(format_seconds(seconds), is_modelled) if seconds is not None else ABSENT


def gain_cell(gain: float | None, is_modelled: bool = False) -> str:
    """How many times as fast; that of a model is marked as such."""
    return _marked(f"{gain:.2f}x", is_modelled) if gain is not None else ABSENT


def _marked(value: str, is_modelled: bool) -> str:
    return f"{value} (modelled)" if is_modelled else value


def origin_cell(origins: Sequence[str]) -> str:
    """The first of the model's nodes, shortened, and how many more there are."""
    if not origins:
        return ABSENT
    first = origins[0]
    if len(first) > _LONGEST_ORIGIN:
        first = first[: _LONGEST_ORIGIN - 3] + "..."
    return first if len(origins) == 1 else f"{first} +{len(origins) - 1}"


def counts_cell(counts: Mapping[str, int]) -> str:
    """Counts by name, such as "2 build, 1 wrong"."""
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "0"


def spread_cell(spread: float) -> str:
    """A relative spread in percent."""
    return format_percent(spread) if spread else ABSENT


# ``tvm-ext compile --dry-run``: the operators of a model, and what becomes of them.


# Of an operator that stands in a hundred places; JSON has all names.
_NAMES_SHOWN = 4


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
        table = Table("operator", "support", "count", "nodes", title=model.name)
        table.columns[2].justify = "right"
        for use in uses:
            table.add_row(use.operator, use.support, str(len(use.nodes)), _shown(use.nodes))
        print_rich(table)
    if any(use.support == UNSUPPORTED for use in uses):
        raise typer.Exit(1)


def _shown(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")

"""Describes arrays in a few numbers, for the terminal and as JSON."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from tvm_ext.report.units import ABSENT, plain

_TEXT = "OUS"


def summarise(array: np.ndarray, top: int = 0) -> dict[str, Any]:
    """Shape, dtype, and minimum, mean and maximum of the finite values (None without any).

    ``top`` asks for the largest values with their indices as well.
    """
    summary: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.dtype.kind in _TEXT:
        return {**summary, "min": None, "mean": None, "max": None, "non_finite": 0}
    values = _as_float(array)
    finite = values[np.isfinite(values)]
    summary["min"], summary["mean"], summary["max"] = (
        (float(finite.min()), float(finite.mean()), float(finite.max()))
        if finite.size
        else (None, None, None)
    )
    summary["non_finite"] = int(values.size - finite.size)
    if top:
        pairs = largest(values, top)
        summary["top"] = [{"index": list(i), "value": _json_float(v)} for i, v in pairs]
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
        for index, value in () if array.dtype.kind in _TEXT else largest(_as_float(array), top):
            table.add_row(Text(f"  {list(index)}"), "", "", "", "", _number(value), "")
    return table


def _as_float(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.6g}"


def _json_float(value: float) -> float | str:
    """JSON has no NaN and no infinity: they become text."""
    return value if np.isfinite(value) else str(value)

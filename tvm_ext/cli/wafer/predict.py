"""``tvm-ext wafer predict``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvm_ext.cli import options

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from tvm_ext.hardware.wafer.published.families import RowPrediction

EXAMPLE = "Example: tvm-ext wafer predict measurements.csv --json"


def predict_command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.csv",
            help="A table with one measurement a line. Its columns are id, kernel, unit, and "
            "those that the kernel needs of arch, M, N, K, vector_length, dtype, "
            "parameters, grid_rows, grid_cols, value, value_max and clock_mhz.",
        ),
    ],
    json_output: options.Json = False,
) -> None:
    """Predict published measurements of kernels on wafer-scale processors.

    A row that no model covers is named with the reason.
    """
    from tvm_ext.cli import output as out
    from tvm_ext.hardware.wafer.published.families import predict_rows
    from tvm_ext.hardware.wafer.published.rows import read_rows

    found = predict_rows(read_rows(file))
    if json_output:
        out.print_json([_to_json(one) for one in found])
        return
    covered = [one for one in found if one.covered]
    table = [_table(covered)] if covered else []
    out.print_rich(*table, _summary(found), *_reasons(found))


def _to_json(prediction: "RowPrediction") -> dict[str, Any]:
    return {
        "id": prediction.row.id,
        "predicted": prediction.predicted,
        "unit": prediction.row.unit,
        "family": prediction.family,
        "covered": prediction.covered,
        "reason": prediction.reason,
        "of": prediction.of,
        "predicted_mean": prediction.predicted_mean,
        "published": prediction.published,
        "error": prediction.error,
    }


def _table(predictions: "Sequence[RowPrediction]") -> "Table":
    from tvm_ext.report.terminal_tables import FlexibleTable

    numbers = (">Predicted", ">Published", ">Error")
    table = FlexibleTable("", "~Row", "Family", *numbers, "~Unit", "Of@90")
    for one in predictions:
        table.add_row(*_cells(one))
    return table


def _cells(prediction: "RowPrediction") -> list[Any]:
    from tvm_ext.report.terminal_tables import ShortName
    from tvm_ext.report.units import ABSENT

    return [
        ShortName(prediction.row.id),
        prediction.family,
        _number(prediction.predicted),
        _number(prediction.published),
        f"{100 * prediction.error:+.1f} %" if prediction.error is not None else ABSENT,
        ShortName(prediction.row.unit),
        prediction.of,
    ]


def _number(value: float | None) -> str:
    from tvm_ext.report.units import ABSENT

    if value is None:
        return ABSENT
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _summary(predictions: "Sequence[RowPrediction]") -> str:
    errors = [abs(one.error) for one in predictions if one.error is not None]
    text = f"{sum(one.covered for one in predictions)} of {len(predictions)} rows predicted"
    if not errors:
        return f"{text}."
    mean = 100 * sum(errors) / len(errors)
    return f"{text}; mean absolute error of the {len(errors)} with a published value: {mean:.1f} %."


def _reasons(predictions: "Sequence[RowPrediction]") -> "list[Text]":
    """One line for each reason, with the rows that it is about."""
    from rich.text import Text

    from tvm_ext.report.units import plain

    rows: dict[tuple[str, str], list[str]] = {}
    for one in predictions:
        if not one.covered:
            rows.setdefault((one.family, one.reason), []).append(one.row.id)
    return [
        Text(plain(f"{_named(ids)}: {family + ': ' if family else ''}{reason}"))
        for (family, reason), ids in rows.items()
    ]


def _named(ids: "Sequence[str]") -> str:
    few = ", ".join(ids[:_NAMED_ROWS])
    more = len(ids) - _NAMED_ROWS
    return f"{few} and {more} more" if more > 0 else few


# Of one reason; the rest are counted.
_NAMED_ROWS = 4

"""The models of wafer-scale kernels against published measurements.

By family, simulator and device rows apart: the mean absolute error with the parameters of
configs/wafer/calibration.toml, and the same with one size left out of the fit at a time. Families
that no model covers are named with the reason, parameters with what they were fitted on.

    python benchmarks/wafer.py benchmarks/wafer_measurements.csv
    python benchmarks/wafer.py --fit           # what least squares over the rows gives
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tvm_ext.configs.errors import NotApplicable, TvmExtError
from tvm_ext.hardware.wafer.published.families import (
    FAMILIES,
    RowPrediction,
    calibration,
    covered_rows,
    fitted,
    leave_one_size_out,
    predict_rows,
)
from tvm_ext.hardware.wafer.published.family import Family
from tvm_ext.hardware.wafer.published.rows import PublishedRow, read_rows

_MEASUREMENTS = Path(__file__).with_name("wafer_measurements.csv")
_ABSENT = "-"


@dataclass(frozen=True)
class Errors:
    """Absolute relative errors of some rows: how many rows, their mean, the largest."""

    rows: int
    mean: float
    largest: float


@dataclass(frozen=True)
class FamilyErrors:
    """One family on one kind of evidence."""

    family: str
    measured_on: str
    fitted: Errors
    left_out: Errors | None
    """Cross-validated; None where no size can be left out."""


@dataclass(frozen=True)
class LeftOut:
    """Rows that no model covers."""

    family: str
    rows: int
    reason: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the comparison, or with --fit the parameters. 2 for a file that cannot be read."""
    asked = _parser().parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    try:
        rows = read_rows(asked.file)
    except TvmExtError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if asked.fit:
        console.print(_fit_table(rows))
        return 0
    errors, left_out = family_errors(rows), left_out_rows(rows)
    if asked.json:
        found = {
            "errors": [asdict(one) for one in errors],
            "left_out": [asdict(one) for one in left_out],
        }
        asked.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    console.print(_errors_table(errors), _left_out_table(left_out), _parameters_table())
    return 0


def family_errors(rows: Sequence[PublishedRow]) -> list[FamilyErrors]:
    """Errors of every family that has rows with values, simulator and device apart."""
    found = []
    for family in FAMILIES:
        own = _apart(predict_rows(covered_rows(rows, family)), family)
        validated = _apart(leave_one_size_out(rows, family), family)
        for (title, measured_on), predictions in own.items():
            errors = _errors(predictions)
            if errors is not None:
                left_out = _errors(validated.get((title, measured_on), []))
                found.append(FamilyErrors(title, measured_on, errors, left_out))
    return found


def left_out_rows(rows: Sequence[PublishedRow]) -> list[LeftOut]:
    """The rows without a prediction, by what they are and the reason."""
    counts: dict[tuple[str, str], int] = {}
    for one in predict_rows(rows):
        if not one.covered:
            key = one.family or one.row.kernel, one.reason
            counts[key] = counts.get(key, 0) + 1
    return [LeftOut(family, count, reason) for (family, reason), count in counts.items()]


def fitted_parameters(
    rows: Sequence[PublishedRow], families: Sequence[Family] = FAMILIES
) -> dict[str, Mapping[str, float] | str]:
    """What least squares gives for each family; the reason where the rows are too few."""
    found: dict[str, Mapping[str, float] | str] = {}
    for family in families:
        try:
            found[family.name] = fitted(rows, family)
        except NotApplicable as reason:
            found[family.name] = str(reason)
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "file", type=Path, nargs="?", default=_MEASUREMENTS, help="measurements, CSV"
    )
    parser.add_argument(
        "--fit", action="store_true", help="print the parameters that fit the rows instead"
    )
    parser.add_argument("--json", type=Path, help="write the errors to this file as well")
    return parser


def _apart(
    found: Sequence[RowPrediction], family: Family
) -> dict[tuple[str, str], list[RowPrediction]]:
    """The predictions by the family's title with its variant, and by what was measured on."""
    parts: dict[tuple[str, str], list[RowPrediction]] = {}
    for one in found:
        title = " ".join(filter(None, (family.title, family.variant(one.row))))
        parts.setdefault((title, one.row.measured_on or "not recorded"), []).append(one)
    return parts


def _errors(found: Sequence[RowPrediction]) -> Errors | None:
    errors = [abs(one.error) for one in found if one.error is not None]
    if not errors:
        return None
    return Errors(len(errors), sum(errors) / len(errors), max(errors))


def _errors_table(errors: Sequence[FamilyErrors]) -> Table:
    table = Table(title="model against published, absolute error", title_justify="left")
    table.add_column("family", no_wrap=True)
    table.add_column("measured on")
    table.add_column("rows", justify="right")
    for heading in ("mean", "largest", "mean, size left out", "largest, size left out"):
        table.add_column(heading, justify="right")
    for one in errors:
        cells = [*_cells(one.fitted), *_cells(one.left_out)]
        if one.left_out is not None and one.left_out.rows < one.fitted.rows:
            cells[2] += f" ({one.left_out.rows} rows)"
        table.add_row(one.family, one.measured_on, str(one.fitted.rows), *cells)
    return table


def _cells(errors: Errors | None) -> tuple[str, str]:
    if errors is None:
        return _ABSENT, _ABSENT
    return f"{100 * errors.mean:.2f} %", f"{100 * errors.largest:.2f} %"


def _left_out_table(left_out: Sequence[LeftOut]) -> Table:
    table = Table(title="covered by no model", title_justify="left")
    table.add_column("rows of", no_wrap=True)
    table.add_column("rows", justify="right")
    table.add_column("reason")
    for one in left_out:
        table.add_row(Text(one.family), str(one.rows), Text(one.reason))
    return table


def _parameters_table() -> Table:
    table = Table(title="fitted parameters", title_justify="left")
    table.add_column("parameter", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("unit")
    table.add_column("fitted on")
    known = calibration()
    for family in FAMILIES:
        for name, parameter in getattr(known, family.name).items():
            value = f"{parameter.value:.5g}"
            table.add_row(f"{family.name}.{name}", value, parameter.unit, parameter.fitted_on)
    return table


def _fit_table(rows: Sequence[PublishedRow]) -> Table:
    table = Table(title="least squares of the relative errors", title_justify="left")
    table.add_column("parameter", no_wrap=True)
    table.add_column("fitted here", justify="right")
    table.add_column("in calibration.toml", justify="right")
    known = calibration()
    for family in FAMILIES:
        found = fitted_parameters(rows, [family])[family.name]
        if isinstance(found, str):
            table.add_row(family.name, Text(found), _ABSENT)
            continue
        stated = known.values(family)
        for name, value in found.items():
            table.add_row(f"{family.name}.{name}", f"{value:.5g}", f"{stated[name]:.5g}")
    return table


if __name__ == "__main__":
    sys.exit(main())

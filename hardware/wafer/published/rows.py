"""Reads tables of published measurements: a CSV file with one measurement a line."""

import csv
import json
import math
import pathlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tvm_ext.configs.errors import NotApplicable, TvmExtError

# Errors of tables of measurements, and how a family says that a row is not its own to predict.


class MeasurementsError(TvmExtError):
    """A file of measurements cannot be read, or a line of it is not valid."""


REQUIRED_COLUMNS = ("id", "kernel", "unit")


@dataclass(frozen=True)
class PublishedRow:
    """One measurement, or the question for one; what a file leaves out is "" or None.

    Attributes
    ----------
    line : int
        Of the file, from 1.
    id, source, arch, measured_on, kernel, dtype : str
        As in the file: "WSE-2", "simulator", "1-D reduce, two-phase", "fp32".
    m, n, k : int or None
        Sizes of C[M, N] = A[M, K] B[K, N], or of a field of M x N cells.
    vector_length : int or None
        Elements that each processing element (PE) has, or cells of a column.
    parameters : Mapping[str, Any]
        From a JSON object in the column.
    grid_rows, grid_cols : int or None
        PEs.
    value, value_min, value_max : float or None
        In ``unit``; the least and the most are over PEs.
    unit : str
        Such as "cycles" or "s per 1000 steps".
    clock_mhz : float or None
        With which the source converted.
    """

    line: int
    id: str
    kernel: str
    unit: str
    source: str = ""
    arch: str = ""
    measured_on: str = ""
    dtype: str = ""
    m: int | None = None
    n: int | None = None
    k: int | None = None
    vector_length: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    grid_rows: int | None = None
    grid_cols: int | None = None
    value: float | None = None
    value_min: float | None = None
    value_max: float | None = None
    clock_mhz: float | None = None


def read_rows(path: str | pathlib.Path) -> list[PublishedRow]:
    """The measurements in a CSV file; columns it has beside those of ``PublishedRow`` are skipped.

    Raises
    ------
    MeasurementsError
        The file cannot be read, a column of ``REQUIRED_COLUMNS`` is missing, or a cell is not of
        the form it has to be; the message names the line.
    """
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            return list(_rows(csv.reader(file, strict=True)))
    except OSError as error:
        raise MeasurementsError(
            f"cannot read {path}: {error.strerror or type(error).__name__}; expected a CSV file, "
            "check the path"
        ) from error
    except UnicodeDecodeError as error:
        raise MeasurementsError(
            f"{path} is not UTF-8 text ({error.reason}); expected a CSV file"
        ) from error


def _rows(reader: Any) -> Iterator[PublishedRow]:
    cells = _lines(reader)
    _, header = next(cells, (1, []))
    names = [name.strip() for name in header]
    _check_header(names)
    for line, values in cells:
        if len(values) != len(names):
            raise MeasurementsError(
                f"line {line}: {len(values)} cells; expected {len(names)}, as in the first line: "
                "correct it, or put quotes around a cell with a comma"
            )
        yield _row(line, {name: cell.strip() for name, cell in zip(names, values, strict=True)})


def _lines(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Every line that is not empty, with the number of the physical line where it begins."""
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise MeasurementsError(
                f"line {line}: {error}; expected comma-separated values: correct the quotes"
            ) from error
        if cells is None:
            return
        if any(cell.strip() for cell in cells):
            yield line, cells


def _check_header(names: list[str]) -> None:
    missing = [name for name in REQUIRED_COLUMNS if name not in names]
    if missing:
        raise MeasurementsError(
            f"line 1: no column '{missing[0]}'; expected the columns' names, with at least "
            f"{', '.join(REQUIRED_COLUMNS)}"
        )
    twice = next((name for name in names if name and names.count(name) > 1), None)
    if twice is not None:
        raise MeasurementsError(f"line 1: column '{twice}' twice; expected each once: rename one")


def _row(line: int, cells: Mapping[str, str]) -> PublishedRow:
    for name in REQUIRED_COLUMNS:
        if not cells[name]:
            raise MeasurementsError(f"line {line}: '{name}' is empty; expected a text: fill it in")
    fields: dict[str, Any] = {name: cells.get(name, "") for name in _TEXTS}
    fields |= {name: _count(line, column, cells) for name, column in _COUNTS.items()}
    fields |= {name: _number(line, name, cells) for name in _NUMBERS}
    return PublishedRow(
        line,
        parameters=_parameters(line, cells.get("parameters", "")),
        clock_mhz=_clock(line, cells.get("clock_mhz", "")),
        **fields,
    )


_TEXTS = ("id", "source", "arch", "measured_on", "kernel", "dtype", "unit")
_NUMBERS = ("value", "value_min", "value_max")
_COUNTS = {
    "m": "M",
    "n": "N",
    "k": "K",
    "vector_length": "vector_length",
    "grid_rows": "grid_rows",
    "grid_cols": "grid_cols",
}


def _number(line: int, name: str, cells: Mapping[str, str]) -> float | None:
    text = cells.get(name, "")
    return None if not text else _positive(line, name, text)


def _count(line: int, name: str, cells: Mapping[str, str]) -> int | None:
    # A table with empty cells often comes back from other programs with 512.0 for 512.
    number = _number(line, name, cells)
    if number is None:
        return None
    if not number.is_integer():
        raise MeasurementsError(
            f"line {line}: '{name}' is '{cells[name]}'; expected a whole number above 0"
        )
    return int(number)


def _clock(line: int, text: str) -> float | None:
    # "850 (not stated in the paper)": the number leads.
    return _positive(line, "clock_mhz", text.split()[0]) if text else None


def _positive(line: int, name: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise MeasurementsError(f"line {line}: '{name}' is '{text}'; expected a number above 0")
    return number


def _parameters(line: int, text: str) -> Mapping[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise MeasurementsError(
            f"line {line}: 'parameters' is '{text}'; expected a JSON object, such as "
            '{"group_size": 8}'
        )
    return value


# Units of published times, and the way between them and cycles.


_SECONDS = {"s": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_UNIT = re.compile(
    r"(?P<time>cycles?|s|seconds|ms|[uµ]s|ns)"
    r"(?:\s*(?:per|/)\s*(?P<count>[1-9][\d,]*)?\s*(?:time\s+)?(?:steps?|iterations?))?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class TimeUnit:
    """A unit of time: cycles or seconds, of a whole run or of a number of its steps.

    Attributes
    ----------
    seconds : float or None
        How many seconds one is; None for cycles.
    steps : int or None
        How many steps of a run it is about; None for the whole run.
    """

    seconds: float | None
    steps: int | None

    def from_cycles(self, cycles: float, steps: int, clock_mhz: float) -> float:
        """A run of ``steps`` steps that takes ``cycles`` cycles, in this unit."""
        return cycles * self._per_cycle(steps, clock_mhz)

    def to_cycles(self, value: float, steps: int, clock_mhz: float) -> float:
        """The other way: cycles of a run of ``steps`` steps."""
        return value / self._per_cycle(steps, clock_mhz)

    def _per_cycle(self, steps: int, clock_mhz: float) -> float:
        share = 1.0 if self.steps is None else self.steps / steps
        return share if self.seconds is None else share / (clock_mhz * 1e6 * self.seconds)


def parse_unit(text: str) -> TimeUnit:
    """The unit of "cycles", "s per 1000 steps" or "ms". NotApplicable for what is no time."""
    found = _UNIT.fullmatch(text.strip())
    if found is None:
        raise NotApplicable(f"the unit '{text}' is no time of a run or of its steps")
    name = found["time"].lower()
    seconds = None if name.startswith("cycle") else _SECONDS[name]
    whole_run = found["time"] == found[0]
    return TimeUnit(seconds, None if whole_run else int((found["count"] or "1").replace(",", "")))

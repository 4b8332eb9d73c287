"""5-point stencil in two dimensions, one step: strong and weak scaling of square fields.

A PE has ``rows x columns`` cells, all tiles as large as the largest. It receives a word for each
cell of each side that has a neighbour, one task a word, and computes with vector instructions of a
line: two for each row and three for each column (repository Elia-Belli/stencil-cerebras,
Stencil2D)::

    cycles = start + line (2 rows + 3 columns) / 5 + cell rows columns + word_A words + padding

Two series are published; what they differ in is not recorded. One parameter differs here, the task
that takes a word: ``word_A`` or ``word_B``. Where the field is not a multiple of the grid, every PE
pays ``padding``, a fixed number that does not grow with the tile: later versions of the program
set the padded cells back to zero after a step. The slowest PE is one with the most neighbours.
"""

import re
from collections.abc import Hashable, Iterator, Sequence
from math import ceil

from tvm_ext.hardware.wafer.published.errors import NotCovered
from tvm_ext.hardware.wafer.published.family import Family, Prediction, in_cycles
from tvm_ext.hardware.wafer.published.linear import Parameters, Terms, fit_terms
from tvm_ext.hardware.wafer.published.machines import check_bytes, grid_of, machine_of
from tvm_ext.hardware.wafer.published.rows import PublishedRow


def _recognises(row: PublishedRow) -> bool:
    return bool(re.search(r"\b(5|five)[\s-]*(point|pt)\b", row.kernel.lower()))


def _predict(row: PublishedRow, parameters: Parameters) -> Prediction:
    return Prediction(_terms(row, most=True).cycles(parameters), "slowest PE")


def _fit(rows: Sequence[PublishedRow]) -> dict[str, float]:
    return fit_terms(
        [one for row in rows for one in _observed(row)], list(STENCIL_5_POINT.parameters)
    )


def _observed(row: PublishedRow) -> Iterator[tuple[Terms, float]]:
    """The slowest PE, with the most neighbours; the fastest one, a corner, if its tile is full."""
    slowest = row.value_max or row.value
    if slowest is not None:
        yield _terms(row, most=True), in_cycles(row, slowest)
    if row.value_min is not None and not _is_padded(row):
        yield _terms(row, most=False), in_cycles(row, row.value_min)


def _terms(row: PublishedRow, most: bool) -> Terms:
    machine = machine_of(row)
    grid_rows, grid_columns = grid_of(row, machine)
    steps = re.search(r"(\d+)\s*iteration", row.kernel.lower())
    if steps is not None and int(steps[1]) != 1:
        raise NotCovered(f"{steps[1]} iterations: only one was published for the 5-point stencil")
    rows, columns = _tile(row)
    check_bytes(2 * 4 * (rows + 2) * (columns + 2), machine)
    beside = min(grid_columns - 1, 2 if most else 1)
    above = min(grid_rows - 1, 2 if most else 1)
    return Terms(
        {
            "start": 1,
            "line": (2 * rows + 3 * columns) / 5,
            "cell": rows * columns,
            f"word_{_series(row)}": beside * rows + above * columns,
            "padding": int(_is_padded(row)),
        }
    )


def _tile(row: PublishedRow) -> tuple[int, int]:
    """Cells of the largest tile."""
    if row.m is None or row.n is None:
        raise NotCovered("the row has no M and N, the cells of the field")
    grid_rows, grid_columns = grid_of(row, machine_of(row))
    return ceil(row.m / grid_rows), ceil(row.n / grid_columns)


def _is_padded(row: PublishedRow) -> bool:
    rows, columns = _tile(row)
    return (rows * (row.grid_rows or 1), columns * (row.grid_cols or 1)) != (row.m, row.n)


def _series(row: PublishedRow) -> str:
    """ "A" or "B"; A where the row names none, as the smallest case does."""
    found = re.search(r"(?:scaling|series)\s+([AB])\b", row.kernel, re.IGNORECASE)
    return found[1].upper() if found else "A"


def _size(row: PublishedRow) -> Hashable:
    return _tile(row)


STENCIL_5_POINT = Family(
    name="stencil_5_point",
    title="5-point 2-D stencil",
    recognises=_recognises,
    predict=_predict,
    fit=_fit,
    size=_size,
    parameters={
        "start": "cycles for each run",
        "line": "cycles for each row or column of the tile",
        "cell": "cycles for each cell of the tile",
        "word_A": "cycles for each word from a neighbour, series A",
        "word_B": "cycles for each word from a neighbour, series B",
        "padding": "cycles where the field is not a multiple of the grid",
    },
    compares_slowest=True,
)

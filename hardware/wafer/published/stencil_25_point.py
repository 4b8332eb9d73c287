"""25-point stencil in three dimensions, a wave equation: one column of cells a processing element.

Each step a PE exchanges its ``nz`` cells with four neighbours in each direction, in blocks, and
computes them (M. Jacquelin, M. Araya-Polo, J. Meng, "Scalable distributed high-order stencil
computations", SC22, sections IV and V)::

    cycles of a step = step + cell nz + block_cell ceil(nz / ceil(nz / 400))
    cycles of a run  = steps * cycles of a step + launch (rows + columns)

A block has 400 cells at most, for want of memory; the blocks are equal. What of a block is not
hidden behind the arithmetic is ``block_cell``. ``launch`` is what runs of 1000 steps take longer
than the same number of steps of a run of 100,000.
"""

import re
from collections.abc import Hashable, Sequence
from math import ceil

from tvm_ext.hardware.wafer.published.errors import NotCovered
from tvm_ext.hardware.wafer.published.family import Family, Prediction, in_cycles
from tvm_ext.hardware.wafer.published.linear import Parameters, Terms, fit_terms
from tvm_ext.hardware.wafer.published.machines import grid_of, machine_of
from tvm_ext.hardware.wafer.published.rows import PublishedRow
from tvm_ext.hardware.wafer.published.units import parse_unit

LARGEST_BLOCK = 400


def _recognises(row: PublishedRow) -> bool:
    return bool(re.search(r"\b25[\s-]*(point|pt)\b", row.kernel.lower()))


def _predict(row: PublishedRow, parameters: Parameters) -> Prediction:
    return Prediction(_terms(row).cycles(parameters), "slowest PE", steps=_steps(row))


def _fit(rows: Sequence[PublishedRow]) -> dict[str, float]:
    observed = [
        (_terms(row), in_cycles(row, row.value, _steps(row)))
        for row in rows
        if row.value is not None
    ]
    return fit_terms(observed, list(STENCIL_25_POINT.parameters))


def block_cells(cells: int) -> int:
    """Cells of one exchanged block of a column of ``cells``: as few equal blocks as fit."""
    return ceil(cells / ceil(cells / LARGEST_BLOCK))


def _terms(row: PublishedRow) -> Terms:
    machine = machine_of(row)
    rows, columns = grid_of(row, machine)
    if row.vector_length is None:
        raise NotCovered("the row has no vector_length, the cells of a column")
    steps = _steps(row)
    return Terms(
        {
            "step": steps,
            "cell": steps * row.vector_length,
            "block_cell": steps * block_cells(row.vector_length),
            "launch": rows + columns,
        }
    )


def _steps(row: PublishedRow) -> int:
    """Of the run: from the kernel's text, else the unit's."""
    found = re.search(r"([1-9][\d,]*)\s*(?:time\s+)?(?:steps|iterations)", row.kernel.lower())
    if found is not None:
        return int(found[1].replace(",", ""))
    return parse_unit(row.unit).steps or 1


def _size(row: PublishedRow) -> Hashable:
    # Runs of 1000 steps vary the grid, those of 100,000 the column.
    if _steps(row) == 1000:
        return row.grid_rows, row.grid_cols
    return row.vector_length


STENCIL_25_POINT = Family(
    name="stencil_25_point",
    title="25-point 3-D stencil",
    recognises=_recognises,
    predict=_predict,
    fit=_fit,
    size=_size,
    parameters={
        "step": "cycles for each step",
        "cell": "cycles for each cell of a column and step",
        "block_cell": "cycles for each cell of a block and step",
        "launch": "cycles for each row and column of PEs, once a run",
    },
)

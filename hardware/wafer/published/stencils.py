"""Stencils: 5 points and stars in two dimensions, 25 points in three."""

import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import ceil

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.published.family import (
    Terms,
    check_bytes,
    grid_of,
    in_cycles,
    linear_family,
    machine_of,
)
from tvm_ext.hardware.wafer.published.rows import PublishedRow, parse_unit


def _recognises_5_point(row: PublishedRow) -> bool:
    return bool(re.search(r"\b(5|five)[\s-]*(point|pt)\b", row.kernel.lower()))


def _observed(row: PublishedRow) -> Iterator[tuple[Terms, float]]:
    """The slowest PE, with the most neighbours; the fastest one, a corner, if its tile is full."""
    slowest = row.value_max or row.value
    if slowest is not None:
        yield _terms_5_point(row), in_cycles(row, slowest)
    if row.value_min is not None and not _is_padded(row):
        yield _terms_5_point(row, most=False), in_cycles(row, row.value_min)


def _terms_5_point(row: PublishedRow, most: bool = True) -> Terms:
    machine = machine_of(row)
    grid_rows, grid_columns = grid_of(row, machine)
    steps = re.search(r"(\d+)\s*iteration", row.kernel.lower())
    if steps is not None and int(steps[1]) != 1:
        raise NotApplicable(
            f"{steps[1]} iterations: only one was published for the 5-point stencil"
        )
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
        raise NotApplicable("the row has no M and N, the cells of the field")
    grid_rows, grid_columns = grid_of(row, machine_of(row))
    return ceil(row.m / grid_rows), ceil(row.n / grid_columns)


def _is_padded(row: PublishedRow) -> bool:
    rows, columns = _tile(row)
    return (rows * (row.grid_rows or 1), columns * (row.grid_cols or 1)) != (row.m, row.n)


def _series(row: PublishedRow) -> str:
    """ "A" or "B"; A where the row names none, as the smallest case does."""
    found = re.search(r"(?:scaling|series)\s+([AB])\b", row.kernel, re.IGNORECASE)
    return found[1].upper() if found else "A"


STENCIL_5_POINT = linear_family(
    name="stencil_5_point",
    title="5-point 2-D stencil",
    recognises=_recognises_5_point,
    terms=_terms_5_point,
    of="slowest PE",
    observed=_observed,
    size=_tile,
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


# Star-shaped stencils in two dimensions of radius 1 and more: 8x8 cells a PE, 2x2 PEs.
#
# Each iteration exchanges the edges and then goes once over the tile for each of the ``4 r + 1``
# points (repository Elia-Belli/stencil-cerebras, src/wse)::
#
#     cycles = iterations * ((4 r + 1) point + exchange)
#
# ``exchange`` has two values: the program for radius 1 is one of its own, and the general one
# computes where each received word goes with a division in software. All published runs have the
# same tile and the same grid, so how the cost grows with either is not known, and not claimed.


_SIDE = 8
_GRID = (2, 2)
_LARGEST_RADIUS = 3


@dataclass(frozen=True)
class _Star:
    radius: int
    iterations: int


def _recognises_star(row: PublishedRow) -> bool:
    kernel = row.kernel.lower()
    return bool(re.search(r"\bstar", kernel)) and "stencil" in kernel


def _terms_star(row: PublishedRow) -> Terms:
    _check_tile(row)
    star = _star(row)
    if star.radius > _LARGEST_RADIUS:
        raise NotApplicable(
            f"radius {star.radius}: star stencils were published up to radius {_LARGEST_RADIUS}"
        )
    exchange = "exchange_near" if star.radius == 1 else "exchange_far"
    points = 4 * star.radius + 1
    return Terms({"point": star.iterations * points, exchange: star.iterations})


def _check_tile(row: PublishedRow) -> None:
    grid, tile = grid_of(row, machine_of(row)), _tile(row)
    if grid != _GRID or tile != (_SIDE, _SIDE):
        raise NotApplicable(
            f"{tile[0]}x{tile[1]} cells a PE on {grid[0]}x{grid[1]} PEs: star stencils were "
            f"published with {_SIDE}x{_SIDE} on {_GRID[0]}x{_GRID[1]} only"
        )


def _star(row: PublishedRow) -> _Star:
    kernel = row.kernel.lower()
    radius = re.search(r"radius\s*(?:of\s*)?=?\s*([1-9]\d*)|\b([1-9]\d*)r\b", kernel)
    if radius is None:
        raise NotApplicable("the kernel's text has no radius")
    iterations = re.search(r"([1-9]\d*)\s*(?:iteration|time step|step)", kernel)
    return _Star(int(radius[1] or radius[2]), int(iterations[1]) if iterations else 1)


STAR_STENCIL = linear_family(
    name="star_stencil",
    title="star 2-D stencil",
    recognises=_recognises_star,
    terms=_terms_star,
    of="slowest PE",
    steps=lambda row: _star(row).iterations,
    size=_star,
    parameters={
        "point": "cycles for each point of the star and iteration",
        "exchange_near": "cycles for each iteration, radius 1",
        "exchange_far": "cycles for each iteration, radius 2 and more",
    },
    compares_slowest=True,
)


# 25-point stencil in three dimensions, a wave equation: one column of cells a processing element.
#
# Each step a PE exchanges its ``nz`` cells with four neighbours in each direction, in blocks, and
# computes them (M. Jacquelin, M. Araya-Polo, J. Meng, "Scalable distributed high-order stencil
# computations", SC22, sections IV and V)::
#
#     cycles of a step = step + cell nz + block_cell ceil(nz / ceil(nz / 400))
#     cycles of a run  = steps * cycles of a step + launch (rows + columns)
#
# A block has 400 cells at most, for want of memory; the blocks are equal. What of a block is not
# hidden behind the arithmetic is ``block_cell``. ``launch`` is what runs of 1000 steps take
# longer than the same number of steps of a run of 100,000.


LARGEST_BLOCK = 400


def _recognises_25_point(row: PublishedRow) -> bool:
    return bool(re.search(r"\b25[\s-]*(point|pt)\b", row.kernel.lower()))


def block_cells(cells: int) -> int:
    """Cells of one exchanged block of a column of ``cells``: as few equal blocks as fit."""
    return ceil(cells / ceil(cells / LARGEST_BLOCK))


def _terms_25_point(row: PublishedRow) -> Terms:
    machine = machine_of(row)
    rows, columns = grid_of(row, machine)
    if row.vector_length is None:
        raise NotApplicable("the row has no vector_length, the cells of a column")
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


def _size_25_point(row: PublishedRow) -> Hashable:
    # Runs of 1000 steps vary the grid, those of 100,000 the column.
    if _steps(row) == 1000:
        return row.grid_rows, row.grid_cols
    return row.vector_length


STENCIL_25_POINT = linear_family(
    name="stencil_25_point",
    title="25-point 3-D stencil",
    recognises=_recognises_25_point,
    terms=_terms_25_point,
    of="slowest PE",
    steps=_steps,
    size=_size_25_point,
    parameters={
        "step": "cycles for each step",
        "cell": "cycles for each cell of a column and step",
        "block_cell": "cycles for each cell of a block and step",
        "launch": "cycles for each row and column of PEs, once a run",
    },
)

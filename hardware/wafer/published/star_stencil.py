"""Star-shaped stencils in two dimensions of radius 1 and more: 8x8 cells a PE, 2x2 PEs.

Each iteration exchanges the edges and then goes once over the tile for each of the ``4 r + 1``
points (repository Elia-Belli/stencil-cerebras, src/wse)::

    cycles = iterations * ((4 r + 1) point + exchange)

``exchange`` has two values: the program for radius 1 is one of its own, and the general one
computes where each received word goes with a division in software. All published runs have the same
tile and the same grid, so how the cost grows with either is not known, and not claimed.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from tvm_ext.hardware.wafer.published.errors import NotCovered
from tvm_ext.hardware.wafer.published.family import Family, Prediction, in_cycles
from tvm_ext.hardware.wafer.published.linear import Parameters, Terms, fit_terms
from tvm_ext.hardware.wafer.published.machines import grid_of, machine_of
from tvm_ext.hardware.wafer.published.rows import PublishedRow

_SIDE = 8
_GRID = (2, 2)
_LARGEST_RADIUS = 3


@dataclass(frozen=True)
class _Star:
    radius: int
    iterations: int


def _recognises(row: PublishedRow) -> bool:
    kernel = row.kernel.lower()
    return bool(re.search(r"\bstar", kernel)) and "stencil" in kernel


def _predict(row: PublishedRow, parameters: Parameters) -> Prediction:
    return Prediction(_terms(row).cycles(parameters), "slowest PE", steps=_star(row).iterations)


def _fit(rows: Sequence[PublishedRow]) -> dict[str, float]:
    observed = [
        (_terms(row), in_cycles(row, row.value, _star(row).iterations))
        for row in rows
        if row.value is not None
    ]
    return fit_terms(observed, list(STAR_STENCIL.parameters))


def _terms(row: PublishedRow) -> Terms:
    _check_tile(row)
    star = _star(row)
    if star.radius > _LARGEST_RADIUS:
        raise NotCovered(
            f"radius {star.radius}: star stencils were published up to radius {_LARGEST_RADIUS}"
        )
    exchange = "exchange_near" if star.radius == 1 else "exchange_far"
    points = 4 * star.radius + 1
    return Terms({"point": star.iterations * points, exchange: star.iterations})


def _check_tile(row: PublishedRow) -> None:
    grid = grid_of(row, machine_of(row))
    if row.m is None or row.n is None:
        raise NotCovered("the row has no M and N, the cells of the field")
    tile = ceil(row.m / grid[0]), ceil(row.n / grid[1])
    if grid != _GRID or tile != (_SIDE, _SIDE):
        raise NotCovered(
            f"{tile[0]}x{tile[1]} cells a PE on {grid[0]}x{grid[1]} PEs: star stencils were "
            f"published with {_SIDE}x{_SIDE} on {_GRID[0]}x{_GRID[1]} only"
        )


def _star(row: PublishedRow) -> _Star:
    kernel = row.kernel.lower()
    radius = re.search(r"radius\s*(?:of\s*)?=?\s*([1-9]\d*)|\b([1-9]\d*)r\b", kernel)
    if radius is None:
        raise NotCovered("the kernel's text has no radius")
    iterations = re.search(r"([1-9]\d*)\s*(?:iteration|time step|step)", kernel)
    return _Star(int(radius[1] or radius[2]), int(iterations[1]) if iterations else 1)


STAR_STENCIL = Family(
    name="star_stencil",
    title="star 2-D stencil",
    recognises=_recognises,
    predict=_predict,
    fit=_fit,
    size=_star,
    parameters={
        "point": "cycles for each point of the star and iteration",
        "exchange_near": "cycles for each iteration, radius 1",
        "exchange_far": "cycles for each iteration, radius 2 and more",
    },
    compares_slowest=True,
)

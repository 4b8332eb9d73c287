"""A number for each PE of a grid as an SVG drawing of few cells, with a scale and in words."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

MOST_CELLS = 64
"""Cells along one side; larger grids are shown in blocks of PEs."""

LEVELS = 10
"""Shades of the style sheet, above none."""


@dataclass(frozen=True)
class HeatMap:
    """What the template draws.

    Attributes
    ----------
    title : str
        What is shown.
    rows, columns : int
        Cells of the drawing.
    paths : list[tuple[int, str]]
        Shade, 1 to ``LEVELS``, and the cells that have it; one cell is 1 x 1.
    most, mean, least : str
        Of single PEs, with their unit; ``most`` is where the scale ends.
    description : str
        The drawing in words.
    """

    title: str
    rows: int
    columns: int
    paths: list[tuple[int, str]]
    most: str
    mean: str
    least: str
    description: str


def heat_map(title: str, values: np.ndarray, text: Callable[[float], str]) -> HeatMap:
    """Return the drawing of ``values``, float64 [rows, columns]; a block shows its largest.

    Shades count from 0, so that what differs by little looks alike. ``text`` puts a number into
    words, with its unit.
    """
    rows, columns = values.shape
    cells = _largest_of_blocks(values)
    most = float(values.max(initial=0.0))
    levels = np.ceil(LEVELS * cells / most).astype(int) if most else np.zeros_like(cells, int)
    row, column = np.unravel_index(int(values.argmax()), values.shape)
    mean, least = float(values.mean()), float(values.min())
    description = f"{title} of {rows} x {columns} PEs: "
    if not most:
        description += "none"
    else:
        description += (
            f"least {text(least)}, mean {text(mean)}, most {text(most)}, first at row {row}, "
            f"column {column}"
        )
    paths = [(level, _path(levels == level)) for level in range(1, LEVELS + 1)]
    return HeatMap(
        title,
        cells.shape[0],
        cells.shape[1],
        [(level, path) for level, path in paths if path],
        text(most),
        text(mean),
        text(least),
        description,
    )


def _largest_of_blocks(values: np.ndarray) -> np.ndarray:
    for axis in (0, 1):
        count = min(MOST_CELLS, values.shape[axis])
        starts = np.arange(count) * values.shape[axis] // count
        values = np.maximum.reduceat(values, starts, axis=axis)
    return values


def _path(mask: np.ndarray) -> str:
    """The cells of ``mask`` as rectangles: equal runs of rows below each other are one."""
    found: list[str] = []
    open_runs: dict[tuple[int, int], int] = {}
    for row in range(mask.shape[0] + 1):
        runs = _runs(mask[row]) if row < mask.shape[0] else []
        for (start, end), first in list(open_runs.items()):
            if (start, end) not in runs:
                found.append(f"M{start} {first}h{end - start}v{row - first}H{start}z")
                del open_runs[start, end]
        for run in runs:
            open_runs.setdefault(run, row)
    return "".join(found)


def _runs(line: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], line.astype(np.int8), [0]])))
    return [(int(start), int(end)) for start, end in zip(edges[::2], edges[1::2], strict=True)]

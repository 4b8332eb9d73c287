"""Copies from wherever the data lie: which part comes from other PEs, how far, over which links.

All PEs copy at the same time. A message goes along the row of the PE that has the data, and then
along the column of the PE that needs them. Of large meshes, evenly spaced PEs stand for all.
"""

import math

import numpy as np

from tvm_ext.hardware.wafer.program import Transfer
from tvm_ext.tir_schedules.wafer.annotations import COLUMN, ROW, Pattern
from tvm_ext.tuning.mesh_analysis.homes import Home
from tvm_ext.tuning.mesh_analysis.loops import Place

# PEs that are looked at along each axis.
_LOOKED_AT = 32


def gather(place: Place, name: str, words: float, home: Home) -> Transfer:
    """The messages of a copying block; ``words`` is what one PE needs, wherever it lies."""
    spans = [place.span(index, place.inner()) for index in place.reads[0].indices]
    looked_at = _looked_at(place)
    rows, columns = (_Line(place, axis, home, spans, *looked_at) for axis in (ROW, COLUMN))
    remote = float((1 - rows.local * columns.local).max())
    distance = float((rows.distance + columns.distance).max())
    if remote <= 0 or not distance:
        return Transfer(name, Pattern.GATHER, 0.0, 1)
    load = _load(rows, columns)
    return Transfer(name, Pattern.GATHER, words * remote, int(distance), distance, load)


class _Line:
    """One axis of the mesh: where PEs are, and where along it what they need lies.

    Attributes
    ----------
    count : int
        PEs along it.
    here, there : np.ndarray
        Coordinates of the PEs, and in the middle of what they need; [rows looked at, columns].
    distance : np.ndarray
        Hops to the farthest part of it.
    local : np.ndarray
        The part of it that the PE's own coordinate has.
    """

    def __init__(
        self,
        place: Place,
        axis: str,
        home: Home,
        spans: list[int],
        points: dict[int, np.ndarray],
        coordinates: dict[str, np.ndarray],
    ) -> None:
        self.count = math.prod(one.extent for one in place.mesh(axis))
        shape = np.broadcast_shapes(*(one.shape for one in coordinates.values()))
        self.here = np.broadcast_to(coordinates[axis], shape)
        low, high = np.zeros(shape, int), np.zeros(shape, int)
        self.local = np.ones(shape)
        indices = place.reads[0].indices
        cut = [n for n, along in enumerate(home.axes) if along == axis]
        for number in cut:
            size, piece = home.shape[number], home.pieces[number]
            following = math.prod(home.count(other) for other in cut if other > number)
            first = np.broadcast_to(place.values(indices[number], points), shape)
            last = np.clip(first + spans[number] - 1, 0, size - 1)
            first = np.clip(first, 0, size - 1)
            mine = self.here // following % home.count(number) * piece
            shared = np.minimum(last, mine + piece - 1) - np.maximum(first, mine) + 1
            self.local = self.local * np.maximum(0, shared) / np.maximum(1, last - first + 1)
            low = low + first // piece * following
            high = high + last // piece * following
        if not cut:
            # The whole of it lies in the first row or column, unless it lies in all of them.
            low = high = self.here
        self.there = (low + high) // 2
        self.distance = np.maximum(abs(low - self.here), abs(high - self.here))


def _looked_at(place: Place) -> tuple[dict[int, np.ndarray], dict[str, np.ndarray]]:
    """Values of the mesh's loops by number, and coordinates by axis, [rows, 1] and [1, columns]."""
    points: dict[int, np.ndarray] = {}
    coordinates: dict[str, np.ndarray] = {}
    for axis, shape in ((ROW, (-1, 1)), (COLUMN, (1, -1))):
        extents = [one.extent for one in place.mesh(axis)]
        count = math.prod(extents)
        some = np.unique(np.linspace(0, count - 1, min(count, _LOOKED_AT)).astype(int))
        coordinates[axis] = some.reshape(shape)
        for loop, values in zip(
            place.mesh(axis), np.unravel_index(some, extents or [1]), strict=False
        ):
            points[loop.number] = values.reshape(shape)
    return points, coordinates


def busiest_link(lines: np.ndarray, sources: np.ndarray, targets: np.ndarray) -> float:
    """The most messages over one link, in one direction.

    Message n goes within line ``lines[n]`` from place ``sources[n]`` to place ``targets[n]``.
    """
    # Few of a large mesh's lines and places may have messages.
    lines, count = _renumbered(lines)
    ends, places = _renumbered(np.concatenate([sources, targets]))
    sources, targets = np.split(ends, 2)
    row = (lines + count * (sources > targets)) * (places + 1)
    size = 2 * count * (places + 1)
    begun = np.bincount(row + np.minimum(sources, targets), minlength=size)
    ended = np.bincount(row + np.maximum(sources, targets), minlength=size)
    # Each line's messages end within it, so that one sum goes through all lines.
    return float((begun - ended).cumsum().max(initial=0))


def _renumbered(values: np.ndarray) -> tuple[np.ndarray, int]:
    """Numbers in the same order with none left out, and how many there are."""
    present = np.zeros(int(values.max(initial=-1)) + 1, int)
    present[values] = 1
    return present.cumsum()[values] - 1, int(present.sum())


def _load(rows: _Line, columns: _Line) -> float:
    """Messages that share one link, if all PEs did as those that were looked at."""
    along_row = busiest_link(rows.there.ravel(), columns.there.ravel(), columns.here.ravel())
    along_column = busiest_link(columns.here.ravel(), rows.there.ravel(), rows.here.ravel())
    looked_at_rows, looked_at_columns = rows.here.shape
    scale = (columns.count / looked_at_columns, rows.count / looked_at_rows)
    # Those who were looked at are as far apart from each other as the others are many.
    return max(1.0, along_row * scale[0], along_column * scale[1])

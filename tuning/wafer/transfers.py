"""Messages of a block that copies from other PEs, or that combines their partial results."""

import math
from collections.abc import Sequence

import numpy as np

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.hardware.wafer.program import Transfer
from tvm_ext.tir_schedules.analysis.buffer_access import element_bytes, static_extent
from tvm_ext.tir_schedules.wafer.annotations import (
    COLUMN,
    COMMUNICATION,
    GROUP,
    REDUCTIONS,
    ROW,
    Pattern,
)
from tvm_ext.tuning.wafer.loops import Home, MeshLoop, Place, RegionAccess

# Copies from wherever the data lie: which part comes from other PEs, how far, over which links.
#
# All PEs copy at the same time. A message goes along the row of the PE that has the data, and
# then along the column of the PE that needs them. Of large meshes, evenly spaced PEs stand for
# all.


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


# What one wavelet carries.
_WORD_BYTES = 4

_PATTERNS = {value for name, value in vars(Pattern).items() if name.isupper()}
_LINES = {Pattern.SHIFT_ROW: COLUMN, Pattern.SHIFT_COLUMN: ROW}


def pattern_of(place: Place) -> str:
    """The pattern that a block's annotation names; empty for a block that only computes.

    Raises NotApplicable for an unknown name.
    """
    notes = place.block.annotations
    name = str(notes.get(COMMUNICATION, "")) if notes else ""
    base, _, axis = name.rpartition("_")
    combines = base in REDUCTIONS and axis in (ROW, COLUMN)
    if name and not combines and name not in _PATTERNS - set(REDUCTIONS):
        raise NotApplicable(
            f"'{name}' is no pattern of communication; expected one of "
            f"{', '.join(sorted(_PATTERNS))}"
        )
    return name


def combination(place: Place, pattern: str, counted: Sequence[MeshLoop]) -> Transfer:
    """Partial results of a row or column of PEs that are added up."""
    base, _, axis = pattern.rpartition("_")
    written = place.writes[0]
    words = _elements(place, written, counted) * element_bytes(written.source) / _WORD_BYTES
    group = int((place.block.annotations or {}).get(GROUP, 0))
    extent = _reduced(place)
    name = str(written.source.name)
    return Transfer(name, base, words, extent, extent - 1, group=group, axis=axis)


def copy(place: Place, pattern: str, counted: Sequence[MeshLoop], home: Home) -> Transfer:
    """A tile that comes from the PE, or the PEs, where it lies."""
    read = place.reads[0]
    written = _elements(place, place.writes[0], counted)
    # Transposed indices: the box around what is read may hold more than what is.
    elements = min(_elements(place, read, counted), written)
    words = elements * home.element_bytes / _WORD_BYTES
    name = str(place.writes[0].source.name)
    if pattern in (Pattern.MULTICAST_ROW, Pattern.MULTICAST_COLUMN):
        # Along a row of PEs are its columns.
        axis = COLUMN if pattern == Pattern.MULTICAST_ROW else ROW
        extent = _extent(place, axis)
        senders = _owners(_spans(place, read, place.inner(counted)), home, axis)
        return Transfer(
            name, pattern, words, extent, extent - 1, senders=min(senders, max(1, extent))
        )
    if pattern == Pattern.MULTICAST:
        extent = _extent(place, ROW) + _extent(place, COLUMN) - 1
        return Transfer(name, pattern, words, extent, extent - 1)
    if pattern in _LINES:
        return _shift(place, pattern, words, home)
    if pattern == Pattern.HALO:
        return _halo(place, name, counted, home)
    return gather(place, name, words, home)


def _owners(spans: Sequence[int], home: Home, axis: str) -> int:
    """PEs along ``axis`` that have parts of a tile."""
    return math.prod(
        -(-span // piece)
        for span, piece, along in zip(spans, home.pieces, home.axes, strict=True)
        if along == axis
    )


def _extent(place: Place, axis: str) -> int:
    line = place.line(axis)
    return line.extent if line is not None else 1


def _reduced(place: Place) -> int:
    """PEs whose partial results are combined: those of the loops that do not move the result."""
    written = [place.variables(index) for index in place.writes[0].indices]
    loops = [one for one in place.loops if not any(one.number in found for found in written)]
    return math.prod(one.extent for one in loops)


def _elements(place: Place, access: RegionAccess, counted: Sequence[MeshLoop]) -> int:
    """Elements of an access that one execution goes through."""
    moving = place.inner(counted)
    return math.prod(_spans(place, access, moving))


def _spans(place: Place, access: RegionAccess, moving: Sequence[MeshLoop]) -> list[int]:
    """Elements along each dimension; what is beyond the tensor is padding, and nobody sends it."""
    sizes = [static_extent(size) or 1 for size in access.source.shape]
    spans = [place.span(index, moving) for index in access.indices]
    return [min(span, size) for span, size in zip(spans, sizes, strict=True)]


def _shift(place: Place, pattern: str, words: float, home: Home) -> Transfer:
    """Tiles go around a ring: how far from one step to the next, and how far to their first place.

    Read from the index itself: the tile that a PE needs now is the one that another PE of the line
    had in the step before.
    """
    line = _LINES[pattern]
    name = str(place.writes[0].source.name)
    steps = next((one for one in place.loops if one.pipeline), None)
    along = place.line(line)
    if steps is None or along is None:
        raise NotApplicable(f"{name} is shifted, but not inside of steps and of {line}s of PEs")
    if along.extent == 1 or steps.extent == 1:
        return Transfer(name, pattern, words, 1)
    indices = place.reads[0].indices
    dimension = next(
        (
            number
            for number, (axis, index) in enumerate(zip(home.axes, indices, strict=True))
            if axis == line and steps.number in place.variables(index)
        ),
        None,
    )
    if dimension is None:
        raise NotApplicable(f"{name} is shifted along a line of PEs that its tensor is not cut by")
    index = indices[dimension]
    everyone = np.arange(along.extent)
    # A line in the middle: in the first one, tiles may lie where they are needed first.
    line_points = {one.number: np.asarray(one.extent // 2) for one in place.loops if one.axis}
    line_points[along.number] = everyone
    now = place.values(index, {**line_points, steps.number: np.asarray(1)})
    before = place.values(index, {**line_points, steps.number: np.asarray(0)})
    tile = home.pieces[dimension]
    line_number = np.zeros_like(everyone)
    hops = _distance(before // tile, now // tile, name)
    first = _distance(everyone, before // tile, name)
    return Transfer(
        name,
        pattern,
        words,
        along.extent,
        distance=float(np.abs(hops).max(initial=0)),
        load=max(1.0, busiest_link(line_number, everyone + hops, everyone)),
        first_distance=float(np.abs(first).max(initial=0)),
        first_load=max(1.0, busiest_link(line_number, everyone + first, everyone)),
    )


def _distance(have: np.ndarray, need: np.ndarray, name: str) -> np.ndarray:
    """For each PE of a line, how far away the PE is that has what it needs."""
    order = np.argsort(have, kind="stable")
    found = np.searchsorted(have[order], need)
    found = order[np.minimum(found, have.size - 1)]
    if (have[found] != need).any():
        raise NotApplicable(f"{name} is shifted, but no PE of the line had the tile that is needed")
    return found - np.arange(have.size)


def _halo(place: Place, name: str, counted: Sequence[MeshLoop], home: Home) -> Transfer:
    """What a region has beyond the shard, on one side; the sides come at the same time."""
    moving = place.inner(counted)
    spans = _spans(place, place.reads[0], moving)
    inside = [min(span, piece) for span, piece in zip(spans, home.pieces, strict=True)]
    beyond = math.prod(spans) - math.prod(inside)
    cut = sum(
        axis in (ROW, COLUMN) and span > piece
        for span, piece, axis in zip(spans, home.pieces, home.axes, strict=True)
    )
    sides = max(1, 2 * cut)
    reach = max(
        (
            -(-(span - piece) // (2 * piece))
            for span, piece, axis in zip(spans, home.pieces, home.axes, strict=True)
            if axis in (ROW, COLUMN)
        ),
        default=0,
    )
    words = beyond * home.element_bytes / _WORD_BYTES
    return Transfer(name, Pattern.HALO, words, max(1, reach), float(reach), 1.0, sides)

"""Messages of a block that copies from other PEs, or that combines their partial results."""

import math
from collections.abc import Sequence

import numpy as np

from tvm_ext.hardware.wafer.program import Transfer
from tvm_ext.tir_schedules.block_access import element_bytes, static_extent
from tvm_ext.tir_schedules.wafer.annotations import (
    COLUMN,
    COMMUNICATION,
    GROUP,
    REDUCTIONS,
    ROW,
    Pattern,
)
from tvm_ext.tuning.mesh_analysis.gather import busiest_link, gather
from tvm_ext.tuning.mesh_analysis.homes import Home
from tvm_ext.tuning.mesh_analysis.loops import Access, Loop, NotReadable, Place

# What one wavelet carries.
_WORD_BYTES = 4

_PATTERNS = {value for name, value in vars(Pattern).items() if name.isupper()}
_LINES = {Pattern.SHIFT_ROW: COLUMN, Pattern.SHIFT_COLUMN: ROW}


def pattern_of(place: Place) -> str:
    """The pattern that a block's annotation names; empty for a block that only computes.

    Raises NotReadable for an unknown name.
    """
    notes = place.block.annotations
    name = str(notes.get(COMMUNICATION, "")) if notes else ""
    base, _, axis = name.rpartition("_")
    combines = base in REDUCTIONS and axis in (ROW, COLUMN)
    if name and not combines and name not in _PATTERNS - set(REDUCTIONS):
        raise NotReadable(
            f"'{name}' is no pattern of communication; expected one of "
            f"{', '.join(sorted(_PATTERNS))}"
        )
    return name


def combination(place: Place, pattern: str, counted: Sequence[Loop]) -> Transfer:
    """Partial results of a row or column of PEs that are added up."""
    base, _, axis = pattern.rpartition("_")
    written = place.writes[0]
    words = _elements(place, written, counted) * element_bytes(written.source) / _WORD_BYTES
    group = int((place.block.annotations or {}).get(GROUP, 0))
    extent = _reduced(place)
    name = str(written.source.name)
    return Transfer(name, base, words, extent, extent - 1, group=group, axis=axis)


def copy(place: Place, pattern: str, counted: Sequence[Loop], home: Home) -> Transfer:
    """A tile that comes from the PE, or the PEs, where it lies."""
    read = place.reads[0]
    written = _elements(place, place.writes[0], counted)
    # Turned indices: the box around what is read may hold more than what is.
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


def _elements(place: Place, access: Access, counted: Sequence[Loop]) -> int:
    """Elements of an access that one execution goes through."""
    moving = place.inner(counted)
    return math.prod(_spans(place, access, moving))


def _spans(place: Place, access: Access, moving: Sequence[Loop]) -> list[int]:
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
        raise NotReadable(f"{name} is shifted, but not inside of steps and of {line}s of PEs")
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
        raise NotReadable(f"{name} is shifted along a line of PEs that its tensor is not cut by")
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
        raise NotReadable(f"{name} is shifted, but no PE of the line had the tile that is needed")
    return found - np.arange(have.size)


def _halo(place: Place, name: str, counted: Sequence[Loop], home: Home) -> Transfer:
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

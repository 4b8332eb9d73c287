"""Moving a tensor from where one kernel leaves it to where the next one expects it.

Each PE gets its new shard from the nearest PE that has it: all words go along the row of the source
first and then along a column, or all the other way round, whichever loads the links less. A PE that
needs what lies in it already gets nothing; where every PE of a row or column needs a word, routers
copy it on the way. With C words over the busiest link or ramp, L hops of the longest way, and t
cycles of software around a message,

    cycles = C + L + 2 T_R + 1 + t

all messages at once, as a gather of ``transfer_cost``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from tvm_ext.hardware.wafer.communication import message
from tvm_ext.hardware.wafer.description import WaferDescription, WaferLimitError
from tvm_ext.hardware.wafer.program import Layout

# Of a larger tensor whose shape changes, only every n-th element is looked at.
_MOST_ELEMENTS = 1 << 24
# With more ways between PEs, only those of a few lines are looked at.
_MOST_WAYS = 1 << 22
_LINES = 8


@dataclass(frozen=True)
class LayoutChange:
    """What it takes to move one tensor.

    Attributes
    ----------
    words : float
        32-bit words of the shard that a PE receives; 0 if nothing has to move.
    distance : float
        Hops of the longest way.
    link_words : float
        Words over the busiest link.
    word_hops : float
        Links crossed by words, added up.
    cycles : float
        Modelled.
    """

    words: float
    distance: float
    link_words: float
    word_hops: float
    cycles: float


NO_CHANGE = LayoutChange(0.0, 0.0, 0.0, 0.0, 0.0)


@lru_cache(maxsize=4096)
def layout_change(
    have: Layout,
    need: Layout,
    mesh: WaferDescription,
    have_at: tuple[int, int] = (0, 0),
    need_at: tuple[int, int] = (0, 0),
) -> LayoutChange:
    """The change from ``have`` to ``need``, whose shapes may differ but not the order of elements.

    Parameters
    ----------
    have, need
        The layouts of one tensor.
    mesh
        Where it lies.
    have_at, need_at
        Row and column of the first PE of each.

    Raises
    ------
    WaferLimitError
        The layouts are of tensors with different numbers of elements.
    """
    if have.elements != need.elements:
        raise WaferLimitError(
            f"{have.tensor} of {have.elements} elements is to become {need.tensor} of "
            f"{need.elements}; expected layouts of one tensor"
        )
    if not have.elements or (have_at == need_at and _place(have) == _place(need)):
        return NO_CHANGE
    rows_first = _Ways(have, need, have_at, need_at).load()
    if not rows_first.distance:
        return NO_CHANGE
    transposed = _Ways(_transposed(have), _transposed(need), have_at[::-1], need_at[::-1])
    load = min(rows_first, transposed.load(), key=lambda item: item.busiest)
    wide = need.element_bytes / mesh.word_bytes
    words = math.prod(need.pieces) * wide
    link_words = load.busiest * wide
    sent = math.prod(have.pieces) * wide
    busiest = max(words, link_words, sent if _is_single(have) else 0.0)
    moved = message(mesh, words, load.distance, busiest / words)
    return LayoutChange(
        words=words,
        distance=load.distance,
        link_words=link_words,
        word_hops=load.hops * wide,
        cycles=moved.cycles + mesh.transfer_cycles,
    )


def _place(layout: Layout) -> tuple[object, ...]:
    """What tells layouts apart, besides the tensor's name."""
    copies = _copies(layout, "row"), _copies(layout, "column")
    return layout.shape, layout.axes, layout.pieces, copies


def _transposed(layout: Layout) -> Layout:
    """The same with rows for columns."""
    axes = tuple({"row": "column", "column": "row"}.get(axis, axis) for axis in layout.axes)
    return replace(layout, axes=axes, rows=layout.columns, columns=layout.rows)


def _is_single(layout: Layout) -> bool:
    """Whether there is one copy of each element, so that its PE sends all of its shard."""
    return _copies(layout, "row") == _copies(layout, "column") == 1


def _copies(layout: Layout, axis: str) -> int:
    if axis in layout.axes:
        return 1
    return layout.rows if axis == "row" else layout.columns


@dataclass(frozen=True)
class _Load:
    """What goes over links: elements over the busiest, hops of all, and of the longest way."""

    busiest: float = 0.0
    hops: float = 0.0
    distance: float = 0.0


@dataclass(frozen=True)
class _CoordinateShares:
    """Shares of coordinates that some dimensions give, and how many elements have each of them.

    ``places`` is int64 [4, n]: source row, source column, target row, target column.
    """

    places: np.ndarray
    weights: np.ndarray


_SOURCE_ROW, _SOURCE_COLUMN, _TARGET_ROW, _TARGET_COLUMN = range(4)


class _Ways:
    """The ways of all elements of a tensor from one layout to the other."""

    def __init__(
        self, have: Layout, need: Layout, have_at: tuple[int, int], need_at: tuple[int, int]
    ) -> None:
        self._copies = [
            _copies(layout, axis) for layout in (have, need) for axis in ("row", "column")
        ]
        self._at = [*have_at, *need_at]
        self._parts = [_parts(have, need, *dims) for dims in _groups(have.shape, need.shape)]

    def load(self) -> _Load:
        """Along the row of the source to the target's column, then along that one."""
        line = _TARGET_ROW if self._copies[_SOURCE_ROW] > 1 else _SOURCE_ROW
        along_rows = self._along(line, _SOURCE_COLUMN, _TARGET_COLUMN)
        along_columns = self._along(_TARGET_COLUMN, _SOURCE_ROW, _TARGET_ROW)
        return _Load(
            max(along_rows.busiest, along_columns.busiest),
            along_rows.hops + along_columns.hops,
            along_rows.distance + along_columns.distance,
        )

    def _along(self, line: int, source: int, target: int) -> _Load:
        """Over the links of lines, whose numbers are the coordinate ``line``."""
        lines, sources, targets, weights, looked_at = self._combined((line, source, target))
        first = sources + self._at[source], sources + self._at[source] + self._copies[source] - 1
        last = targets + self._at[target], targets + self._at[target] + self._copies[target] - 1
        up = np.maximum(0, last[1] - first[1])
        down = np.maximum(0, first[0] - last[0])
        if not up.any() and not down.any():
            return _Load()
        loads = [
            _busiest(lines, first[1], last[1], weights),
            _busiest(lines, last[0], first[0], weights),
        ]
        # Lines with a copy each carry the same.
        hops = float((weights * (up + down)).sum()) * self._copies[line] / looked_at
        return _Load(max(loads), hops, float(max(up.max(), down.max())))

    def _combined(
        self, wanted: tuple[int, int, int]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
        """The three coordinates of all elements, how many have each, and the part looked at."""
        groups = [_merged(parts, wanted) for parts in self._parts]
        share = 1.0
        if math.prod(len(parts.weights) for parts in groups) > _MOST_WAYS:
            before = math.prod(float(parts.weights.sum()) for parts in groups)
            groups = [_few_lines(parts) for parts in groups]
            share = math.prod(float(parts.weights.sum()) for parts in groups) / before
        places, weights = groups[0].places, groups[0].weights
        for parts in groups[1:]:
            places = (places[:, :, None] + parts.places[:, None, :]).reshape(3, -1)
            weights = np.multiply.outer(weights, parts.weights).ravel()
        return places[0], places[1], places[2], weights, share


def _groups(
    have: Sequence[int], need: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Dimensions of two shapes that go through the same elements, as in a reshape."""
    found = []
    i = j = 0
    while i < len(have) or j < len(need):
        mine, other = have[i : i + 1], need[j : j + 1]
        first, second = (i, j)
        i, j = i + len(mine), j + len(other)
        while math.prod(have[first:i]) != math.prod(need[second:j]):
            if math.prod(have[first:i]) < math.prod(need[second:j]):
                i += 1
            else:
                j += 1
        found.append((tuple(range(first, i)), tuple(range(second, j))))
    return found or [((), ())]


def _parts(
    have: Layout, need: Layout, mine: Sequence[int], other: Sequence[int]
) -> _CoordinateShares:
    """What the dimensions ``mine`` of ``have`` and ``other`` of ``need`` give."""
    size = math.prod(have.shape[dim] for dim in mine)
    if not _cut(have, mine) and not _cut(need, other):
        return _CoordinateShares(np.zeros((4, 1), np.int64), np.array([float(size)]))
    step = -(-size // _MOST_ELEMENTS)
    index = np.arange(0, size, step)
    places = np.stack([*_coordinates(have, mine, index), *_coordinates(need, other, index)])
    return _CoordinateShares(places, np.full(len(index), size / len(index)))


def _cut(layout: Layout, dims: Sequence[int]) -> bool:
    return any(layout.axes[dim] in ("row", "column") for dim in dims)


def _coordinates(
    layout: Layout, dims: Sequence[int], index: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Shares of the row and column of the elements ``index`` of some dimensions."""
    found = {"row": np.zeros_like(index), "column": np.zeros_like(index)}
    rest = index
    for dim in reversed(dims):
        place, rest = rest % layout.shape[dim], rest // layout.shape[dim]
        axis = layout.axes[dim]
        if axis in found:
            found[axis] = found[axis] + place // layout.pieces[dim] * _stride(layout, dim)
    return found["row"], found["column"]


def _stride(layout: Layout, dim: int) -> int:
    """PEs from one piece of a dimension to the next: later ones on its axis count faster."""
    return math.prod(
        -(-layout.shape[later] // layout.pieces[later])
        for later in range(dim + 1, len(layout.shape))
        if layout.axes[later] == layout.axes[dim]
    )


def _merged(parts: _CoordinateShares, wanted: tuple[int, int, int]) -> _CoordinateShares:
    """The coordinates ``wanted``, each combination of them once."""
    places = parts.places[list(wanted)]
    sizes = places.max(axis=1) + 1
    keys = np.ravel_multi_index(tuple(places), tuple(sizes))
    distinct, inverse = np.unique(keys, return_inverse=True)
    weights = np.bincount(inverse, parts.weights)
    return _CoordinateShares(np.stack(np.unravel_index(distinct, tuple(sizes))), weights)


def _few_lines(parts: _CoordinateShares) -> _CoordinateShares:
    """Of the lines, which are the first coordinate, only the first ones."""
    lines = np.unique(parts.places[0])[:_LINES]
    kept = np.isin(parts.places[0], lines)
    return _CoordinateShares(parts.places[:, kept], parts.weights[kept])


def _busiest(lines: np.ndarray, low: np.ndarray, high: np.ndarray, weights: np.ndarray) -> float:
    """The most elements that go over one link upwards, from ``low`` to ``high``, on any line."""
    moving = high > low
    if not moving.any():
        return 0.0
    lines, low, high, weights = lines[moving], low[moving], high[moving], weights[moving]
    start = low.min()
    width = int(high.max() - start) + 1
    count = (int(lines.max()) + 1) * width
    starts = np.bincount(lines * width + low - start, weights, count)
    ends = np.bincount(lines * width + high - start, weights, count)
    return float((starts - ends).reshape(-1, width).cumsum(axis=1).max())

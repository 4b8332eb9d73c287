"""Heat maps of a mesh while a program runs: words over its links, bytes in its PEs."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tvm_ext.hardware.wafer import reduces
from tvm_ext.hardware.wafer.program import Layout, Transfer, WaferProgram
from tvm_ext.hardware.wafer.reduces import k_tree_groups, middle_of

NORTH, EAST, SOUTH, WEST = range(4)


def link_map(program: WaferProgram) -> np.ndarray:
    """Words that leave each router, [rows, columns, 4] in the order north, east, south, west.

    float64. Of shifts and of general copies only the busiest link is known: all links of their
    lines count as much as it, and so does the first placement of tiles that are shifted. A
    transfer does not say along which axis halos are exchanged: with one pair of sides, rows first.
    """
    loads = np.zeros((program.rows, program.columns, 4))
    for leaf, times in program.leaves():
        if isinstance(leaf, Transfer):
            _add(loads, leaf, times)
    return loads


def _add(loads: np.ndarray, transfer: Transfer, times: int) -> None:
    pattern, words = transfer.pattern, transfer.words * times
    if pattern in ("multicast_row", "multicast_column"):
        line = _multicast(transfer.extent, min(times, transfer.extent))
        _add_lines(loads, words * line, pattern == "multicast_row")
    elif pattern == "multicast":
        _add_lines(loads[:1], words * _multicast(loads.shape[1], 1), True)
        _add_lines(loads, words * _multicast(loads.shape[0], 1), False)
    elif pattern in ("shift_row", "shift_column"):
        each = words * transfer.load + transfer.words * transfer.first_load
        _add_lines(loads, each * _both_ways(transfer.extent), pattern == "shift_row")
    elif pattern == "halo":
        _add_halo(loads, transfer, words)
    elif pattern == "gather":
        for along_row in (True, False):
            extent = loads.shape[1 if along_row else 0]
            _add_lines(loads, words * transfer.load * _both_ways(extent), along_row)
    else:
        line = words * _combination(transfer)
        _add_lines(loads, line, transfer.axis != "column")


def _add_lines(loads: np.ndarray, line: np.ndarray, along_row: bool) -> None:
    """Adds the loads of one line, float64 [extent, 2] towards the end and towards the start, to
    all lines of the grid; where a line is shorter than the grid, there are several in a row.
    """
    axis = 1 if along_row else 0
    copies = max(1, loads.shape[axis] // max(1, len(line)))
    whole = np.tile(line, (copies, 1))[: loads.shape[axis]]
    directions = (EAST, WEST) if along_row else (SOUTH, NORTH)
    for direction, column in zip(directions, whole.T, strict=True):
        padded = np.zeros(loads.shape[axis])
        padded[: len(column)] = column
        loads[..., direction] += padded if along_row else padded[:, None]


def _messages(extent: int, ways: Sequence[tuple[int, int]]) -> np.ndarray:
    """Messages that leave each PE of a line towards its end and its start, float64 [extent, 2].

    A way from a PE to itself is none.
    """
    line = np.zeros((extent + 1, 2))
    for source, target in ways:
        low, high = min(source, target), max(source, target)
        towards_start = int(target < source)
        # A message towards the start leaves all routers but the one that it ends at.
        line[low + towards_start, towards_start] += 1
        line[high + towards_start, towards_start] -= 1
    return line.cumsum(axis=0)[:extent]


def _multicast(extent: int, senders: int) -> np.ndarray:
    """One word from each of the first ``senders`` PEs in turn to all others, on average."""
    ways = [(place, end) for place in range(senders) for end in (0, extent - 1)]
    return _messages(extent, ways) / senders


def _both_ways(extent: int) -> np.ndarray:
    return _messages(extent, [(0, extent - 1), (extent - 1, 0)])


def _combination(transfer: Transfer) -> np.ndarray:
    extent = transfer.extent
    if transfer.pattern == "star":
        return _messages(extent, [(place, 0) for place in range(extent)])
    if transfer.pattern == "tree":
        return _messages(extent, _tree_ways(0, extent))
    if transfer.pattern == "two_phase":
        group = min(transfer.group or reduces.best_group(extent), extent)
        first = [0, *range(extent % group or group, extent, group)]
        inside = [(place, place - 1) for place in range(extent) if place not in set(first)]
        return _messages(extent, [*inside, *((last, other) for other, last in pairwise(first))])
    if transfer.pattern == "k_tree":
        return _k_tree(extent, max(1, transfer.group or 2))
    return _messages(extent, [(place, place - 1) for place in range(1, extent)])


def _tree_ways(first: int, extent: int) -> list[tuple[int, int]]:
    if extent <= 1:
        return []
    far = 2 ** ((extent - 1).bit_length() - 1)
    middle = first + extent - far
    return [*_tree_ways(first, extent - far), *_tree_ways(middle, far), (middle, first)]


def _k_tree(extent: int, levels: int) -> np.ndarray:
    groups = k_tree_groups(extent, levels)
    ways = [
        (end, middle_of(group))
        for level in groups
        for group in level
        for end in (group[0], group[-1])
    ]
    root = middle_of(groups[-1][0]) if groups else 0
    return _messages(extent, [*ways, (root, 0), (root, extent - 1)])


def _add_halo(loads: np.ndarray, transfer: Transfer, words: float) -> None:
    """The words of one side go over as many links as the halo is PEs wide."""
    rows, columns = loads.shape[:2]
    sides = max(2, transfer.group)
    each = words / sides * max(1.0, transfer.distance)
    along_rows = columns > 1 and (sides > 2 or rows == 1)
    along_columns = rows > 1 and (sides > 2 or not along_rows)
    if along_rows:
        _add_lines(loads, each * _both_ways(columns), True)
    if along_columns:
        _add_lines(loads, each * _both_ways(rows), False)


def memory_map(program: WaferProgram) -> np.ndarray:
    """Bytes of each PE for data, [rows, columns], float64: shards of tensors, and buffers.

    The last PEs of a tensor have what is left over of it. Buffers are as large in all PEs.
    """
    grid = (program.rows, program.columns)
    total = np.full(grid, float(sum(program.buffers.values())))
    for layout in program.homes.values():
        along_rows, along_columns = (
            _filled(layout, axis, extent, limit)
            for axis, extent, limit in (
                ("row", layout.rows, grid[0]),
                ("column", layout.columns, grid[1]),
            )
        )
        total += layout.shard_bytes * np.outer(along_rows, along_columns)
    return total


def _filled(layout: Layout, axis: str, extent: int, count: int) -> np.ndarray:
    """For each of ``count`` rows or columns, the part of a full shard that it has."""
    shares = np.ones(extent if axis not in layout.axes else 1)
    for size, piece, along in zip(layout.shape, layout.pieces, layout.axes, strict=True):
        if along == axis:
            starts = np.arange(0, size, piece)
            shares = np.outer(shares, np.minimum(piece, size - starts) / piece).ravel()
    found = np.zeros(count)
    found[: len(shares)] = shares[:count]
    return found

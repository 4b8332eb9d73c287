"""Rectangles of a mesh for groups of consecutive kernels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

Place: TypeAlias = tuple[int, int]
"""Row and column of a PE."""

# Blocks along one side of a region.
_BLOCKS = 64


@dataclass(frozen=True)
class Region:
    """A rectangle of PEs: its first row and column, and how many there are."""

    row: int
    column: int
    rows: int
    columns: int


def cut_region(region: Region, works: Sequence[float]) -> list[Region]:
    """One rectangle for each of ``works``, in proportion to them, neighbours beside each other.

    The region is cut across its longer side where the works before and behind are as equal as they
    can be, and so on. There have to be as many PEs as works.
    """
    if len(works) == 1:
        return [region]
    total = math.fsum(works)
    along_rows = region.rows >= region.columns
    length, width = region.rows, region.columns
    if not along_rows:
        length, width = width, length

    def lines_of(count: int) -> int:
        return -(-count // width)

    first = min(
        (
            one
            for one in range(1, len(works))
            if lines_of(one) + lines_of(len(works) - one) <= length
        ),
        key=lambda one: abs(math.fsum(works[:one]) - total / 2),
    )
    share = math.fsum(works[:first]) / total if total else first / len(works)
    most = length - lines_of(len(works) - first)
    lines = max(min(round(length * share), most), lines_of(first))
    return [
        *cut_region(_part(region, along_rows, 0, lines), works[:first]),
        *cut_region(_part(region, along_rows, lines, length - lines), works[first:]),
    ]


def _part(region: Region, along_rows: bool, start: int, lines: int) -> Region:
    if along_rows:
        return Region(region.row + start, region.column, lines, region.columns)
    return Region(region.row, region.column + start, region.rows, lines)


def groups_within(costs: Sequence[float], bound: float) -> list[tuple[int, ...]]:
    """Consecutive numbers in as few groups as there can be with no group's cost above ``bound``.

    One that costs more by itself is a group by itself.
    """
    groups: list[list[int]] = []
    filled = math.inf
    for number, cost in enumerate(costs):
        if filled + cost > bound:
            groups.append([])
            filled = 0.0
        groups[-1].append(number)
        filled += cost
    return [tuple(group) for group in groups]


@dataclass(frozen=True)
class Grid:
    """PEs of a kernel, the bytes that stay in each of them, and those that it needs besides."""

    rows: int
    columns: int
    resident_bytes: int
    working_bytes: int

    @property
    def bytes(self) -> int:
        """Of one PE while the kernel runs."""
        return self.resident_bytes + self.working_bytes


def side_by_side(region: Region, grids: Sequence[Grid]) -> list[Place]:
    """The first PE of each of some grids, none of them larger than the region.

    The largest bytes of a PE first, each grid goes where the fullest PE holds the least: what
    stays, and what the kernel there that needs the most has besides. Of such places it gets the one
    nearest to the grid before it in the list, if that has one. The region is looked at in blocks of
    PEs.
    """
    height, width = -(-region.rows // _BLOCKS), -(-region.columns // _BLOCKS)
    held = np.zeros((-(-region.rows // height), -(-region.columns // width)), np.int64)
    working = np.zeros_like(held)
    blocks: dict[int, np.ndarray] = {}
    for number in sorted(range(len(grids)), key=lambda one: -grids[one].bytes):
        grid = grids[number]
        size = -(-grid.rows // height), -(-grid.columns // width)
        needed = held + np.maximum(working, grid.working_bytes)
        fullest = sliding_window_view(needed, size).max(axis=(2, 3))
        places = np.argwhere(fullest == fullest.min())
        near = blocks.get(number - 1, np.zeros(2))
        blocks[number] = places[np.abs(places - near).sum(axis=1).argmin()]
        row, column = blocks[number]
        part = slice(row, row + size[0]), slice(column, column + size[1])
        held[part] += grid.resident_bytes
        working[part] = np.maximum(working[part], grid.working_bytes)
    # The last blocks may be smaller.
    return [
        (
            region.row + min(int(blocks[number][0]) * height, region.rows - grid.rows),
            region.column + min(int(blocks[number][1]) * width, region.columns - grid.columns),
        )
        for number, grid in enumerate(grids)
    ]

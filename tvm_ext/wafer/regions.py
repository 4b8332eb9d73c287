"""Rectangles of a mesh for groups of consecutive kernels."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Place: TypeAlias = tuple[int, int]
"""Row and column of a PE."""


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
    first = min(
        range(1, len(works)), key=lambda count: abs(math.fsum(works[:count]) - total / 2)
    )
    share = math.fsum(works[:first]) / total if total else first / len(works)
    along_rows = region.rows >= region.columns
    length, width = region.rows, region.columns
    if not along_rows:
        length, width = width, length
    least, most = -(-first // width), length - -(-(len(works) - first) // width)
    lines = max(min(round(length * share), most), least)
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


def side_by_side(region: Region, sizes: Sequence[tuple[int, int]]) -> list[Place]:
    """The first PE of each of some grids in rows of a region; from its corner again when it is full.

    ``sizes`` are rows and columns of the grids, each no larger than the region.
    """
    found = []
    row = column = height = 0
    for rows, columns in sizes:
        if column + columns > region.columns:
            row, column, height = row + height, 0, 0
        if row + rows > region.rows:
            row = column = height = 0
        found.append((region.row + row, region.column + column))
        column += columns
        height = max(height, rows)
    return found

"""Regions of a mesh for groups of consecutive kernels, and the SRAM of their processing elements
while the kernels take turns.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tvm_ext.hardware.wafer.program import Layout
from tvm_ext.wafer.dataflow import TensorCall
from tvm_ext.wafer.kernel_cost import KernelCost

# Rectangles of a mesh for groups of consecutive kernels.


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
        key=lambda item: abs(math.fsum(works[:item]) - total / 2),
    )
    share = math.fsum(works[:first]) / total if total else first / len(works)
    most = length - lines_of(len(works) - first)
    lines = max(min(round(length * share), most), lines_of(first))
    return [
        *cut_region(_part_of_region(region, along_rows, 0, lines), works[:first]),
        *cut_region(_part_of_region(region, along_rows, lines, length - lines), works[first:]),
    ]


def _part_of_region(region: Region, along_rows: bool, start: int, lines: int) -> Region:
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
class PeGrid:
    """PEs of a kernel, the bytes that stay in each of them, and those that it needs besides."""

    rows: int
    columns: int
    resident_bytes: int
    working_bytes: int

    @property
    def bytes(self) -> int:
        """Of one PE while the kernel runs."""
        return self.resident_bytes + self.working_bytes


def side_by_side(region: Region, grids: Sequence[PeGrid]) -> list[Place]:
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
    for number in sorted(range(len(grids)), key=lambda item: -grids[item].bytes):
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


@dataclass(frozen=True)
class PlacedCall:
    """A kernel call with its schedule, and the first PE of its grid."""

    call: TensorCall
    kernel: KernelCost
    at: Place

    @property
    def homes(self) -> Mapping[int, Layout]:
        """Layouts of its parameters by position, without their names in the kernel."""
        program = self.kernel.program
        if program is None:
            return {}
        return {number: replace(home, tensor="") for number, home in program.homes.items()}

    @property
    def weights(self) -> list[tuple[int, Layout]]:
        """Keys and layouts of the operands that are constants."""
        homes = self.homes
        return [
            (tensor.key, homes[number])
            for number, tensor in enumerate(self.call.operands)
            if tensor.is_constant and number in homes
        ]


@dataclass(frozen=True)
class Copy:
    """Where an activation lies.

    Attributes
    ----------
    stage : int
        In which stage.
    since : int
        The position of the call that made it or had it brought.
    at : Place
        Its first PE.
    layout : Layout
        How it is cut.
    waits : int
        How many stages later than the one that it came from: as many later runs bring theirs
        before it is used, when all stages are at work.
    """

    stage: int
    since: int
    at: Place
    layout: Layout
    waits: int = 0


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one stage.

    Attributes
    ----------
    weight_bytes : int
        Weights that stay in the PE that has the most of them.
    streamed_bytes : int
        Of all PEs, for weights that come over the host link in every run.
    bytes_per_pe : int
        The most that a PE holds at any time.
    """

    weight_bytes: int
    streamed_bytes: int
    bytes_per_pe: int


@dataclass
class _Weight:
    """A weight in one place, with the numbers of the calls that read it there."""

    at: Place
    layout: Layout
    calls: list[int] = field(default_factory=list)

    @property
    def streamed_bytes(self) -> int:
        """Of all its uses, if it does not stay."""
        return self.layout.elements * self.layout.element_bytes * len(self.calls)


def stage_memory(
    region: Region,
    calls: Sequence[PlacedCall],
    copies: Mapping[int, Sequence[Copy]],
    outputs: Collection[int],
    usable_bytes: int,
) -> StageMemory:
    """What the PEs of a stage hold; weights that do not fit beside the rest are streamed.

    Parameters
    ----------
    region
        Of the stage.
    calls
        Its calls, in order.
    copies
        By tensor, its copies in this stage.
    outputs
        Tensors that stay to the end of the run.
    usable_bytes
        Of one PE.
    """
    weights = _weights(calls)
    kept = np.zeros((region.rows, region.columns), np.int64)
    for weight in weights:
        kept[_part(region, weight.at, weight.layout)] += weight.layout.shard_bytes
    activations = _Activations(region, calls, copies, outputs)
    rest = activations.most()
    streamed = 0
    under_way: Counter[int] = Counter()
    # First those that free most of a PE for the words that they take.
    for weight in sorted(weights, key=_streamed_for_a_byte):
        part, size = _part(region, weight.at, weight.layout), weight.layout.shard_bytes
        if int((rest[part] + kept[part]).max(initial=0)) <= usable_bytes:
            continue
        kept[part] -= size
        streamed += weight.streamed_bytes
        # It needs room while its kernels run, beside others that are streamed for them.
        for number in weight.calls:
            under_way[number] += size
            needed = activations.during(number)[part] + under_way[number]
            np.maximum(rest[part], needed, out=rest[part])
    return StageMemory(int(kept.max(initial=0)), streamed, int((rest + kept).max(initial=0)))


def _weights(calls: Sequence[PlacedCall]) -> list[_Weight]:
    """Each weight once for each place and layout in which kernels want it."""
    found: dict[tuple[int, Layout, Place], _Weight] = {}
    for number, one in enumerate(calls):
        for key, layout in one.weights:
            weight = found.setdefault((key, layout, one.at), _Weight(one.at, layout))
            weight.calls.append(number)
    return list(found.values())


def _streamed_for_a_byte(weight: _Weight) -> float:
    return weight.streamed_bytes / max(1, weight.layout.shard_bytes)


class _Activations:
    """Bytes in each PE besides weights: data of the call that runs, activations for later ones."""

    def __init__(
        self,
        region: Region,
        calls: Sequence[PlacedCall],
        copies: Mapping[int, Sequence[Copy]],
        outputs: Collection[int],
    ) -> None:
        self._region = region
        self._calls = calls
        self._copies = copies
        self._last_use: dict[int, float] = {}
        for one in calls:
            tensors = (*one.call.operands, *one.call.results)
            self._last_use.update((tensor.key, one.call.position) for tensor in tensors)
        self._last_use.update((key, math.inf) for key in outputs)
        self._waiting = self._nothing()
        for found in copies.values():
            for copy in found:
                part = _part(region, copy.at, copy.layout)
                self._waiting[part] += copy.waits * copy.layout.shard_bytes

    def most(self) -> np.ndarray:
        """Of all calls, int64 [rows, columns]."""
        most = self._nothing()
        for number in range(len(self._calls)):
            np.maximum(most, self.during(number), out=most)
        return most

    def during(self, number: int) -> np.ndarray:
        """While one call runs, int64 [rows, columns]."""
        one = self._calls[number]
        now = self._waiting.copy()
        program = one.kernel.program
        if program is None:
            return now
        own = program.bytes_per_pe - sum(layout.shard_bytes for _, layout in one.weights)
        now[_rectangle(self._region, one.at, program.rows, program.columns)] += own
        used = {tensor.key for tensor in (*one.call.operands, *one.call.results)}
        for key, found in self._copies.items():
            if key in used or self._last_use.get(key, -1) < one.call.position:
                continue
            for copy in found:
                if copy.since < one.call.position:
                    now[_part(self._region, copy.at, copy.layout)] += copy.layout.shard_bytes
        return now

    def _nothing(self) -> np.ndarray:
        return np.zeros((self._region.rows, self._region.columns), np.int64)


def _part(region: Region, at: Place, layout: Layout) -> tuple[slice, slice]:
    return _rectangle(region, at, layout.rows, layout.columns)


def _rectangle(region: Region, at: Place, rows: int, columns: int) -> tuple[slice, slice]:
    row, column = at[0] - region.row, at[1] - region.column
    return slice(row, row + rows), slice(column, column + columns)

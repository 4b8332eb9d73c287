"""SVG drawings of a model on a mesh: the roofline of its kernels, a heat map of processing
elements, and the regions of a placement.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tvm_ext.report.tuning_curve import Tick
from tvm_ext.report.units import format_count, plain

if TYPE_CHECKING:
    from tvm_ext.hardware.wafer.description import WaferDescription
    from tvm_ext.wafer.kernel_cost import KernelCost
    from tvm_ext.wafer.model_cost import ModelCost
    from tvm_ext.wafer.placement import Placement, StageCost

# The drawing's own units; the page stretches it to the width it has.
WIDTH, HEIGHT = 640.0, 372.0
LEFT, RIGHT, TOP, BOTTOM = 60.0, 630.0, 34.0, 324.0

_WORD_BYTES = 4

# Marks that are nearer, across and down, share one text.
_NEAR = (22.0, 12.0)


@dataclass(frozen=True)
class Roof:
    """A line that no mark is above: its kind for the style sheet, its path, its name and where."""

    kind: str
    path: str
    label: str
    x: float
    y: float


@dataclass(frozen=True)
class Mark:
    """One kernel at one intensity. Of several close marks, one has the ``numbers`` of all."""

    kind: str
    x: float
    y: float
    numbers: str
    label: str


@dataclass(frozen=True)
class RooflineDrawing:
    """What the template draws; ``description`` is the drawing in words."""

    x_ticks: list[Tick]
    y_ticks: list[Tick]
    roofs: list[Roof]
    marks: list[Mark]
    description: str


@dataclass(frozen=True)
class RooflinePoint:
    """One kernel, in numbers of one PE that it uses.

    Attributes
    ----------
    number : int
        Of its row in the table.
    name : str
        Of the kernel.
    rate : float
        Operations a second.
    sram_intensity, link_intensity : float
        Operations for each byte of SRAM, and for each byte that comes over the ramp; infinite
        where there is none.
    """

    number: int
    name: str
    rate: float
    sram_intensity: float
    link_intensity: float


def roofline_point(kernel: "KernelCost", number: int) -> RooflinePoint | None:
    """Return where a kernel is; None if it has no cost, or computes nothing."""
    from tvm_ext.hardware.wafer.program import Transfer

    cost, program = kernel.cost, kernel.program
    if cost is None or program is None or not cost.flops:
        return None
    used = program.rows * program.columns
    moved, received = 0.0, 0.0
    for leaf, times in program.leaves():
        if isinstance(leaf, Transfer):
            received += leaf.words * times * _WORD_BYTES * used
        else:
            share = float(leaf.row_share.sum()) * float(leaf.column_share.sum())
            moved += (leaf.load_bytes + leaf.store_bytes) * times * share
    return RooflinePoint(
        number,
        kernel.name,
        cost.flops / cost.seconds / used,
        cost.flops / moved if moved else math.inf,
        cost.flops / received if received else math.inf,
    )


def main_dtype(kernel: "KernelCost") -> str:
    """Return the type of most of a kernel's operations; empty if it computes nothing."""
    from tvm_ext.hardware.wafer.program import BlockWork

    if kernel.cost is None or kernel.program is None or not kernel.cost.flops:
        return ""
    works = [leaf for leaf, _ in kernel.program.leaves() if isinstance(leaf, BlockWork)]
    return max(works, key=lambda work: work.flops).dtype


def roofline(
    points: list[RooflinePoint], mesh: "WaferDescription", dtypes: list[str]
) -> RooflineDrawing | None:
    """Return the drawing; None without points. ``dtypes`` are those with a compute roof."""
    if not points:
        return None
    rates = _Rates(mesh, dtypes)
    intensities = [
        value
        for point in points
        for value in (point.sram_intensity, point.link_intensity)
        if math.isfinite(value)
    ]
    ridge = rates.highest / min(rates.sram, rates.link)
    x_axis = _Axis(min([*intensities, 0.1]), max([*intensities, ridge * 2]), LEFT, RIGHT)
    y_axis = _Axis(min(point.rate for point in points), rates.highest * 2, BOTTOM, TOP)
    return RooflineDrawing(
        x_ticks=x_axis.ticks(),
        y_ticks=y_axis.ticks(),
        roofs=rates.roofs(x_axis, y_axis),
        marks=_marks(points, x_axis, y_axis),
        description=_description(points, rates),
    )


class _Axis:
    """Powers of ten along one side of the drawing."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._first = math.floor(math.log10(low) - 1e-9)
        self._last = math.ceil(math.log10(high) + 1e-9)
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        part = (math.log10(value) - self._first) / (self._last - self._first)
        return self._start + (self._end - self._start) * part

    @property
    def low(self) -> float:
        return 10.0**self._first

    @property
    def high(self) -> float:
        return 10.0**self._last

    def ticks(self) -> list[Tick]:
        powers = range(self._first, self._last + 1)
        step = max(1, math.ceil(len(powers) / 8))
        return [Tick(self.at(10.0**power), _power(power)) for power in powers[::step]]


class _Rates:
    """What one PE can do at most, a second."""

    def __init__(self, mesh: "WaferDescription", dtypes: list[str]) -> None:
        count = mesh.processing_elements
        hertz = mesh.clock_mhz * 1e6
        self.compute = {dtype: mesh.peak_flops(dtype) / count for dtype in dtypes or ["float32"]}
        self.sram = (mesh.load_bytes_per_cycle + mesh.store_bytes_per_cycle) * hertz
        self.link = mesh.ramp_bytes_per_cycle * hertz
        self.highest = max(self.compute.values())

    def roofs(self, x_axis: _Axis, y_axis: _Axis) -> list[Roof]:
        found = []
        for dtype, rate in self.compute.items():
            y = y_axis.at(rate)
            start = x_axis.at(max(x_axis.low, rate / max(self.sram, self.link)))
            path = f"M{start:.1f} {y:.1f}H{RIGHT:.1f}"
            found.append(Roof("compute", path, f"compute, {dtype}", RIGHT, y - 5))
        for kind, rate in (("sram", self.sram), ("link", self.link)):
            low = max(x_axis.low, y_axis.low / rate)
            high = self.highest / rate
            line = [(x_axis.at(value), y_axis.at(value * rate)) for value in (low, high)]
            path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in line)
            label = {"sram": "SRAM", "link": "link"}[kind]
            # Beside the line, a third of the way up.
            x, y = (a + (b - a) / 3 for a, b in zip(*line, strict=True))
            found.append(Roof(kind, path, label, x + 6, y + 12))
        return found


def _power(power: int) -> str:
    """A power of ten, for example "100 M"."""
    value = 10.0**power
    for factor, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= factor:
            return f"{value / factor:g}{unit}"
    return f"{value:g}"


def _marks(points: list[RooflinePoint], x_axis: _Axis, y_axis: _Axis) -> list[Mark]:
    found = []
    for kind, unit in (("link", "byte over the link"), ("sram", "byte of SRAM")):
        places: dict[int, tuple[float, float]] = {}
        labels: dict[int, str] = {}
        for point in points:
            value = point.link_intensity if kind == "link" else point.sram_intensity
            if math.isfinite(value):
                places[point.number] = x_axis.at(value), y_axis.at(point.rate)
                rate = f"{point.rate / 1e6:,.3g} million operations a second"
                labels[point.number] = f"{plain(point.name)}: {rate}, {value:.3g} for each {unit}"
        numbers = _numbers(places)
        found += [
            Mark(kind, *places[number], numbers.get(number, ""), label)
            for number, label in labels.items()
        ]
    return found


def _numbers(places: dict[int, tuple[float, float]]) -> dict[int, str]:
    """By the mark that bears them, the numbers of all marks whose own would overlap."""
    groups: dict[int, list[int]] = {}
    for number, (x, y) in places.items():
        near = (
            first
            for first in groups
            if abs(places[first][0] - x) < _NEAR[0] and abs(places[first][1] - y) < _NEAR[1]
        )
        groups.setdefault(next(near, number), []).append(number)
    return {first: _few(sorted(group)) for first, group in groups.items()}


def _few(numbers: list[int]) -> str:
    """The numbers, or the first and how many more."""
    if len(numbers) <= 2:
        return ", ".join(map(str, numbers))
    return f"{numbers[0]} +{len(numbers) - 1}"


def _description(points: list[RooflinePoint], rates: _Rates) -> str:
    best = max(points, key=lambda point: point.rate)
    return (
        f"{len(points)} kernels, by operations a second of one PE: the most, {best.name}, reaches "
        f"{best.rate / 1e6:,.3g} million of {rates.highest / 1e6:,.3g} million"
    )


# A number for each PE of a grid as an SVG drawing of few cells, with a scale and in words.


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
    # The share first: of the largest it is exactly one.
    levels = np.ceil(LEVELS * (cells / most)).astype(int) if most else np.zeros_like(cells, int)
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


# The regions of a placement on the wafer, laid out for an SVG drawing.


_LISTED = 8


@dataclass(frozen=True)
class RegionCell:
    """One region: where, its shade from 1 to ``LEVELS``, and what it is in words."""

    x: int
    y: int
    width: int
    height: int
    level: int
    label: str


@dataclass(frozen=True)
class SlowRegion:
    """A region as a row of a table: its first kernel, its PEs, its calls and cycles."""

    name: str
    grid: str
    calls: int
    cycles: float


@dataclass(frozen=True)
class RegionMap:
    """What the template draws, in PEs, and the regions that take longest."""

    width: int
    height: int
    cells: list[RegionCell]
    slowest: list[SlowRegion]
    description: str


def region_map(cost: "ModelCost", placement: "Placement") -> RegionMap | None:
    """Return the drawing, shaded by cycles; None for a single region."""
    stages = placement.stages
    if len(stages) < 2:
        return None
    slowest = max(stage.cycles for stage in stages)
    cells = []
    for number, stage in enumerate(stages, start=1):
        first = _first_kernel(cost, stage)
        more = f" and {len(stage.calls) - 1:,} more" if len(stage.calls) > 1 else ""
        region = stage.region
        label = (
            f"region {number}: {first}{more}, {region.rows}x{region.columns} PEs, "
            f"{stage.cycles:,.0f} cycles"
        )
        level = max(1, round(LEVELS * stage.cycles / slowest)) if slowest else 1
        place = region.column, region.row, region.columns, region.rows
        cells.append(RegionCell(*place, level, label))
    description = (
        f"{format_count(len(stages), 'region')} of {cost.mesh.rows}x{cost.mesh.columns} PEs; the "
        f"slowest takes {slowest:,.0f} cycles"
    )
    return RegionMap(
        cost.mesh.columns, cost.mesh.rows, cells, _slowest(cost, placement), description
    )


def _slowest(cost: "ModelCost", placement: "Placement") -> list[SlowRegion]:
    stages = sorted(placement.stages, key=lambda stage: -stage.cycles)[:_LISTED]
    return [
        SlowRegion(
            _first_kernel(cost, stage),
            f"{stage.region.rows}x{stage.region.columns}",
            len(stage.calls),
            stage.cycles,
        )
        for stage in stages
    ]


def _first_kernel(cost: "ModelCost", stage: "StageCost") -> str:
    """The ONNX nodes that it computes; the kernel's name where none is known."""
    call = cost.flow.calls[stage.calls[0]]
    return " + ".join(call.origins) or call.kernel

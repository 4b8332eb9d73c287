"""GridSample: images read at the points of a grid, as spatial transformer networks do.

TVM works out the place of a point, and the shares of its neighbours, again for each channel. On
CPUs they are worked out here once, for as many points as a vector holds, and all channels follow.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.errors import FormError
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.onnx_frontend.converters.arguments import sizes_of, text
from tvm_ext.onnx_frontend.converters.loops import emit_loops, local_array, on_threads
from tvm_ext.onnx_frontend.converters.runtime_sizes import wide
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter, onnx_converter_map

# Points whose places are worked out together.
_LANES = 16
# Keys' parameter of the cubic kernel, as ONNX Runtime and PyTorch have it.
_CUBIC = -0.75
# What an image of one element is divided by instead of its extent, which is 0.
_SMALLEST = 1e-30
# ONNX renamed the modes in version 20.
_MODES = {"bilinear": "linear", "bicubic": "cubic"}
# Neighbours along an axis by mode, and what is beyond the borders.
_TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
_PADDINGS = ("zeros", "border", "reflection")


class GridSample(OnnxOpConverter):
    """Images at the points of a grid; one that is no number, or far away, is at -1."""

    @classmethod
    def get_converter(cls, opset: int) -> Any:
        plain = onnx_converter_map()["GridSample"].get_converter(opset)

        def convert(bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
            data, grid = inputs[:2]
            if current_cpu() is not None and str(data.ty.dtype) in ("float32", "float64"):
                return _sampled(bb, data, grid, attr)
            return plain(bb, type(inputs)([data, _finite_places(bb, grid)]), attr, params)

        return convert


def _finite_places(bb: relax.BlockBuilder, grid: relax.Expr) -> relax.Expr:
    """-1 for NaN and for what is beyond 64-bit integers, as in ONNX Runtime."""
    dtype = str(grid.ty.dtype)
    largest = relax.const(_largest(dtype), dtype)
    near = bb.emit(relax.op.less_equal(relax.op.abs(grid), largest))
    return bb.emit(relax.op.where(near, grid, relax.const(-1.0, dtype)))


def _largest(dtype: str) -> float:
    return min(2.0**62, tirx.max_value(dtype).value)


def _sampled(bb: relax.BlockBuilder, data: relax.Expr, grid: relax.Expr, attr: dict) -> relax.Expr:
    batch, channels, *image = sizes_of(data)
    spatial, dtype = sizes_of(grid)[1:-1], str(data.ty.dtype)
    points = math.prod(spatial)
    flat = bb.emit(relax.op.reshape(data, (batch, channels, math.prod(image))))
    places = bb.emit(relax.op.reshape(grid, (batch, points, len(image))))
    sampler = _Sampler(attr, image, dtype)

    def body(read: Any, grid: Any, written: Any) -> None:
        blocks = tirx.ceildiv(wide(points), _LANES)
        with on_threads(wide(batch) * blocks) as (number,):
            item, first = number // blocks, number % blocks * _LANES
            neighbours = sampler.neighbours(grid, item, first, wide(points))

            def store(channel: Any, lane: Any) -> None:
                value = neighbours.value(read, item, channel, lane)
                written[item, channel, first + lane] = value

            is_whole = first + _LANES <= wide(points)
            rest = tirx.min(wide(points) - first, wide(_LANES))
            with T.If(is_whole):
                with T.Then(), T.serial(0, channels) as c, T.vectorized(0, _LANES) as lane:
                    store(c, lane)
                with T.Else(), T.serial(0, channels) as c, T.serial(0, rest) as lane:
                    store(c, lane)

    result = emit_loops(
        bb, "grid_sample", [flat, places], [([batch, channels, points], dtype)], body
    )[0]
    return relax.op.reshape(result, (batch, channels, *spatial))


class _Neighbours:
    """The elements around some points, by their places in an image, and the shares of each.

    The place of one that is outside of the image, where there are zeros, is -1.
    """

    def __init__(self, count: int, dtype: str, has_outside: bool) -> None:
        self.count, self.dtype, self.has_outside = count, dtype, has_outside
        self.places = local_array(count * _LANES, "int32")
        self.shares = local_array(count * _LANES, dtype)

    def value(self, read: Any, item: Any, channel: Any, lane: Any) -> Any:
        """The sum of their shares in a channel."""
        found = None
        for number in range(self.count):
            at = number * _LANES + lane
            place = self.places[at]
            inside = tirx.max(place, T.int32(0)) if self.has_outside else place
            value = read[item, channel, inside.astype("int64")] * self.shares[at]
            if self.has_outside:
                value = tirx.Select(place >= 0, value, tirx.const(0.0, self.dtype))
            found = value if found is None else found + value
        return found


class _Sampler:
    """Where the points of a grid are in an image, and what their neighbours are."""

    def __init__(self, attr: dict, sizes: Sequence[Any], dtype: str) -> None:
        mode = text(attr, "mode", "linear")
        self.mode = _MODES.get(mode, mode)
        self.padding = text(attr, "padding_mode", "zeros")
        if self.mode not in _TAPS or (self.mode == "cubic" and len(sizes) != 2):
            raise FormError(f"its mode is {mode}, expected nearest or linear, or cubic for images")
        if self.padding not in _PADDINGS:
            raise FormError(
                f"its padding_mode is {self.padding}, expected {' or '.join(_PADDINGS)}"
            )
        self.aligned = bool(attr.get("align_corners", 0))
        self.sizes, self.dtype = [wide(size) for size in sizes], dtype
        self.lengths = [size.astype(dtype) for size in self.sizes]
        # Where an image begins: at the middle of its first element, or ahead of that.
        self.edge = self._number(0.0 if self.aligned else -0.5)

    def neighbours(self, grid: Any, item: Any, first: Any, points: Any) -> _Neighbours:
        """Those of ``_LANES`` points from ``first`` on."""
        taps = _TAPS[self.mode] ** len(self.sizes)
        found = _Neighbours(taps, self.dtype, self.padding == "zeros")
        last = len(self.sizes) - 1
        with T.vectorized(0, _LANES) as lane:
            point = tirx.min(first + lane, points - 1)
            # The grid has the last axis first.
            given = [grid[item, point, last - axis] for axis in range(len(self.sizes))]
            taps_of_axes = map(self._taps, given, self.lengths)
            for number, corner in enumerate(itertools.product(*taps_of_axes)):
                place, share, inside = tirx.const(0, "int64"), None, []
                for (index, part, is_inside), size in zip(corner, self.sizes, strict=True):
                    place = place * size + index
                    share = part if share is None else share * part
                    inside += [] if is_inside is None else [is_inside]
                if inside:
                    place = tirx.Select(tirx.all(*inside), place, tirx.const(-1, "int64"))
                found.places[number * _LANES + lane] = place.astype("int32")
                found.shares[number * _LANES + lane] = share
        return found

    def _number(self, value: float) -> Any:
        return tirx.const(float(value), self.dtype)

    def _place(self, given: Any, length: Any) -> Any:
        """Where -1 to 1 is along an axis."""
        is_near = tirx.abs(given) <= self._number(_largest(self.dtype))
        from_start = tirx.Select(is_near, given, self._number(-1.0)) + self._number(1)
        one, half = self._number(1), self._number(0.5)
        if self.aligned:
            return from_start * (length - one) * half
        return (from_start * length - one) * half

    def _taps(self, given: Any, length: Any) -> list[tuple[Any, Any, Any]]:
        """Along one axis: places, shares, and whether each is inside (None for always)."""
        one, two = self._number(1), self._number(2)
        x = self._place(given, length)
        if self.mode == "nearest":
            return [self._tap(tirx.nearbyint(x), one, length)]
        low = tirx.floor(x)
        rest = x - low
        if self.mode == "linear":
            return [self._tap(low, one - rest, length), self._tap(low + one, rest, length)]
        shares = map(self._cubic, (rest + one, rest, one - rest, two - rest))
        return [self._tap(low + self._number(n), s, length) for n, s in enumerate(shares, start=-1)]

    def _tap(self, x: Any, share: Any, length: Any) -> tuple[Any, Any, Any]:
        inside = None
        if self.padding == "zeros":
            inside = tirx.all(x >= self._number(0), x <= length - self._number(1))
        elif self.padding == "reflection":
            x = self._reflected(x, length)
        return self._clipped(x, length).astype("int64"), share, inside

    def _clipped(self, x: Any, length: Any) -> Any:
        return tirx.max(tirx.min(x, length - self._number(1)), self._number(0))

    def _reflected(self, x: Any, length: Any) -> Any:
        """A place outside of the image mirrored at its borders until it is inside."""
        edge, high = self.edge, length - self._number(1) - self.edge
        extent = tirx.max(high - edge, self._number(_SMALLEST))
        away = tirx.abs(x - edge)
        times = tirx.floor(away / extent)
        rest = away - times * extent
        is_even = times - tirx.floor(times * self._number(0.5)) * self._number(2) < self._number(1)
        mirrored = tirx.Select(is_even, edge + rest, high - rest)
        return tirx.Select(tirx.all(x >= edge, x <= high), x, mirrored)

    def _cubic(self, distance: Any) -> Any:
        """The share of a neighbour at ``distance`` from 0 to 2 (Keys 1981)."""
        a, x = self._number(_CUBIC), distance
        near = ((a + 2) * x - (a + 3)) * x * x + self._number(1)
        far = ((a * x - a * 5) * x + a * 8) * x - a * 4
        return tirx.Select(x <= self._number(1), near, far)

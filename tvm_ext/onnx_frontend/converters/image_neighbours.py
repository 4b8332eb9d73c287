"""Images read between their elements: what is around some points, and the share of each.

For as many points as a vector holds all of it is worked out once, and all channels follow.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.onnx_frontend.converters.loops import local_array
from tvm_ext.onnx_frontend.converters.runtime_sizes import wide

# Points whose places are worked out together.
LANES = 16
# Keys' parameter of the cubic kernel, as ONNX Runtime and PyTorch have it.
_CUBIC = -0.75
# What an image of one element is divided by instead of its extent, which is 0.
_SMALLEST = 1e-30
# Neighbours along an axis by mode, and what is beyond the borders.
TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
PADDINGS = ("zeros", "border", "reflection")


@dataclass(frozen=True)
class PointBlock:
    """As many points as a vector holds, of ``points`` in all; the last block may have fewer."""

    number: Any
    points: Any

    @staticmethod
    def count(points: Any) -> Any:
        """The blocks of so many points."""
        return tirx.ceildiv(points, LANES)

    def inside(self, lane: Any) -> Any:
        """The point of a lane, or the last one of all where it has none."""
        return tirx.min(self.number * LANES + lane, self.points - 1)

    def store(self, channels: Any, writer: Callable[[Any], Callable[[Any, Any], None]]) -> None:
        """Writes what ``writer(channel)(point, lane)`` does for each channel and point."""
        first = self.number * LANES
        rest = tirx.min(self.points - first, wide(LANES))
        with T.If(first + LANES <= self.points):
            with T.Then(), T.serial(0, channels) as channel:
                write = writer(channel)
                with T.vectorized(0, LANES) as lane:
                    write(first + lane, lane)
            with T.Else(), T.serial(0, channels) as channel:
                write = writer(channel)
                with T.serial(0, rest) as lane:
                    write(first + lane, lane)


def plane_of(read: Any, index: Sequence[Any], elements: Any) -> Any:
    """The last axis of a buffer at an index of the others, as a buffer of its own.

    Vectors of places are then added to an address, and stay of 32 bits where sizes are unknown.
    """
    begin = T.address_of(read[(*index, 0)])
    return T.buffer_proxy(T.decl_buffer((wide(elements),), str(read.dtype), data=begin))


class ImageNeighbours:
    """The elements around the points of a block, by their places in a plane, and their shares.

    The place of one that is outside of the image, where there are zeros, is -1.

    Parameters
    ----------
    mode, padding : str
        Of ``TAPS`` and ``PADDINGS``.
    sizes : sequence
        Of the image.
    dtype : str
        Of its elements, and of coordinates.
    aligned : bool
        Whether an image is mirrored at the middle of its last elements, not behind them.
    """

    def __init__(
        self, mode: str, padding: str, sizes: Sequence[Any], dtype: str, aligned: bool = False
    ) -> None:
        self.mode, self.padding, self.dtype = mode, padding, dtype
        self.sizes = [wide(size) for size in sizes]
        self.lengths = [size.astype(dtype) for size in self.sizes]
        # Where an image begins: at the middle of its first element, or ahead of that.
        self.edge = self._number(0.0 if aligned else -0.5)
        self.count = TAPS[mode] ** len(self.sizes)
        self.places = local_array(self.count * LANES, "int32")
        self.shares = local_array(self.count * LANES, dtype)

    def find(
        self,
        coordinates: Callable[[Any], Sequence[Any]],
        weight: Callable[[Any], Any] | None = None,
    ) -> None:
        """Looks for those of each lane's coordinates, whose shares ``weight`` multiplies."""
        with T.vectorized(0, LANES) as lane:
            taps_of_axes = map(self._taps, coordinates(lane), self.lengths)
            for number, corner in enumerate(itertools.product(*taps_of_axes)):
                place, inside = tirx.const(0, "int64"), []
                share = None if weight is None else weight(lane)
                for (index, part, is_inside), size in zip(corner, self.sizes, strict=True):
                    place = place * size + index
                    share = part if share is None else share * part
                    inside += [] if is_inside is None else [is_inside]
                if inside:
                    place = tirx.Select(tirx.all(*inside), place, tirx.const(-1, "int64"))
                self.places[number * LANES + lane] = place.astype("int32")
                self.shares[number * LANES + lane] = share

    def value(self, plane: Any, lane: Any) -> Any:
        """The sum of their shares in a plane."""
        found = None
        for number in range(self.count):
            at = number * LANES + lane
            place = self.places[at]
            has_outside = self.padding == "zeros"
            inside = tirx.max(place, T.int32(0)) if has_outside else place
            value = plane[inside.astype("int64")] * self.shares[at]
            if has_outside:
                value = tirx.Select(place >= 0, value, self._number(0))
            found = value if found is None else found + value
        return found

    def _number(self, value: float) -> Any:
        return tirx.const(float(value), self.dtype)

    def _taps(self, x: Any, length: Any) -> list[tuple[Any, Any, Any]]:
        """Along one axis: places, shares, and whether each is inside (None for always)."""
        one, two = self._number(1), self._number(2)
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

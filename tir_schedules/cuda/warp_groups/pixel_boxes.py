"""Rows of a convolution's product in boxes that are rectangles of output pixels.

Bulk copies bring boxes of an image. So the rows of a warp group are pixels side by side in each of
an image's dimensions, and of neighbouring images where these are small, not pixels in the order in
which they lie in memory. The sides are powers of two: which pixel a row is takes shifts and masks.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx

from tvm_ext.tir_schedules.template import NotMine

MAX_BOX = 256
"""Places along a side of a box, those between the ones that are copied too: CUDA driver API,
cuTensorMapEncodeTiled."""


@dataclass(frozen=True)
class PixelBoxes:
    """How the output pixels of a convolution are cut into boxes.

    Rows of the product are counted box by box, those outside of the images too.

    Attributes
    ----------
    extents : tuple[int, ...]
        Output pixels along each dimension, slowest first: images, their rows, their columns.
    sides : tuple[int, ...]
        Of a box, in powers of two.
    """

    extents: tuple[int, ...]
    sides: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Boxes along each dimension."""
        pairs = zip(self.extents, self.sides, strict=True)
        return tuple(math.ceil(extent / side) for extent, side in pairs)

    @property
    def rows(self) -> int:
        """Rows of all boxes."""
        return math.prod(self.counts) * math.prod(self.sides)

    def pixel(self, row: Any) -> list[Any]:
        """Where a row's pixel is along each dimension; of rows after the last beyond the images."""
        size = math.prod(self.sides)
        box, inside = row // size, row % size
        found = []
        for side, count in zip(self.sides[:0:-1], self.counts[:0:-1], strict=True):
            found.append(box % count * side + inside % side)
            box, inside = box // count, inside // side
        return [box * self.sides[0] + inside, *found[::-1]]

    def placed(self, row: Any) -> tuple[Any, Any]:
        """A row's number in the order of memory, and the condition under which it is a pixel."""
        number: Any = tirx.const(0, str(row.ty))
        inside: Any = tirx.const(True, "bool")
        for at, extent in zip(self.pixel(row), self.extents, strict=True):
            number = number * extent + at
            inside = tirx.And(inside, at < tirx.const(extent, str(row.ty)))
        return number, inside


def pixel_boxes(extents: Sequence[int], strides: Sequence[int], rows: int) -> PixelBoxes | NotMine:
    """The boxes of ``rows`` rows, a power of two, of which the fewest cover all output pixels.

    ``strides``: places of the image between neighbouring output pixels along each dimension. Of as
    few boxes, those with the longest sides along the fastest dimensions.
    """
    found = [
        PixelBoxes(tuple(extents), sides)
        for sides in _sides(rows, len(extents))
        if all(s * n <= MAX_BOX for s, n in zip(strides, sides, strict=True))
    ]
    if not found:
        return NotMine("the strides are too long for boxes of bulk copies")
    return min(found, key=lambda boxes: (boxes.rows, boxes.sides))


def _sides(rows: int, rank: int) -> Iterator[tuple[int, ...]]:
    """All powers of two for each of ``rank`` dimensions whose product is ``rows``."""
    if rank == 1:
        yield (rows,)
        return
    side = 1
    while side <= rows:
        yield from ((side, *rest) for rest in _sides(rows // side, rank - 1))
        side *= 2

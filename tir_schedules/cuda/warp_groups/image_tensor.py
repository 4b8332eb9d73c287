"""The image of a convolution as a tensor of which bulk copies bring boxes of pixels.

For every tap of the window and every few channels of it, a box of output pixels needs one box of
the image, shifted by the tap. What is outside of the image comes as zeros: its padding. Where
neighbouring output pixels are ``stride`` places apart, so are those that a copy takes of its box.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import tirx
from tvm.sym import detect_linear_equation

from tvm_ext.tir_schedules.block_access import element_bytes, static_extent
from tvm_ext.tir_schedules.cuda.products.product_axes import ProductAxes
from tvm_ext.tir_schedules.cuda.warp_groups.padding import Padding
from tvm_ext.tir_schedules.cuda.warp_groups.pixel_boxes import PixelBoxes, pixel_boxes
from tvm_ext.tir_schedules.cuda.warp_groups.tap_steps import TapSteps
from tvm_ext.tir_schedules.cuda.warp_groups.tensor_map import (
    ALIGNMENT,
    MAX_EXTENT,
    MAX_RANK,
    Dimension,
    OperandTensor,
    encoded_map,
)
from tvm_ext.tir_schedules.flat_views import is_compact
from tvm_ext.tir_schedules.template import NotMine

MAX_STRIDE = 8
"""Of the places that a copy takes of its box: CUDA driver API, cuTensorMapEncodeTiled."""


@dataclass(frozen=True)
class Walk:
    """The place along a dimension: ``stride * pixel + dilation * tap + first``.

    ``pixel`` and ``tap`` are which dimension of the output and of the window move it; None: none.
    """

    first: int
    pixel: int | None = None
    stride: int = 1
    tap: int | None = None
    dilation: int = 1


@dataclass(frozen=True)
class ImageTensor:
    """The image of a convolution, channels last, as the operand A of a product.

    Attributes
    ----------
    buffer : tirx.Buffer
        Its parameter of the kernel.
    extents : tuple[int, ...]
        Sizes of its dimensions, slowest first, without the channels.
    walks : tuple[Walk, ...]
        What moves along each of these.
    steps : TapSteps
        The steps of the product.
    pixels : PixelBoxes
        The rows of the product.
    """

    buffer: Any
    extents: tuple[int, ...]
    walks: tuple[Walk, ...]
    steps: TapSteps
    pixels: PixelBoxes

    across = False
    """Its steps are neighbours in memory: see ``OperandTensor``."""

    def encoded(self, tensor_map: tirx.Var, box: tuple[int, int]) -> tirx.Stmt:
        """What the host does before the launch; ``box``: channels, and rows."""
        boxes, strides = [box[0]], [1]
        for walk in reversed(self.walks):
            side = self.pixels.sides[walk.pixel] if walk.pixel is not None else 1
            # Of so many places as many are copied as there are pixels.
            boxes.append(side * walk.stride)
            strides.append(walk.stride)
        return encoded_map(tensor_map, self.buffer, self._dimensions(), boxes, strides)

    def lines(self, extent: int) -> int:
        """Rows that one copy brings of the ``extent`` of a tile."""
        return math.prod(self.pixels.sides)

    def at(self, batch: Any, selecting: Any, step: Any) -> list[Any]:
        """The coordinates of a row's pixel at a step, fastest dimension first."""
        pixel = self.pixels.pixel(selecting)
        tap, channel = self.steps.split(step)
        found = []
        for walk in self.walks:
            place = tirx.const(walk.first, "int32")
            if walk.pixel is not None:
                place = place + pixel[walk.pixel] * walk.stride
            if walk.tap is not None:
                place = place + tap[walk.tap] * walk.dilation
            found.append(place)
        return [place.astype("int32") for place in (channel, *reversed(found))]

    def _dimensions(self) -> list[Dimension]:
        """Fastest first."""
        found = [Dimension(self.steps.channels, 1)]
        for extent in reversed(self.extents):
            found.append(Dimension(extent, found[-1].extent * found[-1].stride))
        return found


Operand = OperandTensor | ImageTensor


def image_tensor(
    load: Any,
    padding: Padding | None,
    variables: Sequence[Any],
    axes: ProductAxes,
    rows: int,
    depth: int,
) -> ImageTensor | NotMine:
    """The image that ``load`` reads, or would read were it not padded.

    Parameters
    ----------
    load : tvm.ir.TensorLoad
        The load.
    padding : Padding or None
        What computes the array that is loaded from.
    variables : sequence of tirx.Var
        The loops of the product that ``axes`` are of.
    rows, depth : int
        Rows and steps whose operands a copy brings.
    """
    buffer = load.source if padding is None else padding.source
    before = padding.before if padding is not None else (0,) * len(load.indices)
    name = buffer.name
    if not is_compact(buffer) or not 2 <= len(load.indices) <= MAX_RANK:
        return NotMine(f"the layout of {name} is not plain, or of more dimensions than a copy's")
    moved = [_moved(index, variables, axes) for index in load.indices]
    if any(found is None for found in moved):
        return NotMine(f"{name} is not read at regular distances")
    *outer, last = [found for found in moved if found is not None]
    if axes.batch or len(last) != 2 or last.get(axes.steps[-1]) != 1 or last[-1] != before[-1]:
        return NotMine(f"neighbours in {name} are not neighbouring channels of one convolution")
    taps = axes.steps[:-1]
    walks = [_walk(m, shift, axes, taps) for m, shift in zip(outer, before[:-1], strict=True)]
    *extents, channels = [static_extent(size) or 0 for size in buffer.shape]
    if channels * element_bytes(buffer) % ALIGNMENT:
        return NotMine(f"the channels of {name} are not whole pieces of {ALIGNMENT} bytes")
    if not _covers(walks, len(axes.rows), len(taps)) or max(extents) > MAX_EXTENT:
        return NotMine(f"{name} is not walked as the image of a convolution is")
    strides = {w.pixel: w.stride for w in walks if w is not None}
    if max(strides.values()) > MAX_STRIDE:
        return NotMine(f"{name} is read with a stride of more than {MAX_STRIDE}")
    pixels = [axes.extents[axis] for axis in axes.rows]
    boxes = pixel_boxes(pixels, [strides[n] for n in range(len(pixels))], rows)
    if isinstance(boxes, NotMine):
        return boxes
    steps = TapSteps(tuple(axes.extents[axis] for axis in taps), channels, depth)
    known = tuple(walk for walk in walks if walk is not None)
    return ImageTensor(buffer, tuple(extents), known, steps, boxes)


def _moved(index: Any, variables: Sequence[Any], axes: ProductAxes) -> dict[int, int] | None:
    """By how much each loop moves an index, and at -1 where it begins; None if not evenly."""
    linear = [static_extent(part) for part in detect_linear_equation(index, list(variables))]
    if not linear or None in linear:
        return None
    *steps, first = linear
    found = {axis: step for axis, step in enumerate(steps) if step and axes.extents[axis] > 1}
    return {**found, -1: first}  # type: ignore[dict-item]


def _walk(
    moved: dict[int, int], before: int, axes: ProductAxes, taps: Sequence[int]
) -> Walk | None:
    """How a dimension is walked; None where by more than a pixel and a tap, or backwards."""
    rows = [axis for axis in axes.rows if axis in moved]
    window = [axis for axis in taps if axis in moved]
    if len(moved) != 1 + len(rows) + len(window) or len(rows) > 1 or len(window) > 1:
        return None
    if any(moved[axis] < 1 for axis in (*rows, *window)):
        return None
    return Walk(
        first=moved[-1] - before,
        pixel=list(axes.rows).index(rows[0]) if rows else None,
        stride=moved[rows[0]] if rows else 1,
        tap=list(taps).index(window[0]) if window else None,
        dilation=moved[window[0]] if window else 1,
    )


def _covers(walks: Sequence[Walk | None], pixels: int, taps: int) -> bool:
    """Whether every dimension of the output and of the window moves one of the image's."""
    if any(walk is None for walk in walks):
        return False
    by_pixel = sorted(w.pixel for w in walks if w is not None and w.pixel is not None)
    by_tap = sorted(w.tap for w in walks if w is not None and w.tap is not None)
    return by_pixel == list(range(pixels)) and by_tap == list(range(taps))

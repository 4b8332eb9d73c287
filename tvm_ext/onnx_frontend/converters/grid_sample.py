"""GridSample: images read at the points of a grid, as spatial transformer networks do.

TVM works out the place of a point, and the shares of its neighbours, again for each channel. On
CPUs they are worked out here once, for as many points as a vector holds, and all channels follow.
"""

import math
from typing import Any

from tvm import relax, tirx

from tvm_ext.errors import FormError
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.onnx_frontend.converters.arguments import sizes_of, text
from tvm_ext.onnx_frontend.converters.image_neighbours import (
    PADDINGS,
    TAPS,
    ImageNeighbours,
    PointBlock,
    plane_of,
)
from tvm_ext.onnx_frontend.converters.loops import emit_loops, on_threads
from tvm_ext.onnx_frontend.converters.runtime_sizes import wide
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter, onnx_converter_map

# ONNX renamed the modes in version 20.
_MODES = {"bilinear": "linear", "bicubic": "cubic"}


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
    points, elements = math.prod(spatial), math.prod(image)
    flat = bb.emit(relax.op.reshape(data, (batch, channels, elements)))
    places = bb.emit(relax.op.reshape(grid, (batch, points, len(image))))
    mode, padding = _form(attr, image)
    aligned, last = bool(attr.get("align_corners", 0)), len(image) - 1

    def body(read: Any, grid: Any, written: Any) -> None:
        blocks = PointBlock.count(wide(points))
        with on_threads(wide(batch) * blocks) as (number,):
            item, block = number // blocks, PointBlock(number % blocks, wide(points))

            def coordinates(lane: Any) -> list[Any]:
                # The grid has the last axis first.
                given = [grid[item, block.inside(lane), last - axis] for axis in range(len(image))]
                return [_place(*each, aligned) for each in zip(given, image, strict=True)]

            neighbours = ImageNeighbours(mode, padding, image, dtype, aligned)
            neighbours.find(coordinates)

            def of_channel(channel: Any) -> Any:
                plane = plane_of(read, (item, channel), elements)

                def write(point: Any, lane: Any) -> None:
                    written[item, channel, point] = neighbours.value(plane, lane)

                return write

            block.store(channels, of_channel)

    result = emit_loops(
        bb, "grid_sample", [flat, places], [([batch, channels, points], dtype)], body
    )[0]
    return relax.op.reshape(result, (batch, channels, *spatial))


def _form(attr: dict, image: list) -> tuple[str, str]:
    """The mode and the padding, by today's names."""
    mode = text(attr, "mode", "linear")
    mode, padding = _MODES.get(mode, mode), text(attr, "padding_mode", "zeros")
    if mode not in TAPS or (mode == "cubic" and len(image) != 2):
        raise FormError(f"its mode is {mode}, expected nearest or linear, or cubic for images")
    if padding not in PADDINGS:
        raise FormError(f"its padding_mode is {padding}, expected {' or '.join(PADDINGS)}")
    return mode, padding


def _place(given: Any, size: Any, aligned: bool) -> Any:
    """Where -1 to 1 is along an axis."""
    dtype = str(given.ty)
    length, one, half = wide(size).astype(dtype), tirx.const(1.0, dtype), tirx.const(0.5, dtype)
    is_near = tirx.abs(given) <= tirx.const(_largest(dtype), dtype)
    from_start = tirx.Select(is_near, given, tirx.const(-1.0, dtype)) + one
    if aligned:
        return from_start * (length - one) * half
    return (from_start * length - one) * half

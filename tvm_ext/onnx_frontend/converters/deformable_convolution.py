"""DeformConv: convolution whose taps are moved by offsets. TVM has none."""

from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.onnx_frontend.converters.arguments import sizes_of
from tvm_ext.onnx_frontend.converters.image_neighbours import (
    LANES,
    ImageNeighbours,
    PointBlock,
    plane_of,
)
from tvm_ext.onnx_frontend.converters.loops import emit_loops, local_array, on_threads
from tvm_ext.onnx_frontend.converters.runtime_sizes import wide
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter


class DeformConv(OnnxOpConverter):
    """Convolution whose taps are moved by offsets and weighted by a mask.

    Deformable convolution (Dai and others 2017, Zhu and others 2019): the taps are gathered into
    columns by bilinear interpolation, zero outside of the image, and multiplied as matrices.
    """

    @classmethod
    def _impl_v19(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, weight, offset = inputs[:3]
        bias, mask = (inputs[k] if k < len(inputs) else None for k in (3, 4))
        batch, channels, _, _ = sizes_of(data)
        features, _, kernel_h, kernel_w = sizes_of(weight)
        groups, taps = attr.get("group", 1), kernel_h * kernel_w
        _, _, rows, columns = sizes_of(offset)
        masks = [] if mask is None else [mask]
        if current_cpu() is not None and str(data.ty.dtype) in ("float32", "float64"):
            gathered = _by_blocks(bb, data, offset, masks, [kernel_h, kernel_w], attr)
        else:
            gathered = bb.emit_te(
                *(_gathered, data, offset, masks, [kernel_h, kernel_w], attr),
                primfunc_name_hint="deformed_columns",
            )
        each = channels // groups * taps
        gathered = bb.emit(relax.op.reshape(gathered, (batch, groups, each, rows * columns)))
        matrix = bb.emit(relax.op.reshape(weight, (1, groups, features // groups, each)))
        product = bb.emit(relax.op.matmul(matrix, gathered))
        result = bb.emit(relax.op.reshape(product, (batch, features, rows, columns)))
        if bias is None:
            return result
        return relax.op.add(result, bb.emit(relax.op.reshape(bias, (1, features, 1, 1))))


def _by_blocks(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    offset: relax.Expr,
    masks: list[relax.Expr],
    kernel: list[int],
    attr: dict,
) -> relax.Expr:
    """The taps of every output element; the channels that share offsets share their neighbours."""
    (batch, channels, *image), (_, moves, rows, columns) = sizes_of(data), sizes_of(offset)
    points, taps, dtype = rows * columns, kernel[0] * kernel[1], str(data.ty.dtype)
    parts, dilations = attr.get("offset_group", 1), attr.get("dilations", [1, 1])
    flat = bb.emit(relax.op.reshape(data, (batch, channels, image[0] * image[1])))
    moved = bb.emit(relax.op.reshape(offset, (batch, moves, points)))
    weights = [bb.emit(relax.op.reshape(one, (batch, parts * taps, points))) for one in masks]

    def body(read: Any, moved: Any, *rest: Any) -> None:
        *weights, written = rest
        blocks = PointBlock.count(wide(points))
        with on_threads(wide(batch) * blocks) as (number,):
            item, block = number // blocks, PointBlock(number % blocks, wide(points))
            corners = _window_starts(block, columns, attr, dtype)
            neighbours = ImageNeighbours("linear", "zeros", image, dtype)
            with T.serial(0, parts) as part, T.serial(0, taps) as tap:
                at = part * taps + tap
                ahead = tap // kernel[1] * dilations[0], tap % kernel[1] * dilations[1]

                def coordinates(lane: Any) -> list[Any]:
                    point = block.inside(lane)
                    return [
                        corners[axis][lane]
                        + ahead[axis].astype(dtype)
                        + moved[item, at * 2 + axis, point]
                        for axis in range(2)
                    ]

                def weight(lane: Any) -> Any:
                    return weights[0][item, at, block.inside(lane)]

                neighbours.find(coordinates, weight if weights else None)

                def of_channel(number: Any) -> Any:
                    channel = part * (channels // parts) + number
                    plane = plane_of(read, (item, channel), image[0] * image[1])

                    def write(point: Any, lane: Any) -> None:
                        written[item, channel, tap, point] = neighbours.value(plane, lane)

                    return write

                block.store(channels // parts, of_channel)

    shape = [batch, channels, taps, points]
    return emit_loops(bb, "deformed_columns", [flat, moved, *weights], [(shape, dtype)], body)[0]


def _window_starts(block: PointBlock, columns: Any, attr: dict, dtype: str) -> list[Any]:
    """Where the windows of a block's points start in the image, along both axes."""
    strides, pads = attr.get("strides", [1, 1]), attr.get("pads", [0] * 4)
    starts = [local_array(LANES, dtype) for _ in range(2)]
    with T.serial(0, LANES) as lane:
        point = block.inside(lane)
        places = tirx.floordiv(point, wide(columns)), tirx.floormod(point, wide(columns))
        for axis, place in enumerate(places):
            starts[axis][lane] = (place * strides[axis] - pads[axis]).astype(dtype)
    return starts


def _gathered(
    data: te.Tensor, offset: te.Tensor, mask: list[te.Tensor], kernel: list[int], attr: dict
) -> te.Tensor:
    """The taps of every output element: [N, channels, taps, rows, columns]."""
    batch, channels, height, width = data.shape
    taps, dtype = kernel[0] * kernel[1], str(data.dtype)
    strides, dilations = attr.get("strides", [1, 1]), attr.get("dilations", [1, 1])
    pads, parts = attr.get("pads", [0] * 4), attr.get("offset_group", 1)
    share = channels // parts
    one, zero = tirx.const(1.0, dtype), tirx.const(0.0, dtype)

    def within(place: tirx.Expr, size: Any) -> tirx.Expr:
        last = tirx.Cast(dtype, tirx.Cast("int64", size))
        return tirx.max(tirx.min(place, last), tirx.const(-1.0, dtype))

    def element(n: Any, c: Any, tap: Any, i: Any, j: Any) -> tirx.Expr:
        part = tirx.floordiv(c, share)
        tap_row, tap_column = tirx.floordiv(tap, kernel[1]), tirx.floormod(tap, kernel[1])
        moved = (part * taps + tap) * 2
        row = i * strides[0] - pads[0] + tap_row * dilations[0]
        column = j * strides[1] - pads[1] + tap_column * dilations[1]
        y = row.astype(dtype) + offset[n, moved, i, j]
        x = column.astype(dtype) + offset[n, moved + 1, i, j]
        # A point from far away is no integer, and its shares are no numbers.
        y, x = within(y, height), within(x, width)
        top, left = tirx.floor(y).astype("int64"), tirx.floor(x).astype("int64")
        down, right = y - top.astype(dtype), x - left.astype(dtype)
        total = zero
        for a, part_y in ((0, one - down), (1, down)):
            for b, part_x in ((0, one - right), (1, right)):
                inside = tirx.all(top + a >= 0, top + a < height, left + b >= 0, left + b < width)
                value = tirx.if_then_else(inside, data[n, c, top + a, left + b], zero)
                total = total + part_y * part_x * value
        return total * mask[0][n, part * taps + tap, i, j] if mask else total

    shape = (batch, channels, taps, offset.shape[2], offset.shape[3])
    return te.compute(shape, element, name="deformed_columns")

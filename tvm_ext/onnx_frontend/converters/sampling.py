"""AffineGrid and RoiAlign: points between the elements of images, and what is pooled there.

TVM's AffineGrid takes no size of the run and two dimensions only; its RoiAlign reads regions that
begin outside of the image at other points, and in mode max takes the largest interpolated value
where ONNX takes the largest weighted neighbour.
"""

from typing import Any

from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import sizes_of, takes_sizes, text
from tvm_ext.onnx_frontend.converters.loops import emit_loops, local_array, nested
from tvm_ext.onnx_frontend.converters.runtime_sizes import sizes_in_the_run
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter


@takes_sizes(1)
class AffineGrid(OnnxOpConverter):
    """The points of an image of the given size, moved by a matrix for each batch."""

    @classmethod
    def _impl_v20(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        theta, corners = inputs[0], bool(attr.get("align_corners", 0))
        dtype = str(theta.ty.dtype)
        shape = sizes_in_the_run(bb, inputs[1], params, "size")
        spatial, count = shape[2:], len(shape) - 2
        if count not in (2, 3):
            raise FormError(f"its size has {count} spatial axes, expected 2 or 3")

        def point(place: Any, size: Any) -> tirx.Expr:
            """From -1 to 1: by the middles of the first and last element, or by their ends."""
            one = tirx.const(1.0, dtype)
            x, extent = (
                place.astype(dtype),
                (size * one).astype(dtype) if isinstance(size, int) else size.astype(dtype),
            )
            if corners:
                span = tirx.max(extent - one, one)
                return x * tirx.const(2.0, dtype) / span - one
            return (x * tirx.const(2.0, dtype) + one) / extent - one

        def kernel(theta: te.Tensor, batch: Any, spatial: list) -> te.Tensor:
            def element(n: Any, *index: Any) -> tirx.Expr:
                # The last spatial axis is x, the first coordinate.
                points = [point(index[k], spatial[k]) for k in range(count)][::-1]
                value = theta[n, index[-1], count]
                for k in range(count):
                    value = value + theta[n, index[-1], k] * points[k]
                return value

            return te.compute([batch, *spatial, count], element, name="affine_grid")

        return bb.emit_te(kernel, theta, shape[0], spatial, primfunc_name_hint="affine_grid")


class RoiAlign(OnnxOpConverter):
    """Regions of an image pooled to one size (He and others 2017), by average or maximum."""

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _pooled(bb, inputs, attr, text(attr, "coordinate_transformation_mode", "none"))

    @classmethod
    def _impl_v16(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _pooled(bb, inputs, attr, text(attr, "coordinate_transformation_mode", "half_pixel"))


def _pooled(bb: relax.BlockBuilder, inputs: Any, attr: dict, coordinates: str) -> relax.Expr:
    data, regions, batches = inputs[:3]
    half_pixel, mode = coordinates == "half_pixel", text(attr, "mode", "avg")
    if mode not in ("avg", "max"):
        raise FormError(f"its mode is {mode}, expected avg or max")
    sizes, count = sizes_of(data), sizes_of(regions)[0]
    height, width = attr.get("output_height", 1), attr.get("output_width", 1)
    ratio, scale = int(attr.get("sampling_ratio", 0)), float(attr.get("spatial_scale", 1.0))
    dtype = str(data.ty.dtype)

    def side(regions: Any, region: Any, axis: int, bins: int) -> tuple[Any, Any, Any]:
        """Start, size of a bin and samples in a bin along one axis (1 for rows, 0 for columns)."""
        shift = tirx.const(0.5 if half_pixel else 0.0, dtype)
        factor = tirx.const(scale, dtype)
        start = regions[region, axis] * factor - shift
        length = regions[region, axis + 2] * factor - shift - start
        if not half_pixel:
            length = tirx.max(length, tirx.const(1.0, dtype))
        each = length / tirx.const(float(bins), dtype)
        samples = tirx.const(ratio, "int64") if ratio > 0 else tirx.ceil(each).astype("int64")
        return start, each, samples

    def body(read: Any, regions: Any, batches: Any, written: Any) -> None:
        zero, half = tirx.const(0.0, dtype), tirx.const(0.5, dtype)
        with nested(count, sizes[1], height, width) as (region, channel, row, column):
            top, high, rows = side(regions, region, 1, height)
            left, wide, columns = side(regions, region, 0, width)
            state = local_array(1, "int64")
            state[0] = T.int64(0)
            written[region, channel, row, column] = zero
            with T.serial(0, rows) as i, T.serial(0, columns) as j:
                y = (
                    top
                    + row.astype(dtype) * high
                    + (i.astype(dtype) + half) * high / rows.astype(dtype)
                )
                x = (
                    left
                    + column.astype(dtype) * wide
                    + (j.astype(dtype) + half) * wide / columns.astype(dtype)
                )
                value = _from_neighbours(
                    read, batches[region].astype("int64"), channel, y, x, sizes[2:], dtype, mode
                )
                held = written[region, channel, row, column]
                if mode == "avg":
                    value = held + value
                else:
                    value = tirx.if_then_else(state[0] == 0, value, tirx.max(held, value))
                written[region, channel, row, column] = value
                state[0] = state[0] + 1
            if mode == "avg":
                samples = tirx.max(rows * columns, tirx.const(1, "int64")).astype(dtype)
                total = written[region, channel, row, column]
                written[region, channel, row, column] = total / samples

    shape = [count, sizes[1], height, width]
    return emit_loops(bb, "roi_align", [data, regions, batches], [(shape, dtype)], body)[0]


def _from_neighbours(
    read: Any, batch: Any, channel: Any, y: Any, x: Any, sizes: list, dtype: str, mode: str
) -> tirx.Expr:
    """The sum of the four weighted neighbours of a point, or the largest of them."""
    zero, one = tirx.const(0.0, dtype), tirx.const(1.0, dtype)

    def split(value: Any, size: Any) -> tuple[Any, Any, Any, Any]:
        last = tirx.Cast("int64", size) - 1
        inside = tirx.max(value, zero)
        low = tirx.min(tirx.floor(inside).astype("int64"), last)
        share = tirx.Select(low >= last, zero, inside - low.astype(dtype))
        return tirx.max(low, tirx.const(0, "int64")), tirx.min(low + 1, last), one - share, share

    rows, columns = split(y, sizes[0]), split(x, sizes[1])
    values = [
        rows[2 + a] * columns[2 + b] * read[batch, channel, rows[a], columns[b]]
        for a in range(2)
        for b in range(2)
    ]
    found = values[0]
    for value in values[1:]:
        found = found + value if mode == "avg" else tirx.max(found, value)
    far = [
        tirx.any(value < -one, value > tirx.Cast(dtype, tirx.Cast("int64", size)))
        for value, size in ((y, sizes[0]), (x, sizes[1]))
    ]
    return tirx.if_then_else(tirx.any(*far), zero, found)

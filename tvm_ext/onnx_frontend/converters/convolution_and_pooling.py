"""Conv, ConvTranspose, AveragePool, LpPool, MaxPool and MaxUnpool.

``auto_pad`` SAME is numbers where sizes are known, else padding that the run computes.

TVM rounds SAME_LOWER down, may pad by less than nothing, and takes no symbolic sizes.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.script.ir_builder import tirx as T

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of, takes_sizes, text
from tvm_ext.onnx_frontend.converters.loops import emit_loops, local_array, nested
from tvm_ext.onnx_frontend.converters.runtime_sizes import sizes_in_the_run, wide
from tvm_ext.onnx_frontend.sizes import scalar_rules as rules
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter, onnx_converter_map

# From here on a mean leaves out what lies beyond the padding that the model asks for.
_COUNTS_OWN_PADDING_ONLY = 19

_Convert = Callable[[relax.BlockBuilder, Any, dict, Any], Any]


def explicit_padding(
    bb: relax.BlockBuilder, data: relax.Expr, attr: dict, kernel: Sequence[int], fill: float = 0
) -> tuple[relax.Expr, dict]:
    """The input of a window operator and its attributes, which have ``pads`` and no ``auto_pad``.

    Along an axis there are as many outputs as strides start inside the input, so that the padding
    is ``max((ceil(size / stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)``; the odd
    element lies behind (SAME_UPPER) or in front (SAME_LOWER). Where it depends on a symbolic size,
    the input comes padded with ``fill``.
    """
    mode = text(attr, "auto_pad", "NOTSET")
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        return data, attr
    ones = [1] * len(kernel)
    strides, dilations = list(attr.get("strides", ones)), list(attr.get("dilations", ones))
    reaches = [(width - 1) * each + 1 for width, each in zip(kernel, dilations, strict=True)]
    totals = [_total(*axis) for axis in zip(sizes_of(data)[2:], strides, reaches, strict=True)]
    short = [rules.divide(total, 2, "int64") for total in totals]
    long = [rules.subtract(*each, "int64") for each in zip(totals, short, strict=True)]
    front, behind = (short, long) if mode == "SAME_UPPER" else (long, short)
    # Rounding up would add a window that starts in the padding.
    kept = {name: attr[name] for name in attr if name not in ("auto_pad", "ceil_mode", "pads")}
    if all(isinstance(total, int) for total in totals):
        return data, {**kept, "pads": [*front, *behind]}
    return _padded(bb, data, front, behind, fill), kept


def _total(size: Size, stride: int, reach: int) -> Size:
    """The padding of one axis."""
    if stride == 1:
        return reach - 1
    starts = rules.divide(rules.add(size, stride - 1, "int64"), stride, "int64")
    spanned = rules.add(rules.multiply(starts, stride, "int64"), reach - stride, "int64")
    return rules.maximum(rules.subtract(spanned, size, "int64"), 0, "int64")


def _padded(
    bb: relax.BlockBuilder, data: relax.Expr, front: list[Size], behind: list[Size], fill: float
) -> relax.Expr:
    value = tirx.const(fill, str(data.ty.dtype))

    def kernel(data: te.Tensor, front: list[Any], behind: list[Any]) -> te.Tensor:
        return topi.nn.pad(data, [0, 0, *front], [0, 0, *behind], value)

    sides = [[wide(size) for size in side] for side in (front, behind)]
    return bb.emit_te(kernel, data, *sides, primfunc_name_hint="pad")


def padded_to_a_window(data: relax.Expr, attr: dict, kernel: Sequence[int], opset: int = 1) -> dict:
    """The attributes of a pool, with padding behind axes that are a little shorter than a window.

    ONNX Runtime divides what is left of such an axis by the stride towards zero, which gives one
    window. Does nothing for sizes of the run.

    Raises
    ------
    FormError
        That gives no window, or a mean over padding that is counted and some that is not.
    """
    if text(attr, "auto_pad", "NOTSET") not in ("NOTSET", "VALID") or attr.get("ceil_mode", 0):
        return attr
    count = len(kernel)
    pads = list(attr.get("pads", [0] * 2 * count))
    strides, dilations = (attr.get(name, [1] * count) for name in ("strides", "dilations"))
    for k, size in enumerate(sizes_of(data)[2:]):
        if not isinstance(size, int):
            continue
        short = (kernel[k] - 1) * dilations[k] + 1 - size - pads[k] - pads[k + count]
        if short >= strides[k] and size:
            raise FormError(_does_not_fit(kernel[k], k + 2, size))
        if short > 0 and attr.get("count_include_pad", 0) and opset >= _COUNTS_OWN_PADDING_ONLY:
            raise FormError(f"its window reaches beyond the padding of axis {k + 2}")
        pads[k + count] += max(short, 0)
    return {**{name: attr[name] for name in attr if name != "auto_pad"}, "pads": pads}


def without_taps_outside(data: relax.Expr, attr: dict, kernel: Sequence[int]) -> dict:
    """The attributes of a pool whose only window along an axis reads that axis, and no padding.

    A window larger than any image (``AvgPool2d(640, ceil_mode=True)``) would take all of its taps
    one by one. Padding that a mean counts stays.
    """
    count, ceil = len(kernel), bool(attr.get("ceil_mode", 0))
    strides, dilations = (attr.get(name, [1] * count) for name in ("strides", "dilations"))
    pads, widths = list(attr.get("pads", [0] * 2 * count)), list(kernel)
    explicit = text(attr, "auto_pad", "NOTSET") in ("NOTSET", "VALID")
    if not explicit or (attr.get("count_include_pad", 0) and any(pads)):
        return attr
    for k, size in enumerate(sizes_of(data)[2:]):
        if not isinstance(size, int) or not 0 < size <= widths[k] - pads[k] or dilations[k] != 1:
            continue
        around = pads[k], pads[k + count]
        if windows(size, around, strides[k], widths[k], ceil) == 1:
            widths[k], pads[k], pads[k + count] = size, 0, 0
    kept = {name: attr[name] for name in attr if name != "auto_pad"}
    return {**kept, "kernel_shape": widths, "pads": pads}


def _does_not_fit(width: int, axis: int, size: int) -> str:
    return f"its window of {width} does not fit in axis {axis} of size {size}"


class _Windows(OnnxOpConverter):
    """A converter of TVM's, whose padding is explicit."""

    base: Any
    pools = False

    @classmethod
    def get_converter(cls, opset: int) -> _Convert:
        plain = cls.base.get_converter(opset)

        def convert(bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
            kernel = attr.get("kernel_shape") or sizes_of(inputs[1])[2:]
            if cls.pools:
                attr = padded_to_a_window(inputs[0], attr, kernel, opset)
                attr = without_taps_outside(inputs[0], attr, kernel)
                kernel = attr["kernel_shape"]
            data, kept = cls._padded_input(bb, inputs[0], attr, kernel)
            given = type(inputs)([data, *list(inputs)[1:]])
            result = plain(bb, given, kept, params)
            share = None if data is inputs[0] else cls._share(bb, inputs[0], attr, plain)
            return result if share is None else relax.op.divide(bb.normalize(result), share)

        return convert

    @classmethod
    def _fill(cls, data: relax.Expr) -> float:
        return 0

    @classmethod
    def _padded_input(
        cls, bb: relax.BlockBuilder, data: relax.Expr, attr: dict, kernel: Sequence[int]
    ) -> tuple[relax.Expr, dict]:
        return explicit_padding(bb, data, attr, kernel, cls._fill(data))

    @classmethod
    def _share(
        cls, bb: relax.BlockBuilder, data: relax.Expr, attr: dict, plain: _Convert
    ) -> relax.Expr | None:
        """What the result is divided by where ``data`` comes padded."""
        return None


class Conv(_Windows):
    """Contractions of windows and weights."""

    base = onnx_converter_map()["Conv"]

    @classmethod
    def _padded_input(
        cls, bb: relax.BlockBuilder, data: relax.Expr, attr: dict, kernel: Sequence[int]
    ) -> tuple[relax.Expr, dict]:
        """Raises FormError where no window fits."""
        data, attr = super()._padded_input(bb, data, attr, kernel)
        count = len(kernel)
        pads, dilations = attr.get("pads", [0] * 2 * count), attr.get("dilations", [1] * count)
        for k, size in enumerate(sizes_of(data)[2:]):
            if not isinstance(size, int) or not isinstance(kernel[k], int):
                continue
            if size + pads[k] + pads[k + count] < (kernel[k] - 1) * dilations[k] + 1:
                raise FormError(_does_not_fit(kernel[k], k + 2, size))
        return data, attr


class ConvTranspose(OnnxOpConverter):
    """Contractions whose outputs are windows; TVM's gives results of less than nothing."""

    @classmethod
    def get_converter(cls, opset: int) -> _Convert:
        plain = onnx_converter_map()["ConvTranspose"].get_converter(opset)

        def convert(bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
            result = bb.normalize(plain(bb, inputs, attr, params))
            for axis, size in enumerate(sizes_of(result)):
                if isinstance(size, int) and size < 0:
                    raise FormError(f"its pads leave a size of {size} for axis {axis}")
            return result

        return convert


class LpPool(_Windows):
    """Norms of windows.

    TVM's takes the mean of what lies inside for the sum of a window that hangs over (ceil_mode).
    """

    base = onnx_converter_map()["LpPool"]
    pools = True

    @classmethod
    def _padded_input(
        cls, bb: relax.BlockBuilder, data: relax.Expr, attr: dict, kernel: Sequence[int]
    ) -> tuple[relax.Expr, dict]:
        """Zeros behind for the windows that hang over, which then are windows like others."""
        data, attr = super()._padded_input(bb, data, attr, kernel)
        if not attr.get("ceil_mode", 0):
            return data, attr
        count = len(kernel)
        strides, dilations = (attr.get(name, [1] * count) for name in ("strides", "dilations"))
        pads = list(attr.get("pads", [0] * 2 * count))
        front, behind = pads[:count], pads[count:]
        rest: list[Size] = []
        for k, size in enumerate(sizes_of(data)[2:]):
            reach = (kernel[k] - 1) * dilations[k] + 1
            count_of_windows = windows(size, (front[k], behind[k]), strides[k], reach, True)
            spanned = rules.add(
                rules.multiply(count_of_windows, strides[k], "int64"), reach - strides[k], "int64"
            )
            inside = rules.add(size, front[k], "int64")
            rest.append(rules.maximum(rules.subtract(spanned, inside, "int64"), 0, "int64"))
        kept = {name: attr[name] for name in attr if name not in ("ceil_mode", "pads")}
        if all(isinstance(size, int) for size in rest):
            return data, {**kept, "pads": [*front, *rest]}
        return _padded(bb, data, list(front), rest, 0), kept


class MaxPoolValues(_Windows):
    """The largest of each window, without its place."""

    base = onnx_converter_map()["MaxPool"]
    pools = True

    @classmethod
    def _fill(cls, data: relax.Expr) -> float:
        return tirx.min_value(str(data.ty.dtype)).value


class AveragePool(_Windows):
    """Means of windows, over what is no padding unless the model says otherwise."""

    base = onnx_converter_map()["AveragePool"]
    pools = True

    @classmethod
    def _padded_input(
        cls, bb: relax.BlockBuilder, data: relax.Expr, attr: dict, kernel: Sequence[int]
    ) -> tuple[relax.Expr, dict]:
        """Zeros in front where windows are dilated: TVM counts their elements from the first one
        inside, whether or not an element lies there.
        """
        data, attr = super()._padded_input(bb, data, attr, kernel)
        count = len(kernel)
        pads, dilations = (attr.get(name, [0] * 2 * count) for name in ("pads", "dilations"))
        dilated = any(pad and each > 1 for pad, each in zip(pads, dilations, strict=False))
        if attr.get("count_include_pad", 0) or not dilated:
            return data, attr
        data = _padded(bb, data, list(pads[:count]), [0] * count, 0)
        return data, {**attr, "pads": [0] * count + list(pads[count:])}

    @classmethod
    def _share(
        cls, bb: relax.BlockBuilder, data: relax.Expr, attr: dict, plain: _Convert
    ) -> relax.Expr | None:
        """The share of each window that is no padding."""
        if attr.get("count_include_pad", 0):
            return None
        shape = relax.ShapeExpr([1, 1, *(wide(size) for size in sizes_of(data)[2:])])
        ones = bb.emit(relax.op.ones(shape, str(data.ty.dtype)))
        inside, kept = cls._padded_input(bb, ones, attr, attr["kernel_shape"])
        return bb.normalize(plain(bb, [inside], kept, []))


# MaxPool with indices, and MaxUnpool: windows over images, forward and back.
#
# TVM's MaxPool has no second output; its MaxUnpool takes no output shape of the run and reads the
# pads in the wrong order.


class MaxPool(MaxPoolValues):
    """The largest of each window, with the place of each where the model asks for it."""

    @classmethod
    def get_converter(cls, opset: int) -> Any:
        values_only = super().get_converter(opset)

        def convert(bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
            if attr["tvm_custom"]["num_outputs"] == 1:
                return values_only(bb, inputs, attr, params)
            return _with_indices(bb, inputs[0], attr)

        return convert


def _with_indices(bb: relax.BlockBuilder, data: relax.Expr, attr: dict) -> relax.Expr:
    """Values, and places in the flattened input, by rows or (``storage_order``) by columns."""
    sizes = sizes_of(data)
    kernel, count = list(attr["kernel_shape"]), len(attr["kernel_shape"])
    attr = padded_to_a_window(data, attr, kernel)
    padded, attr = explicit_padding(bb, data, attr, kernel)
    if padded is not data:
        raise FormError("it gives indices, and its auto_pad depends on symbolic sizes")
    strides = list(attr.get("strides", [1] * count))
    dilations = list(attr.get("dilations", [1] * count))
    pads = list(attr.get("pads", [0] * 2 * count))
    spatial, rounds_up = sizes[2:], bool(attr.get("ceil_mode", 0))
    new = [
        windows(spatial[k], (pads[k], pads[k + count]), strides[k], reach, rounds_up)
        for k, reach in enumerate((w - 1) * d + 1 for w, d in zip(kernel, dilations, strict=True))
    ]
    dtype, by_columns = str(data.ty.dtype), bool(attr.get("storage_order", 0))

    def flat(index: list, places: list) -> tirx.Expr:
        order = range(count - 1, -1, -1) if by_columns else range(count)
        place = tirx.Cast("int64", index[0] * sizes[1] + index[1])
        for k in order:
            place = place * spatial[k] + places[k]
        return place

    def body(read: Any, values: Any, indices: Any) -> None:
        with nested(*sizes[:2], *new) as index:
            best = local_array(1, "int64")
            best[0] = T.int64(-1)
            values[tuple(index)] = tirx.min_value(dtype)
            with nested(*kernel) as taps:
                places = [
                    index[2 + k] * strides[k] - pads[k] + taps[k] * dilations[k]
                    for k in range(count)
                ]
                inside = [
                    tirx.all(place >= 0, place < size)
                    for place, size in zip(places, spatial, strict=True)
                ]
                with T.If(tirx.all(*inside)), T.Then():
                    value = read[(*index[:2], *places)]
                    with T.If(tirx.any(best[0] < 0, value > values[tuple(index)])), T.Then():
                        values[tuple(index)] = value
                        best[0] = flat(index, places)
            indices[tuple(index)] = best[0]

    shape = [*sizes[:2], *new]
    return relax.Tuple(
        emit_loops(bb, "max_pool_indices", [data], [(shape, dtype), (shape, "int64")], body)
    )


def windows(size: Size, pads: tuple[int, int], stride: int, reach: int, rounds_up: bool) -> Size:
    """How many windows there are along an axis; rounded up, as far as they start inside."""

    def steps(room: int) -> Size:
        return rules.divide(rules.add(size, room, "int64"), stride, "int64")

    whole = sum(pads) - reach
    if not rounds_up:
        return rules.add(steps(whole), 1, "int64")
    last = rules.minimum(steps(whole + stride - 1), steps(pads[0] - 1), "int64")
    return rules.add(last, 1, "int64")


@takes_sizes(2)
class MaxUnpool(OnnxOpConverter):
    """Values at their places, zero elsewhere.

    Indices count in the tensor of the size that the window's attributes give; a given output
    shape has that tensor in its first corner.
    """

    @classmethod
    def _impl_v9(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, indices = inputs[0], inputs[1]
        sizes, dtype = sizes_of(data), str(data.ty.dtype)
        kernel, count = list(attr["kernel_shape"]), len(attr["kernel_shape"])
        strides, pads = attr.get("strides", [1] * count), attr.get("pads", [0] * 2 * count)
        plain = sizes[:2] + [
            (sizes[2 + k] - 1) * strides[k] + kernel[k] - pads[k] - pads[k + count]
            for k in range(count)
        ]
        given = inputs[2] if len(inputs) > 2 else None
        shape = plain if given is None else sizes_in_the_run(bb, given, params, "size")

        def body(values: Any, places: Any, written: Any) -> None:
            with nested(*shape) as index:
                written[tuple(index)] = tirx.const(0, dtype)
            with nested(*sizes) as index:
                rest = local_array(1, "int64")
                rest[0] = places[tuple(index)].astype("int64")
                found: list[tirx.Expr] = []
                left = rest[0]
                for size in reversed(plain[1:]):
                    found.insert(0, tirx.floormod(left, size))
                    left = tirx.floordiv(left, size)
                found.insert(0, left)
                inside = [
                    tirx.all(place >= 0, place < size)
                    for place, size in zip(found, shape, strict=True)
                ]
                with T.If(tirx.all(*inside)), T.Then():
                    written[tuple(found)] = values[tuple(index)]

        return emit_loops(bb, "max_unpool", [data, indices], [(shape, dtype)], body)[0]

"""``auto_pad`` SAME as numbers where sizes are known, else as padding that the run computes.

TVM rounds SAME_LOWER down, may pad by less than nothing, and takes no symbolic sizes.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, te, tirx, topi

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter, onnx_converter_map
from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of, text
from tvm_ext.onnx_frontend.converters.runtime_sizes import wide
from tvm_ext.onnx_frontend.sizes import scalar_rules as rules

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
    windows = rules.divide(rules.add(size, stride - 1, "int64"), stride, "int64")
    spanned = rules.add(rules.multiply(windows, stride, "int64"), reach - stride, "int64")
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
            raise FormError(
                f"its window of {kernel[k]} does not fit in axis {k + 2} of size {size}"
            )
        if short > 0 and attr.get("count_include_pad", 0) and opset >= _COUNTS_OWN_PADDING_ONLY:
            raise FormError(f"its window reaches beyond the padding of axis {k + 2}")
        pads[k + count] += max(short, 0)
    return {**{name: attr[name] for name in attr if name != "auto_pad"}, "pads": pads}


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
            data, kept = explicit_padding(bb, inputs[0], attr, kernel, cls._fill(inputs[0]))
            given = type(inputs)([data, *list(inputs)[1:]])
            result = plain(bb, given, kept, params)
            share = None if data is inputs[0] else cls._share(bb, inputs[0], attr, plain)
            return result if share is None else relax.op.divide(bb.normalize(result), share)

        return convert

    @classmethod
    def _fill(cls, data: relax.Expr) -> float:
        return 0

    @classmethod
    def _share(
        cls, bb: relax.BlockBuilder, data: relax.Expr, attr: dict, plain: _Convert
    ) -> relax.Expr | None:
        """What the result is divided by where the run pads ``data``."""
        return None


class Conv(_Windows):
    """Sums of products of windows."""

    base = onnx_converter_map()["Conv"]


class LpPool(_Windows):
    """Norms of windows."""

    base = onnx_converter_map()["LpPool"]


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
    def _share(
        cls, bb: relax.BlockBuilder, data: relax.Expr, attr: dict, plain: _Convert
    ) -> relax.Expr | None:
        """The share of each window that is no padding."""
        if attr.get("count_include_pad", 0):
            return None
        shape = relax.ShapeExpr([1, 1, *(wide(size) for size in sizes_of(data)[2:])])
        ones = bb.emit(relax.op.ones(shape, str(data.ty.dtype)))
        inside, kept = explicit_padding(bb, ones, attr, attr["kernel_shape"])
        return bb.normalize(plain(bb, [inside], kept, []))

"""Operators of com.microsoft that the default domain took over, or nearly has.

Exporters wrote them before the default domain had them. The forms are those of ONNX Runtime's
ContribOperators.md.
"""

import numpy as np
import onnx_ir as ir

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.onnx_frontend.microsoft.builder import Builder, stored

_Results = list[ir.Value | None]

# Each step of the elimination is some fifteen nodes.
_MOST_ROWS = 8

# Attributes of CausalConvWithState that ask for other layouts or more states.
_OTHER_LAYOUTS = (
    *("channels_last", "input_channel_offset", "input_channels"),
    *("state_length", "state_update_capacity", "state_window"),
)


def pad(b: Builder) -> _Results:
    """Pad, whose pads may be a matrix of one row."""
    mode, data, pads = b.attribute("mode", "constant"), b.input(0), b.input(1)
    filled = b.optional(2) if mode == "constant" else None
    if b.opset < 11:
        numbers = stored(pads, filled)
        if numbers is None or numbers[0] is None:
            raise NotApplicable(
                f"its pads or its value are computed, in a model of opset {b.opset}"
            )
        value = None if numbers[1] is None else float(numbers[1].reshape(-1)[0])
        widths = [int(width) for width in numbers[0].reshape(-1)]
        return [b.op("Pad", data, mode=mode, pads=widths, value=value)]
    if pads.shape is None or len(pads.shape) != 1:
        pads = b.op("Reshape", pads, b.constant(np.array([-1])))
    if filled is not None and (filled.shape is None or len(filled.shape) > 0):
        filled = b.op("Reshape", filled, b.constant(np.array([], np.int64)))
    return [b.op("Pad", data, pads, filled, mode=mode)]


def number_range(b: Builder) -> _Results:
    """Range, whose step may be left out and whose numbers may be tensors of one element."""
    start, limit, step = b.input(0), b.input(1), b.optional(2)
    if step is None:
        if start.dtype is None:
            raise NotApplicable("the type of its start is not known")
        step = b.constant(np.array(1, start.dtype.numpy()))
    return [b.op("Range", *(_scalar(b, value) for value in (start, limit, step)))]


def _scalar(b: Builder, value: ir.Value) -> ir.Value:
    if value.shape is not None and len(value.shape) == 0:
        return value
    return b.op("Reshape", value, b.constant(np.array([], np.int64)))


def expand_dims(b: Builder) -> _Results:
    """Unsqueeze along one axis."""
    numbers = stored(b.input(1))
    if numbers is None or numbers[0] is None:
        raise NotApplicable("its axis is computed")
    axis = int(numbers[0].reshape(-1)[0])
    if axis < 0 and b.opset < 11:
        raise NotApplicable(f"its axis is {axis}, in a model of opset {b.opset}")
    return [b.unsqueezed(b.input(0), axis)]


def gather_nd(b: Builder) -> _Results:
    """GatherND, whose indices may be of 32 bits."""
    return [b.op("GatherND", b.input(0), b.cast(b.input(1), ir.DataType.INT64))]


def grid_sample(b: Builder) -> _Results:
    """GridSample: opset 20 has other words for two of its modes."""
    mode = b.attribute("mode", "bilinear")
    if b.opset >= 20:
        mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    return [
        b.op(
            "GridSample",
            b.input(0),
            b.input(1),
            mode=mode,
            padding_mode=b.attribute("padding_mode", "zeros"),
            align_corners=b.attribute("align_corners", 0),
        )
    ]


def unique(b: Builder) -> _Results:
    """Unique in the order of the first places, with where each element went and the counts."""
    values, _, places, counts = b.ops("Unique", 4, [b.input(0)], {"sorted": 0})
    return [values, places, counts]


def matmul_integer16(b: Builder) -> _Results:
    """The product in 32 bits."""
    kinds = {b.input(index).dtype for index in (0, 1)}
    is_unsigned = kinds == {ir.DataType.UINT16}
    kind = ir.DataType.UINT32 if is_unsigned else ir.DataType.INT32
    return [b.op("MatMul", b.cast(b.input(0), kind), b.cast(b.input(1), kind))]


def causal_conv_with_state(b: Builder) -> _Results:
    """A convolution of each channel, which reads the elements that its state keeps of earlier runs.

    The state is the end of what was convolved, as long as the window reaches back.
    """
    given = [name for name in _OTHER_LAYOUTS if b.attribute(name, 0)]
    if b.opset < 11:
        given.append(f"opset {b.opset}")
    if b.attribute("ndim", 1) != 1 or b.attribute("state_channels_last", -1) > 0 or b.used(2):
        given.append("ndim, state_channels_last or the third output")
    if given:
        raise NotApplicable(", ".join(given))
    data, weight, past = b.input(0), b.input(1), b.optional(3)
    if weight.shape is None or not all(isinstance(size, int) for size in weight.shape):
        raise NotApplicable("the sizes of its weight are not known")
    channels, _, taps = (int(size) for size in weight.shape)
    dilation = b.attribute("dilation", 1)
    reach = (taps - 1) * dilation
    padded = _padded(b, data, reach) if past is None else b.op("Concat", past, data, axis=2)
    made = b.op("Conv", padded, weight, b.optional(2), group=channels, dilations=[dilation])
    if b.attribute("activation", "none") in ("silu", "swish"):
        made = b.op("Mul", made, b.op("Sigmoid", made))
    return [made, _last(b, padded, reach)]


def _padded(b: Builder, data: ir.Value, width: int) -> ir.Value:
    """With zeros before the last of three axes."""
    widths = [0, 0, width, 0, 0, 0]
    return b.op("Pad", data, b.constant(np.array(widths)))


def _last(b: Builder, data: ir.Value, width: int) -> ir.Value:
    """The last elements of the third axis."""
    start, end = (-width, np.iinfo(np.int64).max) if width else (0, 0)
    bounds = (b.constant(np.array([bound], np.int64)) for bound in (start, end, 2))
    return b.op("Slice", data, *bounds)


def inverse(b: Builder) -> _Results:
    """The inverse of small matrices, by Gauss-Jordan elimination with partial pivoting.

    Each step brings the row with the largest element of a column to its place, divides it by that
    element, and subtracts multiples of it from the other rows.
    """
    data = b.input(0)
    if data.shape is None or b.dtype is None:
        raise NotApplicable("rank or type of its input is not known")
    if b.opset < 11:
        raise NotApplicable(f"it is in a model of opset {b.opset}, expected 11 or later")
    rows = data.shape[-1]
    if not isinstance(rows, int) or not 1 <= rows <= _MOST_ROWS:
        raise NotApplicable(f"matrices of {rows} rows, expected {_MOST_ROWS} or fewer")
    identity = b.op("Expand", b.constant(np.eye(rows, dtype=b.dtype.numpy())), b.op("Shape", data))
    both = b.op("Concat", data, identity, axis=-1)
    for column in range(rows):
        both = _eliminated(b, both, rows, column)
    return [_columns(b, both, rows, 2 * rows)]


def _eliminated(b: Builder, both: ir.Value, rows: int, column: int) -> ir.Value:
    """After one step: ``column`` is that of the identity."""
    numbers = np.arange(rows).reshape(rows, 1)
    below = b.constant(numbers >= column)
    size = b.op("Abs", _columns(b, both, column, column + 1))
    size = b.op("Where", below, size, b.number(-1))
    pivot = b.op("ArgMax", size, axis=-2, keepdims=1)
    place, places = b.constant(np.array(column)), b.constant(numbers)
    order = b.op("Where", b.op("Equal", places, pivot), place, places)
    order = b.op("Where", b.constant(numbers == column), pivot, order)
    swapped = b.op("GatherElements", both, b.op("Expand", order, b.op("Shape", both)), axis=-2)
    row = b.op("Gather", swapped, b.constant(np.array([column])), axis=-2)
    row = b.op("Div", row, _columns(b, row, column, column + 1))
    factors = _columns(b, swapped, column, column + 1)
    reduced = b.op("Sub", swapped, b.op("Mul", factors, row))
    return b.op("Where", b.constant(numbers == column), row, reduced)


def _columns(b: Builder, data: ir.Value, first: int, end: int) -> ir.Value:
    bounds = (b.constant(np.array([bound], np.int64)) for bound in (first, end, -1))
    return b.op("Slice", data, *bounds)

"""Windows of tensors, crops of images and tokens that may not follow, of com.microsoft."""

import numpy as np
import onnx_ir as ir

from tvm_ext.configs.errors import NotApplicable
from tvm_ext.onnx_frontend.microsoft.builder import FAR, Builder, stored

_Results = list[ir.Value | None]
_FLOAT = ir.DataType.FLOAT
# The first operator set whose ScatterElements adds.
_ADDING_OPSET = 16


def unfold_tensor(b: Builder) -> _Results:
    """Windows along an axis, as PyTorch's ``unfold``: their elements become the last axis."""
    x = b.input(0)
    if x.shape is None:
        raise NotApplicable("the rank of its input is not known")
    axis, size, step = b.attribute("dim", -1), b.required("size"), b.attribute("step", 1)
    axis %= len(x.shape)
    extent = x.shape[axis]
    if not isinstance(extent, int) or extent < size:
        raise NotApplicable(f"windows of {size} along an axis of {extent}")
    places = np.arange(0, extent - size + 1, step)[:, None] + np.arange(size)
    windows = b.op("Gather", x, b.constant(places), axis=axis)
    axes = [place for place in range(len(x.shape) + 1) if place != axis + 1]
    return [b.op("Transpose", windows, perm=[*axes, axis + 1])]


def conv_transpose_with_dynamic_pads(b: Builder) -> _Results:
    """ConvTranspose, whose pads are an input."""
    numbers = stored(b.optional(2))
    if numbers is None:
        raise NotApplicable("its pads are computed")
    pads = None if numbers[0] is None else [int(n) for n in numbers[0].reshape(-1)]
    kept = {name: one.value for name, one in b.node.attributes.items() if name != "pads"}
    return [b.op("ConvTranspose", b.input(0), b.input(1), b.optional(3), pads=pads, **kept)]


def n_gram_repeat_block(b: Builder) -> _Results:
    """Scores of minus infinity for tokens that would repeat ``ngram_size`` tokens of the row."""
    tokens, scores = b.input(0), b.input(1)
    before = b.required("ngram_size") - 1
    if b.opset < _ADDING_OPSET:
        raise NotApplicable(f"it is in a model of opset {b.opset}, expected {_ADDING_OPSET}")
    followers = b.sliced(tokens, before, FAR, axis=1)
    same = b.op("Equal", followers, followers)
    for place in range(before):
        # As many starts as there are tokens behind; the last one is the end of the row itself.
        here = b.sliced(tokens, place, place - before, axis=1)
        last = b.sliced(tokens, place - before, place - before + 1 or FAR, axis=1)
        same = b.op("And", same, b.op("Equal", here, last))
    none = b.op("Expand", b.float32(0), b.op("Shape", scores))
    repeated = b.cast(same, _FLOAT)
    count = b.op("ScatterElements", none, followers, repeated, axis=1, reduction="add")
    found = b.op("Greater", count, b.float32(0))
    return [b.op("Where", found, b.number(-np.inf), scores)]


def crop_and_resize(b: Builder) -> _Results:
    """Rectangles of images, each in one size: products with two matrices of weights.

    The weights of a place between two rows of an image are its distances to them, and 0 for all
    other rows. Places outside of the image have a value of their own.
    """
    x, sizes = b.input(0), stored(b.input(3))
    if sizes is None or sizes[0] is None:
        raise NotApplicable("the size of its results is computed")
    images = b.op("Gather", x, b.input(2), axis=0)
    outside, weights = [], []
    for axis, count in enumerate(int(size) for size in sizes[0].reshape(-1)):
        places, beyond = _places(b, x, axis, count)
        outside.append(b.unsqueezed(beyond, 1, 3 - axis))
        weights.append(b.unsqueezed(_weights(b, x, axis, places), 1))
    made = b.op("MatMul", weights[0], images)
    made = b.op("MatMul", made, b.op("Transpose", weights[1], perm=[0, 1, 3, 2]))
    value = b.number(b.attribute("extrapolation_value", 0.0))
    return [b.op("Where", b.op("Or", *outside), value, made)]


def _places(b: Builder, x: ir.Value, axis: int, count: int) -> tuple[ir.Value, ir.Value]:
    """Where the results of each rectangle are read along an axis, and whether that is outside."""
    last = b.op("Sub", b.cast(b.size(x, 2 + axis), _FLOAT), b.number(1.0))
    first, end = (_column(b, axis + 2 * side) for side in range(2))
    if count > 1:
        steps = b.constant(np.arange(count, dtype=np.float32) / np.float32(count - 1))
        share = b.op("Add", first, b.op("Mul", b.op("Sub", end, first), steps))
    else:
        share = b.op("Mul", b.op("Add", first, end), b.number(0.5))
    places = b.op("Mul", share, last)
    below = b.op("Less", places, b.number(0.0))
    return places, b.op("Or", below, b.op("Greater", places, last))


def _column(b: Builder, place: int) -> ir.Value:
    return b.op("Gather", b.input(1), b.constant(np.array([place])), axis=1)


def _weights(b: Builder, x: ir.Value, axis: int, places: ir.Value) -> ir.Value:
    """``[rectangles, results, rows]``."""
    rows = b.cast(b.counted(b.size(x, 2 + axis)), _FLOAT)
    if b.attribute("mode", "bilinear") == "nearest":
        # Halves are rounded up; what is below 0 is outside.
        nearest = b.op("Floor", b.op("Add", b.unsqueezed(places, 2), b.number(0.5)))
        return b.cast(b.op("Equal", nearest, rows), _FLOAT)
    distance = b.op("Abs", b.op("Sub", b.unsqueezed(places, 2), rows))
    return b.op("Max", b.op("Sub", b.number(1.0), distance), b.number(0.0))

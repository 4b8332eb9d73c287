"""Draws ONNX operators that move, cut and slide over tensors, with random valid attributes."""

from typing import Any

import numpy as np
from graph_builder import GraphBuilder, NotApplicable, Value

_INT64 = np.int64


def _window(g: GraphBuilder, sizes: tuple[int, ...], dilated: bool) -> dict[str, Any]:
    """Kernel, strides, dilations and padding of any kind for a window over ``sizes``."""
    count = len(sizes)
    kernel = [g.pick((1, 3, 2, 3, 5)) for _ in range(count)]
    strides = [g.pick((1, 1, 2, 3)) for _ in range(count)]
    dilations = [g.pick((1, 1, 2)) if dilated else 1 for _ in range(count)]
    attributes: dict[str, Any] = {"kernel_shape": kernel}
    if g.chance():
        attributes["strides"] = strides
    if dilated and g.chance():
        attributes["dilations"] = dilations
    spans = [
        (k - 1) * d + 1
        for k, d in zip(kernel, attributes.get("dilations", [1] * count), strict=True)
    ]
    mode = g.pick(("none", "symmetric", "asymmetric", "SAME_UPPER", "SAME_LOWER", "VALID"))
    begin, end = [0] * count, [0] * count
    if mode == "symmetric":
        begin = end = [g.integer(0, k // 2) for k in kernel]
    elif mode == "asymmetric":
        begin = [g.integer(0, k - 1) for k in kernel]
        end = [g.integer(0, k - 1) for k in kernel]
    elif mode != "none":
        if max(attributes.get("dilations", [1])) > 1:
            raise NotApplicable  # ONNX Runtime does not know this combination
        attributes["auto_pad"] = mode
    if mode in ("symmetric", "asymmetric"):
        attributes["pads"] = [*begin, *end]
    if not mode.startswith("SAME"):
        for size, span, low, high in zip(sizes, spans, begin, end, strict=True):
            if size + low + high < span:
                raise NotApplicable
    return attributes


def conv(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank in (3, 4))
    channels = x.shape[1]
    group = g.pick([1, 1, channels, *(d for d in range(2, channels) if channels % d == 0)])
    out = group * g.pick((1, 2, 3, 4)) if group > 1 else g.pick((1, 3, 4, 8, 13, 16))
    attributes = _window(g, x.shape[2:], dilated=True)
    weight = g.weight((out, channels // group, *attributes["kernel_shape"]), 0.3)
    if group > 1 or g.chance():
        attributes["group"] = group
    if g.chance():
        del attributes["kernel_shape"]
    bias = [g.weight((out,))] if g.chance() else []
    g.add_float("Conv", [x, weight, *bias], **attributes)


def conv_block(g: GraphBuilder) -> None:
    """Convolution, normalisation and activation, with the input added when shapes allow."""
    conv(g)
    result = g.pool[-1]
    size = [result.shape[1]]
    if g.chance():
        stored = [g.weight(size), g.weight(size), g.weight(size), g.positive(size)]
        g.add_float("BatchNormalization", [result, *stored])
    if g.chance():
        g.add_float("Relu", [g.pool[-1]])
    same = [v for v in g.pool[:-1] if v.shape == g.pool[-1].shape]
    if same and g.chance():
        g.add_float("Add", [g.pool[-1], g.pick(same)])


def conv_transpose(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank in (3, 4))
    channels = x.shape[1]
    group = g.pick([1, 1, channels, *(d for d in range(2, channels) if channels % d == 0)])
    out = g.pick((1, 2, 3))
    count = x.rank - 2
    kernel = [g.pick((1, 2, 3, 4)) for _ in range(count)]
    strides = [g.pick((1, 2, 3)) for _ in range(count)]
    attributes: dict[str, Any] = {"strides": strides, "group": group}
    if g.chance(3):
        attributes["output_padding"] = [g.integer(0, s - 1) for s in strides]
    if g.chance():
        pads = [g.integer(0, (k - 1) // 2) for k in kernel]
        attributes["pads"] = [*pads, *(g.integer(0, p) for p in pads)]
    elif g.chance(4):
        attributes["dilations"] = [g.pick((1, 2)) for _ in range(count)]
    elif g.chance(4):
        attributes["auto_pad"] = g.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    bias = [g.weight((out * group,))] if g.chance() else []
    g.add_float("ConvTranspose", [x, g.weight((channels, out, *kernel)), *bias], **attributes)


def pool(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank in (3, 4))
    op = g.pick(("MaxPool", "AveragePool"))
    attributes = _window(g, x.shape[2:], dilated=op == "MaxPool")
    kernel = attributes["kernel_shape"]
    pads = attributes.get("pads", [])
    if any(pad >= size for pad, size in zip(pads, kernel * 2, strict=False)):
        raise NotApplicable
    # ONNX Runtime refuses negative padding; ONNX infers another size than it computes for VALID.
    strides = attributes.get("strides", [1] * len(kernel))
    same = attributes.get("auto_pad", "").startswith("SAME")
    if same and any(step > width for step, width in zip(strides, kernel, strict=True)):
        raise NotApplicable
    if g.chance() and attributes.get("auto_pad") != "VALID":
        attributes["ceil_mode"] = 1
        if _starts_behind(x.shape[2:], attributes):
            raise NotApplicable  # refused: ONNX infers a window more than there is
    if op == "AveragePool" and g.chance():
        attributes["count_include_pad"] = 1
    g.add_float(op, [x], **attributes)


def _starts_behind(sizes: tuple[int, ...], attributes: dict[str, Any]) -> bool:
    count = len(sizes)
    pads = attributes.get("pads", [0] * (2 * count))
    strides = attributes.get("strides", [1] * count)
    dilations = attributes.get("dilations", [1] * count)
    for axis, size in enumerate(sizes):
        reach = (attributes["kernel_shape"][axis] - 1) * dilations[axis] + 1
        steps = -(-(size + pads[axis] + pads[axis + count] - reach) // strides[axis])
        if steps * strides[axis] >= size + pads[axis]:
            return True
    return False


def global_pool(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank in (3, 4, 5))
    g.add_float(g.pick(("GlobalAveragePool", "GlobalMaxPool")), [x])


def resize(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank in (3, 4))
    mode = g.pick(("nearest", "linear"))
    transforms = ("asymmetric", "half_pixel", "align_corners", "pytorch_half_pixel")
    attributes = {"mode": mode, "coordinate_transformation_mode": g.pick(transforms)}
    if mode == "nearest":
        rounding = ("floor", "round_prefer_floor", "round_prefer_ceil", "ceil")
        attributes["nearest_mode"] = g.pick(rounding)
    aligned = attributes["coordinate_transformation_mode"] == "align_corners"
    if g.chance() and not aligned:
        # A half only of even sizes: TVM cannot scale to a size that is not whole.
        choices = [(2.0, 1.0, 3.0, 0.5 if size % 2 == 0 else 1.0) for size in x.shape[2:]]
        scales = [1.0, 1.0, *(g.pick(choice) for choice in choices)]
        g.add_float("Resize", [x, None, g.constant(scales, np.float32)], **attributes)
        return
    # A single aligned element is refused.
    smallest = 2 if aligned else 1
    sizes = [*x.shape[:2], *(g.integer(smallest, 9) for _ in x.shape[2:])]
    g.add_float("Resize", [x, None, None, g.constant(sizes, _INT64)], **attributes)


def concat(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank >= 1)
    axis = g.integer(0, x.rank - 1)

    def fits(v: Value) -> bool:
        return v.rank == x.rank and all(
            a == b for i, (a, b) in enumerate(zip(v.shape, x.shape, strict=True)) if i != axis
        )

    parts = [x] + [g.value(fits) for _ in range(g.integer(1, 2))]
    if g.chance(4):
        parts.append(g.weight(x.shape))
    g.add_float("Concat", parts, axis=axis if g.chance() else axis - x.rank)


def split(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank >= 1 and max(v.shape) >= 2)
    axis = g.pick([i for i, size in enumerate(x.shape) if size >= 2])
    cut = g.integer(1, x.shape[axis] - 1)
    sizes = g.constant([cut, x.shape[axis] - cut], _INT64)
    if x.shape[axis] % 2 == 0 and g.chance():
        count = {"num_outputs": 2} if g.opset >= 18 else {}
        g.pool.extend(g.add("Split", [x], 2, axis=axis, **count))
        return
    g.pool.extend(g.add("Split", [x, sizes], 2, axis=axis))


def cut_out(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank >= 1)
    axes = sorted(g.rng.sample(range(x.rank), g.integer(1, x.rank)))
    starts, ends, steps = [], [], []
    for axis in axes:
        size = x.shape[axis]
        first = g.integer(0, size - 1)
        last = g.pick((first + 1, size, 1 << 40))
        step = g.pick((1, 1, 2, 3))
        if g.chance(4):
            first, last, step = size - 1, g.pick((-size - 1, -(1 << 40))), -step
        elif g.chance(3):
            first, last = first - size, last if last > size else last - size or size
        starts.append(first), ends.append(last), steps.append(step)
    inputs = [x, *(g.constant(c, _INT64) for c in (starts, ends, axes, steps))]
    g.add_float("Slice", inputs)


def pad(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank >= 1)
    mode = g.pick(("constant", "edge", "reflect"))
    limits = [size - 1 if mode == "reflect" else 2 for size in x.shape]
    pads = [g.integer(0, min(2, limit)) if g.chance() else 0 for limit in limits * 2]
    if mode == "constant" and g.chance(5):
        pads[-1] = -g.integer(0, x.shape[-1] - 1)
    inputs = [x, g.constant(pads, _INT64)]
    if mode == "constant" and g.chance():
        inputs.append(g.constant(1.5, g.dtype))
    g.add_float("Pad", inputs, mode=mode)


def reshape(g: GraphBuilder) -> None:
    """To any factorisation, with a -1 or a 0 in place of a size."""
    x = g.value()
    rest, shape = int(np.prod(x.shape)), []
    for _ in range(g.integer(0, 3)):
        shape.append(g.pick([d for d in range(1, rest + 1) if rest % d == 0][:6]))
        rest //= shape[-1]
    shape.append(rest)
    if g.chance():
        shape[g.integer(0, len(shape) - 1)] = -1
    elif x.rank and shape[0] == x.shape[0]:
        shape[0] = 0
    g.add_float("Reshape", [x, g.constant(shape, _INT64)])


def transpose(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank >= 2)
    order = {} if g.chance(4) else {"perm": g.rng.sample(range(x.rank), x.rank)}
    g.add_float("Transpose", [x], **order)


def flatten(g: GraphBuilder) -> None:
    x = g.value()
    g.add_float("Flatten", [x], axis=g.integer(-x.rank, x.rank))


def squeeze(g: GraphBuilder) -> None:
    x = g.value(lambda v: 1 in v.shape)
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    if g.chance(4):
        g.add_float("Squeeze", [x])
        return
    axes = g.rng.sample(ones, g.integer(1, len(ones)))
    g.add_float(
        "Squeeze", [x, g.constant([a - x.rank if g.chance(3) else a for a in axes], _INT64)]
    )


def unsqueeze(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank <= 3)
    axes = g.rng.sample(range(x.rank + 2), 2) if g.chance(3) else [g.integer(-x.rank - 1, x.rank)]
    g.add_float("Unsqueeze", [x, g.constant(axes, _INT64)])


def gather(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank >= 1)
    axis = g.integer(0, x.rank - 1)
    shape = g.pick(((), (1,), (3,), (2, 2)))
    indices = g.numbers.integers(-x.shape[axis], x.shape[axis], shape)
    axis = axis - x.rank if g.chance(3) else axis
    g.add_float("Gather", [x, g.constant(indices, g.pick((_INT64, np.int32)))], axis=axis)


def expand(g: GraphBuilder) -> None:
    x = g.value()
    shape = [g.integer(2, 3) if size == 1 and g.chance() else size for size in x.shape]
    if x.rank < 4 and g.chance():
        shape.insert(0, 2)
    shape = [1 if g.chance(3) else size for size in shape]
    g.add_float("Expand", [x, g.constant(shape, _INT64)])


def tile(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank >= 1)
    g.add_float("Tile", [x, g.constant([g.pick((1, 2, 3)) for _ in x.shape], _INT64)])


def rearrange(g: GraphBuilder) -> None:
    x = g.value(lambda v: v.rank == 4)
    if x.shape[1] % 4 == 0:
        g.add_float("DepthToSpace", [x], blocksize=2, mode=g.pick(("DCR", "CRD")))
    elif x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0:
        g.add_float("SpaceToDepth", [x], blocksize=2)
    else:
        raise NotApplicable


SPATIAL = (
    conv, conv, conv_block, conv_block, conv_block, conv_transpose, pool, pool, global_pool,
    resize, concat, concat, split, cut_out, pad, reshape, transpose, transpose, flatten, squeeze,
    unsqueeze, gather, expand, tile, rearrange,
)  # fmt: skip

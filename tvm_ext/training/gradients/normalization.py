"""Gradients of layer, group, RMS and batch normalisation.

With ``n = (x - mean) / d`` and ``d`` the root of the variance and a little, the gradient by ``x``
is ``(h - mean(h) - n mean(h n)) / d`` for ``h``, the gradient times the scale: each mean is one of
the normalised axes. RMS normalisation has no mean.
"""

from collections.abc import Sequence

from tvm import relax
from tvm.relax import op

from tvm_ext.training.gradients.registration import dtype_of, gradient_of, number, sizes


def _normalized_gradient(
    bb: relax.BlockBuilder,
    x: relax.Expr,
    slope: relax.Expr,
    axes: list[int],
    epsilon: float,
    is_centered: bool,
) -> tuple[relax.Expr, relax.Expr]:
    """The gradient by ``x``, and the normalised ``x``; ``slope`` is the gradient by the latter."""
    centered = x
    if is_centered:
        centered = bb.emit(op.subtract(x, bb.emit(op.mean(x, axes, keepdims=True))))
    square = bb.emit(op.mean(bb.emit(op.multiply(centered, centered)), axes, keepdims=True))
    factor = bb.emit(op.rsqrt(bb.emit(op.add(square, number(epsilon, x)))))
    normal = bb.emit(op.multiply(centered, factor))
    along = bb.emit(op.mean(bb.emit(op.multiply(slope, normal)), axes, keepdims=True))
    rest = bb.emit(op.subtract(slope, bb.emit(op.multiply(normal, along))))
    if is_centered:
        rest = bb.emit(op.subtract(rest, bb.emit(op.mean(slope, axes, keepdims=True))))
    return bb.emit(op.multiply(rest, factor)), normal


def _summed(
    bb: relax.BlockBuilder, value: relax.Expr, axes: list[int], like: relax.Expr
) -> relax.Expr:
    """The sum over all axes but those of a weight, in its shape."""
    others = [axis for axis in range(len(sizes(value))) if axis not in axes]
    summed = bb.emit(op.sum(value, others)) if others else value
    return op.reshape(summed, sizes(like))


@gradient_of("nn.layer_norm")
def _layer_norm(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    x, scale, shift = call.args
    axes = sorted(int(axis) % len(sizes(x)) for axis in call.attrs.axes)
    wide = [size if axis in axes else 1 for axis, size in enumerate(sizes(x))]
    slope = bb.emit(op.multiply(given, bb.emit(op.reshape(scale, wide))))
    by_x, normal = _normalized_gradient(bb, x, slope, axes, float(call.attrs.epsilon), True)
    by_scale = _summed(bb, bb.emit(op.multiply(given, normal)), axes, scale)
    return [by_x, by_scale, _summed(bb, given, axes, shift)]


@gradient_of("nn.rms_norm")
def _rms_norm(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    x, scale = call.args
    axes = sorted(int(axis) % len(sizes(x)) for axis in call.attrs.axes)
    wide = [size if axis in axes else 1 for axis, size in enumerate(sizes(x))]
    slope = bb.emit(op.multiply(given, bb.emit(op.reshape(scale, wide))))
    by_x, normal = _normalized_gradient(bb, x, slope, axes, float(call.attrs.epsilon), False)
    return [by_x, _summed(bb, bb.emit(op.multiply(given, normal)), axes, scale)]


@gradient_of("nn.group_norm")
def _group_norm(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """As of a layer normalisation over each group, with a scale for each channel."""
    x, scale, shift = call.args
    shape, groups = sizes(x), int(call.attrs.num_groups)
    channel = int(call.attrs.channel_axis) % len(shape)
    axes = {channel, *(int(axis) % len(shape) for axis in call.attrs.axes)}
    # The axis of channels as one of groups and one of their channels.
    split = [*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :]]
    inner = [channel + 1, *sorted(axis + 1 for axis in axes if axis != channel)]
    wide = [size if axis in (channel, channel + 1) else 1 for axis, size in enumerate(split)]
    parts, slope = (bb.emit(op.reshape(value, split)) for value in (x, given))
    scaled = bb.emit(op.multiply(slope, bb.emit(op.reshape(scale, wide))))
    made, normal = _normalized_gradient(bb, parts, scaled, inner, float(call.attrs.epsilon), True)
    channels = [channel, channel + 1]
    by_scale = _summed(bb, bb.emit(op.multiply(slope, normal)), channels, scale)
    by_shift = _summed(bb, slope, channels, shift)
    return [op.reshape(made, shape), by_scale, by_shift]


@gradient_of("nn.batch_norm")
def _batch_norm(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """By data, scale, shift, mean and variance: of each channel two sums, and numbers of these."""
    x, scale, _, mean, variance = call.args
    rank, channel = len(sizes(x)), int(call.attrs.axis)
    wide = [sizes(scale)[0] if axis == channel else 1 for axis in range(rank)]
    others = [axis for axis in range(rank) if axis != channel]

    def along(value: relax.Expr) -> relax.Expr:
        return bb.emit(op.reshape(value, wide))

    slope = bb.emit(given[0])
    above = bb.emit(op.add(variance, number(float(call.attrs.epsilon), x)))
    factor = bb.emit(op.divide(number(1.0, x), bb.emit(op.sqrt(above))))
    centered = bb.emit(op.subtract(x, along(mean)))
    total = bb.emit(op.sum(slope, others))
    moment = bb.emit(op.sum(bb.emit(op.multiply(slope, centered)), others))
    by_scale = bb.emit(op.multiply(moment, factor))
    steep = factor
    if call.attrs.scale:
        steep = bb.emit(op.multiply(factor, scale))
    by_mean = bb.emit(op.negative(bb.emit(op.multiply(total, steep))))
    curved = bb.emit(op.divide(bb.emit(op.multiply(moment, steep)), above))
    by_variance = bb.emit(op.multiply(curved, number(-0.5, x)))
    return [op.multiply(slope, along(steep)), by_scale, total, by_mean, by_variance]


@gradient_of("variance")
def _variance(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """``2 (x - mean) / count``; TVM's divides and subtracts twice."""
    x = call.args[0]
    rank = len(sizes(x))
    axes = range(rank) if call.attrs.axis is None else call.attrs.axis
    axes = [int(axis) % rank for axis in axes]
    kept = [1 if axis in axes else size for axis, size in enumerate(sizes(x))]
    count = 1
    for axis in axes:
        count *= sizes(x)[axis]
    # The mean of the normalisation, which is then not computed again.
    mean = bb.emit(op.reshape(bb.emit(op.mean(x, axes)), kept))
    centered = bb.emit(op.subtract(x, mean))
    part = bb.emit(op.multiply(given, relax.const(2 / count, dtype_of(x))))
    return [op.multiply(centered, bb.emit(op.reshape(part, kept)))]

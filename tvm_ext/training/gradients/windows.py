"""Gradients of convolutions and pools, in forms that templates take.

The gradient by the data is a convolution with the weights turned around. The gradient by the
weights is a product over all positions. TVM's own write the first as a transposed convolution, and
know two axes only.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.relax import op

from tvm_ext.training.gradients.registration import dtype_of, gradient_of, sizes
from tvm_ext.training.gradients.shapes import spread

_CONVOLUTIONS = {1: op.nn.conv1d, 2: op.nn.conv2d, 3: op.nn.conv3d}


def _numbers(values: Any) -> list[int]:
    return [int(value) for value in values]


def _turned(bb: relax.BlockBuilder, weight: relax.Expr, groups: int) -> relax.Expr:
    """Weights [O, I / groups, taps] as [I, O / groups, taps], with the taps in reverse."""
    outputs, inputs, *taps = sizes(weight)
    kept = list(range(3, 3 + len(taps)))
    parts = bb.emit(op.reshape(weight, [groups, outputs // groups, inputs, *taps]))
    swapped = bb.emit(op.permute_dims(parts, [0, 2, 1, *kept]))
    turned: relax.Expr = bb.emit(op.reshape(swapped, [groups * inputs, outputs // groups, *taps]))
    for axis, width in enumerate(taps):
        if width > 1:
            turned = bb.emit(op.flip(turned, axis + 2))
    return turned


def by_data(
    bb: relax.BlockBuilder,
    given: relax.Expr,
    weight: relax.Expr,
    wanted: Sequence[int],
    attrs: Any,
) -> relax.Expr:
    """The gradient of a convolution by its data, whose sizes along the window are ``wanted``."""
    strides, taps, count = _numbers(attrs.strides), sizes(weight)[2:], len(wanted)
    turned = _turned(bb, weight, int(attrs.groups))
    convolution = _CONVOLUTIONS[count]
    if math.prod(taps) == 1 and not any(_numbers(attrs.padding)):
        # One tap: the zeros between are put in behind the product, not multiplied.
        made: relax.Expr = bb.emit(convolution(given, turned, groups=int(attrs.groups)))
        for axis in range(count):
            made = spread(bb, made, axis + 2, strides[axis], 0, wanted[axis])
        return made
    if max(strides) > 1 and max(_numbers(attrs.dilation)) == 1:
        return _by_phases(bb, given, turned, wanted, attrs)
    value: relax.Expr = given
    starts, before, behind = [], [], []
    for axis, (tap, apart) in enumerate(zip(taps, _numbers(attrs.dilation), strict=True)):
        length = (sizes(given)[axis + 2] - 1) * strides[axis] + 1
        value = spread(bb, value, axis + 2, strides[axis], 0, length)
        reach = (tap - 1) * apart
        front = reach - _numbers(attrs.padding)[axis]
        starts.append(max(-front, 0))
        before.append(max(front, 0))
        behind.append(max(wanted[axis] - length - front + reach, 0))
    options = {"dilation": _numbers(attrs.dilation), "groups": int(attrs.groups)}
    made = bb.emit(convolution(value, turned, padding=[*before, *behind], **options))
    if sizes(made)[2:] == list(wanted):
        return made
    axes = list(range(2, 2 + count))
    ends = [start + size for start, size in zip(starts, wanted, strict=True)]
    return bb.emit(op.strided_slice(made, axes, starts, ends))


def _by_phases(
    bb: relax.BlockBuilder,
    given: relax.Expr,
    turned: relax.Expr,
    wanted: Sequence[int],
    attrs: Any,
) -> relax.Expr:
    """The same without zeros between: elements a stride apart are read through the same taps.

    So there is a convolution for each place within the strides (Shi et al. 2016, arXiv 1609.05158).
    """
    strides, count = _numbers(attrs.strides), len(wanted)
    positions = [-(-size // stride) for size, stride in zip(wanted, strides, strict=True)]
    parts = [
        _phase(bb, given, turned, phase, positions, attrs)
        for phase in itertools.product(*map(range, strides))
    ]
    batch, channels = sizes(given)[0], sizes(turned)[0]
    whole = bb.emit(
        op.reshape(
            bb.emit(op.concat([bb.emit(op.expand_dims(one, 0)) for one in parts], 0)),
            [*strides, batch, channels, *positions],
        )
    )
    # Each phase goes behind its position.
    places = [axis for n in range(count) for axis in (count + 2 + n, n)]
    mixed = bb.emit(op.permute_dims(whole, [count, count + 1, *places]))
    spans = [number * stride for number, stride in zip(positions, strides, strict=True)]
    made: relax.Expr = bb.emit(op.reshape(mixed, [batch, channels, *spans]))
    if spans == list(wanted):
        return made
    return bb.emit(op.strided_slice(made, list(range(2, 2 + count)), [0] * count, list(wanted)))


def _phase(
    bb: relax.BlockBuilder,
    given: relax.Expr,
    turned: relax.Expr,
    phase: Sequence[int],
    positions: Sequence[int],
    attrs: Any,
) -> relax.Expr:
    """The gradient by the elements at one place within the strides."""
    count, groups = len(phase), int(attrs.groups)
    taps, strides = sizes(turned)[2:], _numbers(attrs.strides)
    first, starts, ends, before, behind = [], [], [], [], []
    for axis, place in enumerate(phase):
        reached = place + _numbers(attrs.padding)[axis]
        step, least = divmod(reached, strides[axis])
        number = len(range(least, taps[axis], strides[axis]))
        if not number:
            shape = [sizes(given)[0], sizes(turned)[0], *positions]
            return bb.emit(op.zeros(shape, dtype_of(given)))
        first.append((taps[axis] - 1 - least) % strides[axis])
        front, back = number - 1 - step, positions[axis] + step - sizes(given)[axis + 2]
        starts.append(max(-front, 0))
        ends.append(sizes(given)[axis + 2] - max(-back, 0))
        before.append(max(front, 0))
        behind.append(max(back, 0))
    axes = list(range(2, 2 + count))
    weight = bb.emit(op.strided_slice(turned, axes, first, taps, strides))
    value: relax.Expr = given
    if any(starts) or ends != sizes(given)[2:]:
        value = bb.emit(op.strided_slice(given, axes, starts, ends))
    padding = [*before, *behind]
    return bb.emit(_CONVOLUTIONS[count](value, weight, padding=padding, groups=groups))


def by_weight(
    bb: relax.BlockBuilder,
    given: relax.Expr,
    data: relax.Expr,
    wanted: Sequence[int],
    attrs: Any,
) -> relax.Expr:
    """The gradient of a convolution by its weights, of sizes ``wanted``."""
    strides, dilation = _numbers(attrs.strides), _numbers(attrs.dilation)
    groups, count = int(attrs.groups), len(wanted) - 2
    padding = _numbers(attrs.padding)
    if groups == 1:
        return _by_products(bb, given, data, wanted, attrs)

    def kernel(given: te.Tensor, data: te.Tensor) -> te.Tensor:
        padded = topi.nn.pad(data, [0, 0, *padding[:count]], [0, 0, *padding[count:]])
        steps = [te.reduce_axis((0, size), name=f"r{n}") for n, size in enumerate(given.shape[2:])]
        item = te.reduce_axis((0, data.shape[0]), name="n")
        first = wanted[0] // groups

        def value(o: tirx.Var, i: tirx.Var, *tap: tirx.Var) -> tirx.Expr:
            places = [
                step * stride + k * apart
                for step, stride, k, apart in zip(steps, strides, tap, dilation, strict=True)
            ]
            channel = i if groups == 1 else tirx.floordiv(o, first) * wanted[1] + i
            product = given(item, o, *steps) * padded(item, channel, *places)
            return te.sum(product, axis=[item, *steps])

        return te.compute(list(wanted), value, name="weight_gradient")

    return bb.emit_te(kernel, given, data, primfunc_name_hint="convolution_weight_gradient")


# Bytes of a copy of all windows, above which there is a product for each tap instead.
_MOST_BYTES = 1 << 26


def _by_products(
    bb: relax.BlockBuilder,
    given: relax.Expr,
    data: relax.Expr,
    wanted: Sequence[int],
    attrs: Any,
) -> relax.Expr:
    """``transposed gradient @ windows``: what each window reads is a row, channels innermost."""
    count, taps = len(wanted) - 2, list(wanted[2:])
    last = [0, *range(2, 2 + count), 1]
    padding = _numbers(attrs.padding)
    pixels = bb.emit(op.permute_dims(data, last))
    if any(padding):
        ends = zip(padding[:count], padding[count:], strict=True)
        widths = [0, 0, *(width for pair in ends for width in pair), 0, 0]
        pixels = bb.emit(op.nn.pad(pixels, widths))
    rows = bb.emit(op.reshape(bb.emit(op.permute_dims(given, last)), [-1, wanted[0]]))
    columns = bb.emit(op.permute_dims(rows, [1, 0]))
    places = list(itertools.product(*map(range, taps)))
    size = math.prod(sizes(rows)) // wanted[0] * wanted[1] * len(places) * 8
    groups = [places] if size <= _MOST_BYTES else [[place] for place in places]
    windows = [sizes(given)[0], *sizes(given)[2:]]
    parts = []
    for group in groups:
        read = _windows(
            bb, pixels, windows, group[0], taps if len(group) > 1 else [1] * count, attrs
        )
        read = bb.emit(op.reshape(read, [math.prod(windows), len(group) * wanted[1]]))
        parts.append(bb.emit(op.matmul(columns, read)))
    whole = bb.emit(op.concat(parts, 1)) if len(parts) > 1 else parts[0]
    whole = bb.emit(op.reshape(whole, [wanted[0], *taps, wanted[1]]))
    return bb.emit(op.permute_dims(whole, [0, count + 1, *range(1, count + 1)]))


def _windows(
    bb: relax.BlockBuilder,
    pixels: relax.Expr,
    windows: Sequence[int],
    first: Sequence[int],
    taps: Sequence[int],
    attrs: Any,
) -> relax.Expr:
    """The channels of each tap of each window, [items, windows, taps, channels]."""
    strides, dilation = _numbers(attrs.strides), _numbers(attrs.dilation)
    count = len(taps)

    def kernel(pixels: te.Tensor) -> te.Tensor:
        def value(item: tirx.Var, *place: tirx.Var) -> tirx.Expr:
            at = [
                place[n] * strides[n] + (place[count + n] + first[n]) * dilation[n]
                for n in range(count)
            ]
            return pixels(item, *at, place[-1])

        shape = [*windows, *taps, pixels.shape[-1]]
        return te.compute(shape, value, name="windows", tag="injective")

    return bb.emit_te(kernel, pixels, primfunc_name_hint="windows")


@gradient_of("nn.conv1d", "nn.conv2d", "nn.conv3d")
def _convolution(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    data, weight = call.args
    return [
        by_data(bb, given, weight, sizes(data)[2:], call.attrs),
        by_weight(bb, given, data, sizes(weight), call.attrs),
    ]


@gradient_of("nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose")
def _transposed(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """By the data: the convolution of which it is the transpose; by the weights: as of that."""
    data, weight = call.args
    attrs, count = call.attrs, len(sizes(data)) - 2
    convolution = _CONVOLUTIONS[count]
    groups = int(attrs.groups)
    made = bb.emit(
        convolution(
            given,
            weight,
            strides=_numbers(attrs.strides),
            padding=_numbers(attrs.padding),
            dilation=_numbers(attrs.dilation),
            groups=groups,
        )
    )
    # Outputs that only padding of the output made are read by no window.
    axes = list(range(2, 2 + count))
    if sizes(made) != sizes(data):
        made = bb.emit(op.strided_slice(made, axes, [0] * count, sizes(data)[2:]))
    # What was data is the gradient of the convolution's result, and the other way round.
    return [made, by_weight(bb, data, given, sizes(weight), attrs)]


# Pools. Positions that a window reads are found from the position itself, so that each element is
# written once: TVM's ``pool_grad`` compares each element with whole windows for each of them.


def _pool_axes(attrs: Any, data: relax.Expr) -> list[tuple[int, ...]]:
    """Window, stride, dilation and padding in front, along each axis."""
    count = len(sizes(data)) - 2
    padding = _numbers(attrs.padding)
    return list(
        zip(
            _numbers(attrs.pool_size),
            _numbers(attrs.strides),
            _numbers(attrs.dilation),
            padding[:count],
            strict=True,
        )
    )


@gradient_of("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")
def _max_pool(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """To the first largest element of each window."""
    data = call.args[0]
    axes, dtype = _pool_axes(call.attrs, data), dtype_of(given)
    first = bb.emit_te(
        lambda data, most: _first_largest(data, most, axes),
        data,
        y,
        primfunc_name_hint="first_largest",
    )

    def kernel(given: te.Tensor, first: te.Tensor) -> te.Tensor:
        def part(place: list[tirx.Expr], tap: tirx.Expr) -> tirx.Expr:
            chosen = first(*place) == tap.astype("int32")
            return tirx.Select(chosen, given(*place), tirx.const(0, given.dtype))

        return _gathered(sizes(data), sizes(y), axes, part, dtype)

    return [bb.emit_te(kernel, given, first, primfunc_name_hint="max_pool_gradient")]


def _first_largest(data: te.Tensor, most: te.Tensor, axes: Sequence[tuple[int, ...]]) -> te.Tensor:
    """The number of the first tap of each window that is its largest element."""
    taps = [te.reduce_axis((0, axis[0]), name=f"k{n}") for n, axis in enumerate(axes)]
    none = math.prod(axis[0] for axis in axes)

    def value(*place: tirx.Var) -> tirx.Expr:
        inside, at, tap = tirx.const(True, "bool"), list(place[:2]), tirx.const(0, "int64")
        for n, (window, stride, apart, front) in enumerate(axes):
            position = place[n + 2] * stride + taps[n] * apart - front
            inside = tirx.all(inside, position >= 0, position < data.shape[n + 2])
            at.append(tirx.max(tirx.min(position, data.shape[n + 2] - 1), 0))
            tap = tap * window + taps[n]
        found = tirx.all(inside, data(*at) == most(*place))
        return te.min(tirx.Select(found, tap.astype("int32"), tirx.const(none, "int32")), axis=taps)

    return te.compute(most.shape, value, name="first_largest")


def _gathered(
    shape: Sequence[int],
    windows: Sequence[int],
    axes: Sequence[tuple[int, ...]],
    part: Any,
    dtype: str,
) -> te.Tensor:
    """For each element the sum of ``part(window, tap)`` over the windows that read it."""
    counts = [window if apart > 1 else -(-window // stride) for window, stride, apart, _ in axes]
    turns = [te.reduce_axis((0, count), name=f"t{n}") for n, count in enumerate(counts)]

    def value(*place: tirx.Var) -> tirx.Expr:
        inside, at, number = tirx.const(True, "bool"), list(place[:2]), tirx.const(0, "int64")
        for n, (window, stride, apart, front) in enumerate(axes):
            moved = place[n + 2] + front
            # With taps next to each other, those that reach the element lie a stride apart.
            tap = turns[n] if apart > 1 else tirx.floormod(moved, stride) + turns[n] * stride
            distance = moved - tap * apart
            index = tirx.floordiv(distance, stride)
            fits = tirx.all(tap < window, distance >= 0, index < windows[n + 2])
            if apart > 1:
                fits = tirx.all(fits, tirx.floormod(distance, stride) == 0)
            inside = tirx.all(inside, fits)
            at.append(tirx.max(tirx.min(index, windows[n + 2] - 1), 0))
            number = number * window + tap
        chosen = tirx.Select(inside, part(at, number), tirx.const(0, dtype))
        return te.sum(chosen, axis=turns)

    return te.compute(list(shape), value, name="pool_gradient")


@gradient_of("nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
def _average_pool(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """An equal part to each element of a window."""
    data = call.args[0]
    axes = _pool_axes(call.attrs, data)
    lengths = _window_lengths(call.attrs, data, y, axes)

    def divided(given: te.Tensor) -> te.Tensor:
        def value(*place: tirx.Var) -> tirx.Expr:
            count = tirx.const(1, "int64")
            for n, length in enumerate(lengths):
                count = count * length(place[n + 2])
            return given(*place) / count.astype(given.dtype)

        return te.compute(given.shape, value, name="parts")

    def kernel(parts: te.Tensor) -> te.Tensor:
        return _gathered(
            sizes(data), sizes(y), axes, lambda place, tap: parts(*place), dtype_of(given)
        )

    parts = bb.emit_te(divided, given, primfunc_name_hint="pool_parts")
    return [bb.emit_te(kernel, parts, primfunc_name_hint="average_pool_gradient")]


def _window_lengths(
    attrs: Any, data: relax.Expr, y: relax.Expr, axes: Sequence[tuple[int, ...]]
) -> list[Any]:
    """For each axis, how many elements the window of a place counts."""
    padding, count = _numbers(attrs.padding), len(axes)
    included = bool(attrs.count_include_pad)

    def of_axis(n: int) -> Any:
        window, stride, apart, front = axes[n]
        size = sizes(data)[n + 2]
        low, high = (-front, size + padding[count + n]) if included else (0, size)

        def length(place: tirx.Expr) -> tirx.Expr:
            total: tirx.Expr = tirx.const(0, "int64")
            for tap in range(window):
                position = place * stride + tap * apart - front
                inside = tirx.all(position >= low, position < high)
                total = total + tirx.Select(inside, tirx.const(1, "int64"), tirx.const(0, "int64"))
            return total

        return length

    return [of_axis(n) for n in range(count)]

"""Gradients of convolutions and pools, in forms that templates take.

The gradient by the data is a convolution with the weights turned around. The gradient by the
weights is a product over all positions. TVM's own write the first as a transposed convolution, and
know two axes only.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class _Layout:
    """Whether channels lie behind the windows' axes, and where the first of these is."""

    count: int
    channels_last: bool

    @property
    def axes(self) -> list[int]:
        """The axes of windows."""
        first = 1 if self.channels_last else 2
        return list(range(first, first + self.count))

    def shape(self, items: int, channels: int, windows: Sequence[int]) -> list[int]:
        """In its order."""
        if self.channels_last:
            return [items, *windows, channels]
        return [items, channels, *windows]

    def from_channels_first(self, bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
        """An array of this layout."""
        if not self.channels_last:
            return value
        return bb.emit(op.permute_dims(value, [0, *range(2, 2 + self.count), 1]))

    def to_channels_first(self, bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
        """An array with channels first."""
        if not self.channels_last:
            return value
        return bb.emit(op.permute_dims(value, [0, self.count + 1, *range(1, self.count + 1)]))

    def convolved(
        self, bb: relax.BlockBuilder, value: relax.Expr, weight: relax.Expr, **options: Any
    ) -> relax.Expr:
        """A convolution with weights [O, I, taps]."""
        if self.channels_last:
            windows = "DHW"[-self.count :] if self.count > 1 else "W"
            order = [*range(2, 2 + self.count), 1, 0]
            weight = bb.emit(op.permute_dims(weight, order))
            options |= {"data_layout": f"N{windows}C", "kernel_layout": f"{windows}IO"}
        return bb.emit(_CONVOLUTIONS[self.count](value, weight, **options))


def by_data(
    bb: relax.BlockBuilder,
    given: relax.Expr,
    weight: relax.Expr,
    wanted: Sequence[int],
    attrs: Any,
) -> relax.Expr:
    """The gradient of a convolution by its data, whose sizes along the window are ``wanted``.

    Channels lie last, as in the gradient by the weights, where they are in one group.
    """
    layout = _Layout(len(wanted), channels_last=int(attrs.groups) == 1)
    turned = _turned(bb, weight, int(attrs.groups))
    moved = layout.from_channels_first(bb, given)
    return layout.to_channels_first(bb, _by_data(bb, moved, turned, wanted, attrs, layout))


def _by_data(
    bb: relax.BlockBuilder,
    given: relax.Expr,
    turned: relax.Expr,
    wanted: Sequence[int],
    attrs: Any,
    layout: _Layout,
) -> relax.Expr:
    strides, taps, groups = _numbers(attrs.strides), sizes(turned)[2:], int(attrs.groups)
    if math.prod(taps) == 1 and not any(_numbers(attrs.padding)):
        # One tap: the zeros between are put in behind the product, not multiplied.
        made: relax.Expr = layout.convolved(bb, given, turned, groups=groups)
        for axis, stride, size in zip(layout.axes, strides, wanted, strict=True):
            made = spread(bb, made, axis, stride, 0, size)
        return made
    if max(strides) > 1 and max(_numbers(attrs.dilation)) == 1:
        return _by_phases(bb, given, turned, wanted, attrs, layout)
    value: relax.Expr = given
    starts, before, behind = [], [], []
    for n, (tap, apart) in enumerate(zip(taps, _numbers(attrs.dilation), strict=True)):
        axis = layout.axes[n]
        length = (sizes(given)[axis] - 1) * strides[n] + 1
        value = spread(bb, value, axis, strides[n], 0, length)
        reach = (tap - 1) * apart
        front = reach - _numbers(attrs.padding)[n]
        starts.append(max(-front, 0))
        before.append(max(front, 0))
        behind.append(max(wanted[n] - length - front + reach, 0))
    options = {"dilation": _numbers(attrs.dilation), "groups": groups}
    made = layout.convolved(bb, value, turned, padding=[*before, *behind], **options)
    if [sizes(made)[axis] for axis in layout.axes] == list(wanted):
        return made
    ends = [start + size for start, size in zip(starts, wanted, strict=True)]
    return bb.emit(op.strided_slice(made, layout.axes, starts, ends))


def _by_phases(
    bb: relax.BlockBuilder,
    given: relax.Expr,
    turned: relax.Expr,
    wanted: Sequence[int],
    attrs: Any,
    layout: _Layout,
) -> relax.Expr:
    """The same without zeros between: elements a stride apart are read through the same taps.

    So there is a convolution for each place within the strides (Shi et al. 2016, arXiv 1609.05158).
    """
    strides, count = _numbers(attrs.strides), len(wanted)
    positions = [-(-size // stride) for size, stride in zip(wanted, strides, strict=True)]
    parts = [
        _phase(bb, given, turned, phase, positions, attrs, layout)
        for phase in itertools.product(*map(range, strides))
    ]
    batch, channels = sizes(given)[0], sizes(turned)[0]
    whole = bb.emit(
        op.reshape(
            bb.emit(op.concat([bb.emit(op.expand_dims(one, 0)) for one in parts], 0)),
            [*strides, *layout.shape(batch, channels, positions)],
        )
    )
    # Each phase goes behind its position.
    order = [count]
    for axis in range(1, count + 2):
        order.append(count + axis)
        if axis in layout.axes:
            order.append(axis - layout.axes[0])
    mixed = bb.emit(op.permute_dims(whole, order))
    spans = [number * stride for number, stride in zip(positions, strides, strict=True)]
    made: relax.Expr = bb.emit(op.reshape(mixed, layout.shape(batch, channels, spans)))
    if spans == list(wanted):
        return made
    return bb.emit(op.strided_slice(made, layout.axes, [0] * count, list(wanted)))


def _phase(
    bb: relax.BlockBuilder,
    given: relax.Expr,
    turned: relax.Expr,
    phase: Sequence[int],
    positions: Sequence[int],
    attrs: Any,
    layout: _Layout,
) -> relax.Expr:
    """The gradient by the elements at one place within the strides."""
    count, groups = len(phase), int(attrs.groups)
    taps, strides = sizes(turned)[2:], _numbers(attrs.strides)
    windows = [sizes(given)[axis] for axis in layout.axes]
    first, starts, ends, before, behind = [], [], [], [], []
    for axis, place in enumerate(phase):
        reached = place + _numbers(attrs.padding)[axis]
        step, least = divmod(reached, strides[axis])
        number = len(range(least, taps[axis], strides[axis]))
        if not number:
            shape = layout.shape(sizes(given)[0], sizes(turned)[0], positions)
            return bb.emit(op.zeros(shape, dtype_of(given)))
        first.append((taps[axis] - 1 - least) % strides[axis])
        front, back = number - 1 - step, positions[axis] + step - windows[axis]
        starts.append(max(-front, 0))
        ends.append(windows[axis] - max(-back, 0))
        before.append(max(front, 0))
        behind.append(max(back, 0))
    weight = bb.emit(op.strided_slice(turned, list(range(2, 2 + count)), first, taps, strides))
    value: relax.Expr = given
    if any(starts) or ends != windows:
        value = bb.emit(op.strided_slice(given, layout.axes, starts, ends))
    return layout.convolved(bb, value, weight, padding=[*before, *behind], groups=groups)


def by_weight(
    bb: relax.BlockBuilder,
    given: relax.Expr,
    data: relax.Expr,
    wanted: Sequence[int],
    attrs: Any,
) -> relax.Expr:
    """The gradient of a convolution by its weights, of sizes ``wanted``."""
    count = len(wanted) - 2
    if int(attrs.groups) > 1:
        return bb.emit_te(
            lambda given, data: _grouped_by_weight(given, data, wanted, attrs),
            given,
            data,
            primfunc_name_hint="convolution_weight_gradient",
        )
    layout = _Layout(count, channels_last=True)
    pixels, slopes = (layout.from_channels_first(bb, one) for one in (data, given))
    # Vectors run along the innermost axis.
    inputs_last = wanted[1] > wanted[0]
    made = bb.emit_te(
        lambda given, data: _dense_by_weight(given, data, wanted, attrs, inputs_last),
        slopes,
        pixels,
        primfunc_name_hint="convolution_weight_gradient",
    )
    taps = range(count)
    order = [0, count + 1, *(1 + n for n in taps)] if inputs_last else [count + 1, count, *taps]
    return bb.emit(op.permute_dims(made, order))


def _dense_by_weight(
    given: te.Tensor, data: te.Tensor, wanted: Sequence[int], attrs: Any, inputs_last: bool
) -> te.Tensor:
    """Sums over all positions, as [taps, I, O] or [O, taps, I]; operands have channels last."""
    padding, count = _numbers(attrs.padding), len(wanted) - 2
    padded = topi.nn.pad(data, [0, *padding[:count], 0], [0, *padding[count:], 0])
    item = te.reduce_axis((0, data.shape[0]), name="n")
    steps = [te.reduce_axis((0, size), name=f"r{n}") for n, size in enumerate(given.shape[1:-1])]

    def value(*place: tirx.Var) -> tirx.Expr:
        if inputs_last:
            o, *taps, i = place
        else:
            *taps, i, o = place
        product = given(item, *steps, o) * padded(item, *_read_by(steps, taps, attrs), i)
        return te.sum(product, axis=[item, *steps])

    outputs, inputs, *taps = wanted
    shape = [outputs, *taps, inputs] if inputs_last else [*taps, inputs, outputs]
    return te.compute(shape, value, name="weight_gradient")


def _grouped_by_weight(
    given: te.Tensor, data: te.Tensor, wanted: Sequence[int], attrs: Any
) -> te.Tensor:
    """The same for a convolution in groups, with channels first."""
    padding, count = _numbers(attrs.padding), len(wanted) - 2
    padded = topi.nn.pad(data, [0, 0, *padding[:count]], [0, 0, *padding[count:]])
    item = te.reduce_axis((0, data.shape[0]), name="n")
    steps = [te.reduce_axis((0, size), name=f"r{n}") for n, size in enumerate(given.shape[2:])]
    first = wanted[0] // int(attrs.groups)

    def value(o: tirx.Var, i: tirx.Var, *taps: tirx.Var) -> tirx.Expr:
        channel = tirx.floordiv(o, first) * wanted[1] + i
        product = given(item, o, *steps) * padded(item, channel, *_read_by(steps, taps, attrs))
        return te.sum(product, axis=[item, *steps])

    return te.compute(list(wanted), value, name="weight_gradient")


def _read_by(steps: Sequence[tirx.Expr], taps: Sequence[tirx.Expr], attrs: Any) -> list[tirx.Expr]:
    """Where in the padded data the taps of a window lie."""
    strides, dilation = _numbers(attrs.strides), _numbers(attrs.dilation)
    return [
        step * stride + tap * apart
        for step, stride, tap, apart in zip(steps, strides, taps, dilation, strict=True)
    ]


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

"""Slice on sizes and by bounds, axes and steps that only the run may know.

TVM's converter gives a negative size where the end lies before the start, so that an allocation
fails, takes no bounds beyond 32 bits, and reverses an axis of a loop's result wrongly. Bounds
that are computed in the run take all sizes away from its result.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import (
    Size,
    constant_array,
    sizes_of,
    takes_sizes,
)
from tvm_ext.onnx_frontend.converters.runtime_sizes import (
    computed_dimensions,
    integer_tensor,
    static_sizes,
    vector_length,
    wide,
)
from tvm_ext.onnx_frontend.converters.shape_constraints import equal_sizes
from tvm_ext.onnx_frontend.sizes import SizeValues
from tvm_ext.onnx_frontend.sizes.quasi_affine import shortened
from tvm_ext.onnx_frontend.sizes.scalar_rules import (
    LARGEST_SIZE,
    add,
    analyzer_of,
    divide,
    is_positive,
    maximum,
    minimum,
    subtract,
)
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter

# Behind every tensor that fits into memory, and a bound that TVM takes.
_FAR = (1 << 31) - 2


@takes_sizes(1, 2)
class Slice(OnnxOpConverter):
    """One axis after the other; all at once where axes or steps are computed in the run."""

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
        data, *bounds = _counted(bb, inputs, params)
        bounds += [None] * (4 - len(bounds))
        starts, ends, axes, steps = (
            None if value is None else _bounds(value, params) for value in bounds
        )
        if starts is None or ends is None:
            raise FormError("the number of its starts is not known")
        axes = list(range(len(starts))) if bounds[2] is None else axes
        steps = [1] * len(starts) if bounds[3] is None else steps
        if axes is None or steps is None or None in axes or None in steps:
            return _of_the_run(bb, data, bounds, axes)
        kept = []
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            axis, step = axes[number] % len(sizes_of(data)), _clamped(steps[number])
            if step == 0:
                raise FormError("it has a step of 0, expected another one")
            if start is None or end is None:
                bound = [integer_tensor(bb, each) for each in bounds[:2]]
                data = _axis_of_the_run(bb, data, axis, bound, number, step)
                continue
            size = sizes_of(data)[axis]
            first, last = _places(start, end, step, size)
            if step == 1 and equal_sizes(first, 0) and equal_sizes(last, size):
                continue
            if step == -1 and equal_sizes(first, size - 1) and equal_sizes(last, -1):
                data = bb.emit(relax.op.flip(data, axis))
            elif all(isinstance(each, int) for each in (first, last, size)):
                kept.append((axis, *_inside_numbers(first, last, step, size)))
            else:
                data = _symbolic_axis(bb, data, axis, first, last, step)
        if not kept:
            return data
        return relax.op.strided_slice(data, *(list(each) for each in zip(*kept, strict=True)))


def _bounds(value: Any, params: Any) -> list[Any] | None:
    """The elements of an input, None among them for what only the run knows."""
    if isinstance(value, SizeValues):
        return value.listed()
    stored = constant_array(value, params)
    if stored is not None:
        return [int(number) for number in np.atleast_1d(stored)]
    sizes = static_sizes(value)
    return None if sizes is None or len(sizes) != 1 else [None] * sizes[0]


def _counted(bb: relax.BlockBuilder, inputs: Any, params: Any) -> Any:
    """The inputs with as many starts, ends, axes and steps as any of them is known to have.

    Where the run alone knows the number, what lacks to one for every axis is filled up.
    """
    given = {place: inputs[place] for place in range(1, 5) if _is_given(inputs, place)}
    found = {place: _bounds(value, params) for place, value in given.items()}
    unknown = [place for place, values in found.items() if values is None]
    known = {len(values) for values in found.values() if values is not None}
    if len(known) > 1:
        counts = " and ".join(map(str, sorted(known)))
        raise FormError(f"it has {counts} starts, ends, axes or steps, expected as many of each")
    if any(given[place].ty.ndim != 1 for place in unknown) or (not known and 3 in given):
        return inputs
    counted, rank = list(inputs), inputs[0].ty.ndim
    for place in unknown:
        tensor = integer_tensor(bb, given[place])
        if known:
            counted[place] = bb.match_cast(tensor, relax.TensorType([*known], "int64"))
        else:
            counted[place] = _filled_up(bb, tensor, rank, {1: 0, 2: _FAR, 4: 1}[place])
    return type(inputs)(counted)


def _filled_up(bb: relax.BlockBuilder, values: relax.Expr, count: int, fill: int) -> relax.Expr:
    """int64[count]: the values, then ``fill``."""
    values = bb.match_cast(values, relax.TensorType([tirx.Var("given", "int64")], "int64"))

    def kernel(values: te.Tensor) -> te.Tensor:
        def read(place: tirx.Var) -> tirx.Expr:
            is_given = wide(place) < wide(values.shape[0])
            return tirx.if_then_else(is_given, values[place], wide(fill))

        return te.compute((count,), read, name="filled")

    return bb.emit_te(kernel, values, primfunc_name_hint="filled")


def _clamped(number: int) -> int:
    """A number that TVM takes, and that means the same to an axis."""
    return max(-_FAR, min(_FAR, number))


def _places(start: Size, end: Size, step: int, size: Size) -> tuple[Size, Size]:
    """The first element of a slice along an axis of this size, and the place behind its last one.

    A slice backward ends in front of the axis, at -1, at most.
    """
    least, most = (0, size) if step > 0 else (-1, subtract(size, 1, "int64"))
    first = maximum(_from_front(start, size), 0, "int64")
    if step > 0 and isinstance(end, int) and end >= LARGEST_SIZE:
        return minimum(first, most, "int64"), size
    last = maximum(_from_front(end, size), least, "int64")
    return minimum(first, most, "int64"), minimum(last, most, "int64")


def _from_front(bound: Size, size: Size) -> Size:
    """A bound that counts from the end where it is negative, counted from the front."""
    if isinstance(bound, int):
        bound = _clamped(bound)
        return bound if bound >= 0 else add(size, bound, "int64")
    if is_positive(bound, 0):
        return bound
    return tirx.Select(bound < 0, wide(add(size, bound, "int64")), bound)


def _inside_numbers(first: int, last: int, step: int, size: int) -> tuple[int, int, int]:
    """Places as bounds and a step of TVM's: none that it would clip in another way."""
    if (last - first) * step <= 0:
        return 0, 0, 1
    return first, last if last >= 0 else -size - 1, step


def _symbolic_axis(
    bb: relax.BlockBuilder, data: relax.Expr, axis: int, first: Size, last: Size, step: int
) -> relax.Expr:
    """A slice between places that are expressions.

    TVM's operator would clip the bounds with its own largest number in the size of the result,
    where "all" is then no more the size that it had.
    """
    if step < 0:
        span = maximum(0, subtract(first, last, "int64"), "int64")
        length = divide(add(span, -step - 1, "int64"), -step, "int64")
        return _strided_kernel(bb, data, axis, first, length, step)
    last = wide(maximum(first, last, "int64"))
    analyzer = analyzer_of(first, last)
    length = analyzer.simplify(last - first)
    # Without its first element a list of n + 1 has n, however the bounds were clipped.
    plain = shortened(length)
    if len(str(plain)) < len(str(length)):
        last = first + plain
    bounds = [[analyzer.simplify(wide(each))] for each in (first, last, step)]
    return bb.emit(relax.op.strided_slice(data, [axis], *bounds, assume_inbound=True))


def _axis_of_the_run(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    axis: int,
    bounds: list[relax.Expr],
    number: int,
    step: int,
) -> relax.Expr:
    """A slice by bounds that only the run knows."""
    size = sizes_of(data)[axis]

    def formula(starts: te.Tensor, ends: te.Tensor, size: Any) -> list[tirx.Expr]:
        return _first_and_length(starts[number], ends[number], wide(step), wide(size))

    first, length = computed_dimensions(bb, ["first", "sliced"], formula, *bounds, size)
    return _strided_kernel(bb, data, axis, first, length, step)


def _of_the_run(
    bb: relax.BlockBuilder, data: relax.Expr, bounds: Sequence[Any], axes: list[int | None] | None
) -> relax.Expr:
    """A slice whose axes or steps only the run knows."""
    sizes = sizes_of(data)
    rank = len(sizes)
    tensors = [integer_tensor(bb, value) for value in bounds if value is not None]
    count = vector_length(tensors[0], "starts")
    known = [axis % rank for axis in axes if axis is not None] if axes is not None else []
    touched = known if len(known) == count else list(range(rank))

    def spans(sizes: Sequence[Any], tensors: Sequence[te.Tensor]) -> list[list[tirx.Expr]]:
        """First element, length and step of each axis that is touched."""
        given = iter(tensors)
        listed: list[Any] = [None if each is None else next(given) for each in bounds]
        starts, ends, places, steps = listed
        found = []
        for axis in touched:
            start, end, step = wide(0), wide(sizes[axis]), wide(1)
            for number in range(count):
                place = wide(number) if places is None else places[number]
                here = tirx.any(place == axis, place == axis - rank)
                start = tirx.Select(here, starts[number], start)
                end = tirx.Select(here, ends[number], end)
                if steps is not None:
                    step = tirx.Select(here, _within(steps[number], -_FAR, _FAR), step)
            found.append([*_first_and_length(start, end, step, wide(sizes[axis])), step])
        return found

    def lengths(*arguments: Any) -> list[tirx.Expr]:
        return [length for _, length, _ in spans(arguments[:rank], arguments[rank:])]

    names = [f"sliced_{axis}" for axis in touched]
    shape = list(sizes)
    for axis, length in zip(
        touched, computed_dimensions(bb, names, lengths, *sizes, *tensors), strict=True
    ):
        shape[axis] = length

    def kernel(data: te.Tensor, tensors: list[te.Tensor], shape: list[Any]) -> te.Tensor:
        found = dict(zip(touched, spans(data.shape, tensors), strict=True))

        def read(*index: tirx.Var) -> tirx.Expr:
            places = list(index)
            for axis, (first, _, step) in found.items():
                places[axis] = first + index[axis] * step
            return data(*places)

        return te.compute(shape, read, name="slice")

    return bb.emit_te(kernel, data, tensors, shape, primfunc_name_hint="slice")


def _first_and_length(
    start: tirx.Expr, end: tirx.Expr, step: tirx.Expr, size: tirx.Expr
) -> list[tirx.Expr]:
    """As ``_places``, of bounds and a step of the run; a step of 0 counts as 1.

    Nothing is added to a bound before it is known to be in reach: it may have all of 64 bits.
    """
    backward = step < 0
    least = tirx.Select(backward, wide(-1), wide(0))
    most = tirx.Select(backward, size - 1, size)
    first, last = (
        tirx.Select(bound < 0, tirx.max(bound, -size - 1) + size, bound) for bound in (start, end)
    )
    first, last = tirx.min(tirx.max(first, wide(0)), most), _within(last, least, most)
    span = tirx.max(tirx.Select(backward, first - last, last - first), wide(0))
    width = tirx.max(tirx.Select(backward, -step, step), wide(1))
    return [first, tirx.floordiv(span + width - 1, width)]


def _within(value: tirx.Expr, least: Any, most: Any) -> tirx.Expr:
    return tirx.max(tirx.min(value, most), least)


def _strided_kernel(
    bb: relax.BlockBuilder, data: relax.Expr, axis: int, first: Size, length: Size, step: int
) -> relax.Expr:
    """``length`` elements of an axis from ``first`` on, ``step`` apart."""

    def kernel(data: te.Tensor, first: Any, length: Any) -> te.Tensor:
        shape = [length if place == axis else extent for place, extent in enumerate(data.shape)]

        def read(*index: tirx.Var) -> tirx.Expr:
            return data(*index[:axis], first + index[axis] * step, *index[axis + 1 :])

        return te.compute(shape, read, name="slice")

    return bb.emit_te(kernel, data, first, length, primfunc_name_hint="slice")


def _is_given(inputs: Any, position: int) -> bool:
    return len(list(inputs)) > position and inputs[position] is not None

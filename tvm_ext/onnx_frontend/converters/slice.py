"""Slice on sizes and by bounds that are known only in the run.

TVM's converter gives a negative size where the end lies before the start, so that an allocation
fails, takes no bounds beyond 32 bits, and reverses an axis of a loop's result wrongly. Bounds that
are computed in the run take all sizes away from its result.
"""

from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_ext.hardware.tvm_compat import OnnxSlice
from tvm_ext.onnx_frontend.converters.arguments import Size, constant_array, sizes_of
from tvm_ext.onnx_frontend.converters.runtime_sizes import (
    computed_dimensions,
    integer_tensor,
    static_sizes,
    wide,
)
from tvm_ext.onnx_frontend.converters.traits import takes_sizes
from tvm_ext.onnx_frontend.sizes import SizeValues
from tvm_ext.onnx_frontend.sizes.scalar_rules import analyzer_of, is_positive, maximum, minimum

# Behind every tensor that fits into memory, and a bound that TVM takes.
_FAR = (1 << 31) - 2


@takes_sizes(1, 2)
class Slice(OnnxSlice):
    """One axis after the other; TVM's where axes or steps are computed in the run."""

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
        starts, ends = (_bounds(value, params) for value in inputs[1:3])
        axes, steps = (
            constant_array(inputs[place], params) if len(inputs) > place else None
            for place in (3, 4)
        )
        computed = [each is None and _is_given(inputs, n) for n, each in ((3, axes), (4, steps))]
        if any(computed) or starts is None or ends is None or inputs[0].ty.ndim < 0:
            return super()._impl_v13(bb, _with_tensors(bb, inputs), attr, params)
        count = len(starts)
        axes = np.arange(count) if axes is None else axes
        steps = np.ones(count, np.int64) if steps is None else steps
        data, kept = inputs[0], []
        for number in range(count):
            axis = int(axes[number]) % data.ty.ndim
            size = sizes_of(data)[axis]
            start, end, step = starts[number], ends[number], int(steps[number])
            if (start, step) == (-1, -1) and isinstance(end, int) and end <= -_FAR:
                data = bb.emit(relax.op.flip(data, axis))
            elif (start, step) == (0, 1) and isinstance(end, int) and end >= _FAR:
                continue
            elif all(isinstance(each, int) for each in (start, end)) and (
                step < 0 or isinstance(size, int)
            ):
                kept.append((*_numbers(start, end, step), axis, step))
            elif step < 0:
                return super()._impl_v13(bb, _with_tensors(bb, inputs), attr, params)
            elif start is None or end is None:
                tensors = [integer_tensor(bb, value) for value in inputs[1:3]]
                data = _axis_of_the_run(bb, data, axis, tensors, number, step)
            else:
                data = _open_axis(bb, data, axis, (start, end, step))
        if not kept:
            return data
        columns = [np.array(each, np.int64) for each in zip(*kept, strict=True)]
        bounds = [relax.const(column, "int64") for column in columns]
        return super()._impl_v13(bb, type(inputs)([data, *bounds]), attr, params)


def _bounds(value: Any, params: Any) -> list[Any] | None:
    """The elements of an input, None among them for what only the run knows."""
    if isinstance(value, SizeValues):
        return value.listed()
    stored = constant_array(value, params)
    if stored is not None:
        return [int(number) for number in np.atleast_1d(stored)]
    sizes = static_sizes(value)
    return None if sizes is None or len(sizes) != 1 else [None] * sizes[0]


def _with_tensors(bb: relax.BlockBuilder, inputs: Any) -> Any:
    return type(inputs)(
        value.as_tensor(bb) if isinstance(value, SizeValues) else value for value in inputs
    )


def _numbers(start: int, end: int, step: int) -> tuple[int, int]:
    """Bounds that TVM takes."""
    start, end = (max(-_FAR, min(_FAR, bound)) for bound in (start, end))
    if (start < 0) == (end < 0) and (end - start) * step < 0:
        end = start
    return start, end


def _open_axis(
    bb: relax.BlockBuilder, data: relax.Expr, axis: int, bounds: tuple[Size, Size, int]
) -> relax.Expr:
    """A slice whose bounds or whose axis' size are expressions, with a step forward.

    TVM clips the bounds with its own largest number in the size of the result, where "all" is then
    no more the size that it had.
    """
    size = sizes_of(data)[axis]
    start, end, step = bounds
    first, last = wide(_clipped(start, size)), wide(_clipped(end, size))
    last = wide(maximum(first, last, "int64"))
    analyzer = analyzer_of(first, last)
    span = [
        [axis],
        [analyzer.simplify(first)],
        [analyzer.simplify(last)],
        [tirx.const(step, "int64")],
    ]
    return bb.emit(relax.op.strided_slice(data, *span, assume_inbound=True))


def _clipped(bound: Size, size: Size) -> Size:
    """``bound`` as a place between 0 and ``size``, counted from the end where it is negative."""
    if isinstance(bound, tvm.ir.Expr):
        inside = wide(minimum(bound, size, "int64"))
        if is_positive(bound, 0):
            return inside
        return tirx.Select(bound < 0, wide(maximum(size + bound, 0, "int64")), inside)
    if bound == 0 or bound <= -_FAR:
        return 0
    if bound >= _FAR:
        return size
    if bound > 0:
        return minimum(bound, size, "int64")
    return maximum(size + bound, 0, "int64")


def _axis_of_the_run(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    axis: int,
    bounds: list[relax.Expr],
    number: int,
    step: int,
) -> relax.Expr:
    """A slice by bounds that only the run knows, with a step forward."""

    def formula(starts: te.Tensor, ends: te.Tensor, size: Any) -> list[tirx.Expr]:
        first, last = (_inside(each[number], wide(size)) for each in (starts, ends))
        return [first, tirx.floordiv(tirx.max(last - first, wide(0)) + (step - 1), wide(step))]

    size = sizes_of(data)[axis]
    first, length = computed_dimensions(bb, ["first", "sliced"], formula, *bounds, size)

    def kernel(data: te.Tensor, first: tirx.Var, length: tirx.Var) -> te.Tensor:
        shape = [length if place == axis else extent for place, extent in enumerate(data.shape)]

        def read(*index: tirx.Var) -> tirx.Expr:
            return data(*index[:axis], first + index[axis] * step, *index[axis + 1 :])

        return te.compute(shape, read, name="slice")

    return bb.emit_te(kernel, data, first, length, primfunc_name_hint="slice")


def _inside(bound: tirx.Expr, size: tirx.Expr) -> tirx.Expr:
    """Beyond 32 bits as well: nothing is added before it is known to be in reach."""
    from_front = tirx.Select(bound < 0, tirx.max(bound, -size) + size, bound)
    return tirx.min(from_front, size)


def _is_given(inputs: Any, position: int) -> bool:
    return len(list(inputs)) > position and inputs[position] is not None

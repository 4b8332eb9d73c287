"""Slice on sizes that are known only in the run, where a bound means "all" or "nothing".

TVM's converter gives a negative size where the end lies before the start, so that an allocation
fails, takes no bounds beyond 32 bits, and reverses an axis of a loop's result wrongly.
"""

from typing import Any

import numpy as np
from tvm import relax, tirx

from tvm_ext.hardware.tvm_compat import OnnxSlice
from tvm_ext.onnx_frontend.converters.arguments import constant_array, sizes_of
from tvm_ext.onnx_frontend.converters.traits import Shapes, takes_shapes

# Behind every tensor that fits into memory, and a bound that TVM takes.
_FAR = (1 << 31) - 2


@takes_shapes(Shapes.AS_THEY_ARE)
class Slice(OnnxSlice):
    """Bounds that are numbers are brought in order first; all else is TVM's."""

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
        given = [constant_array(value, params) for value in list(inputs)[1:]]
        given += [None] * (4 - len(given))
        starts, ends, axes, steps = given
        if starts is None or ends is None or isinstance(inputs[0], relax.ShapeExpr):
            return super()._impl_v13(bb, inputs, attr, params)
        computed = [each is None and _is_given(inputs, n) for n, each in ((3, axes), (4, steps))]
        if any(computed) or inputs[0].ty.ndim < 0:
            return super()._impl_v13(bb, inputs, attr, params)
        count = starts.size
        axes = np.arange(count) if axes is None else axes
        steps = np.ones(count, np.int64) if steps is None else steps
        data, kept = inputs[0], []
        sizes = sizes_of(data)
        for number in range(count):
            axis = int(axes[number]) % data.ty.ndim
            start, end, step = (int(each[number]) for each in (starts, ends, steps))
            if (start, step) == (-1, -1) and end <= -_FAR:
                data = bb.emit(relax.op.flip(data, axis))
                continue
            if (start, step) == (0, 1) and end >= _FAR:
                continue
            if step > 0 and not isinstance(sizes[axis], int):
                data = _open_axis(bb, data, axis, (start, end, step))
                continue
            start, end = (max(-_FAR, min(_FAR, bound)) for bound in (start, end))
            if (start < 0) == (end < 0) and (end - start) * step < 0:
                end = start
            kept.append((start, end, axis, step))
        if not kept:
            return data
        columns = [np.array(each, np.int64) for each in zip(*kept, strict=True)]
        bounds = [relax.const(column, "int64") for column in columns]
        return super()._impl_v13(bb, type(inputs)([data, *bounds]), attr, params)


def _open_axis(
    bb: relax.BlockBuilder, data: relax.Expr, axis: int, bounds: tuple[int, int, int]
) -> relax.Expr:
    """A slice of an axis whose size is known only in the run, with a step forward.

    TVM clips the bounds with its own largest number in the size of the result, where "all" is then
    no more the size that it had.
    """
    size = sizes_of(data)[axis]
    start, end, step = bounds
    first = _clipped(start, size)
    last = _clipped(end, size)
    if start and end < _FAR:
        last = tirx.max(first, last)
    span = [[axis], [first], [last], [tirx.const(step, "int64")]]
    return bb.emit(relax.op.strided_slice(data, *span, assume_inbound=True))


def _clipped(bound: int, size: tirx.Expr) -> tirx.Expr:
    """``bound`` as a place between 0 and ``size``, counted from the end where it is negative."""
    if bound == 0 or bound <= -_FAR:
        return tirx.const(0, "int64")
    if bound >= _FAR:
        return size
    if bound > 0:
        return tirx.min(tirx.const(bound, "int64"), size)
    return tirx.max(size + bound, tirx.const(0, "int64"))


def _is_given(inputs: Any, position: int) -> bool:
    return len(list(inputs)) > position and inputs[position] is not None

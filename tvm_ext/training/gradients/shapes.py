"""Gradients of operators that move elements: slices, pads, flips, and reads by index."""

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx
from tvm.relax import op
from tvm.script.ir_builder import tirx as T

from tvm_ext.onnx_frontend.converters.loops import emit_loops
from tvm_ext.training.gradients.registration import dtype_of, fitted, gradient_of, number, sizes


def spread(
    bb: relax.BlockBuilder, value: relax.Expr, axis: int, step: int, before: int, size: int
) -> relax.Expr:
    """Elements along an axis ``step`` apart from ``before`` on, zeros between, ``size`` in all."""
    shape = sizes(value)
    count = shape[axis]
    length = count
    if step > 1:
        widths = [0, 0] * (axis + 1) + [0, step - 1] + [0, 0] * (len(shape) - axis - 1)
        apart = bb.emit(op.nn.pad(bb.emit(op.expand_dims(value, axis + 1)), widths))
        length = count * step
        value = bb.emit(op.reshape(apart, [*shape[:axis], length, *shape[axis + 1 :]]))
    behind = size - before - length
    if behind < 0:
        value = bb.emit(op.strided_slice(value, [axis], [0], [length + behind]))
        behind = 0
    if before == behind == 0:
        return value
    widths = [0, 0] * axis + [before, behind] + [0, 0] * (len(shape) - axis - 1)
    return bb.emit(op.nn.pad(value, widths))


def _numbers(operand: Any) -> list[int]:
    return [int(field.value) if hasattr(field, "value") else int(field) for field in operand.fields]


@gradient_of("strided_slice")
def _strided_slice(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    x = call.args[0]
    axes, begins, ends = (_numbers(operand) for operand in call.args[1:4])
    steps = _numbers(call.args[4]) if len(call.args) > 4 else [1] * len(axes)
    value: relax.Expr = given
    for axis, begin, _, step in zip(axes, begins, ends, steps, strict=True):
        axis %= len(sizes(x))
        size, count = sizes(x)[axis], sizes(y)[axis]
        first = min(max(begin + size if begin < 0 else begin, 0), size - (step < 0))
        if step < 0:
            # The last element read is the first in memory.
            first += (count - 1) * step
            value = bb.emit(op.flip(value, axis))
        value = spread(bb, value, axis, abs(step), first, size)
    return [value]


@gradient_of("nn.pad")
def _pad(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    x, widths = call.args[0], [int(width) for width in call.attrs.pad_width]
    axes = list(range(len(sizes(x))))
    before = widths[::2]
    ends = [first + size for first, size in zip(before, sizes(x), strict=True)]
    return [op.strided_slice(given, axes, before, ends)]


@gradient_of("flip")
def _flip(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    return [op.flip(given, int(call.attrs.axis))]


@gradient_of("concat")
def _concat(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """A slice for each part; TVM's split gives no tuple for a single one."""
    axis = int(call.attrs.axis) % len(sizes(y))
    parts, begin = [], 0
    for field in call.args[0].ty.fields:
        end = begin + int(field.shape.values[axis])
        parts.append(bb.emit(op.strided_slice(given, [axis], [begin], [end])))
        begin = end
    return [relax.Tuple(parts)]


@gradient_of("squeeze")
def _squeeze(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    return [op.reshape(given, sizes(call.args[0]))]


@gradient_of("broadcast_to")
def _broadcast(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    return [fitted(bb, given, call.args[0])]


@gradient_of("take")
def _take(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """Rows of the gradient, added where they were read; TVM's takes a vector of indices only."""
    x, indices = call.args
    shape = sizes(x)
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis) % len(shape)
    count = 1
    for size in sizes(indices):
        count *= size
    outer, inner = 1, 1
    for place, size in enumerate(shape):
        outer, inner = outer * (size if place < axis else 1), inner * (size if place > axis else 1)
    flat = bb.emit(op.reshape(given, [outer, count, inner]))
    places = bb.emit(op.reshape(bb.emit(op.astype(indices, "int64")), [count]))
    added = _added_rows(bb, flat, places, shape[axis])
    return [op.reshape(added, shape)]


def _added_rows(
    bb: relax.BlockBuilder, rows: relax.Expr, places: relax.Expr, size: int
) -> relax.Expr:
    """``out[o, places[n]] += rows[o, n]``, a row of neighbours at a time, in order."""
    outer, count, inner = sizes(rows)
    dtype = dtype_of(rows)

    def body(given: Any, where: Any, written: Any) -> None:
        with T.grid(outer, size, inner) as (o, n, i):
            written[o, n, i] = tirx.const(0, dtype)
        with T.serial(0, outer) as o, T.serial(0, count) as n, T.serial(0, inner) as i:
            place = T.max(T.min(where[n] + T.Select(where[n] < 0, size, 0), size - 1), 0)
            written[o, place, i] = written[o, place, i] + given[o, n, i]

    shape: list[Any] = [outer, size, inner]
    return emit_loops(bb, "added_rows", [rows, places], [(shape, dtype)], body)[0]


@gradient_of("gather_elements")
def _gather_elements(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    x, indices = call.args
    zeros = bb.emit(op.zeros(sizes(x), dtype_of(x)))
    axis = int(call.attrs.axis)
    return [op.scatter_elements(zeros, indices, given, axis, "add")]


@gradient_of("triu", "tril")
def _triangle(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """The same triangle; TVM's gives too few gradients."""
    return [relax.Call(call.op, [given, *call.args[1:]], call.attrs, call.ty_args)]


@gradient_of("max", "min")
def _extreme(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """To the elements that were taken, in equal parts, as in PyTorch and JAX."""
    x = call.args[0]
    rank = len(sizes(x))
    axes = range(rank) if call.attrs.axis is None else call.attrs.axis
    axes = [int(axis) % rank for axis in axes]
    kept = [1 if axis in axes else size for axis, size in enumerate(sizes(x))]
    result, part = (bb.emit(op.reshape(value, kept)) for value in (y, given))
    taken = bb.emit(op.astype(op.equal(x, result), dtype_of(x)))
    count = bb.emit(op.sum(taken, axes, keepdims=True))
    return [op.multiply(taken, bb.emit(op.divide(part, count)))]


@gradient_of("prod")
def _product(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr | None]:
    """The product of the others; that is the product over the element where none is 0."""
    x = call.args[0]
    rank = len(sizes(x))
    axes = range(rank) if call.attrs.axis is None else call.attrs.axis
    axes = [int(axis) % rank for axis in axes]
    kept = [1 if axis in axes else size for axis, size in enumerate(sizes(x))]
    is_zero = bb.emit(op.equal(x, number(0, x)))
    zeros = bb.emit(op.sum(op.astype(is_zero, dtype_of(x)), axes, keepdims=True))
    others = bb.emit(op.where(is_zero, number(1, x), x))
    product = bb.emit(op.prod(others, axes, keepdims=True))
    alone = bb.emit(op.where(op.equal(zeros, number(0, x)), product, number(0, x)))
    single = bb.emit(op.where(op.equal(zeros, number(1, x)), product, number(0, x)))
    factor = bb.emit(op.where(is_zero, single, bb.emit(op.divide(alone, others))))
    return [op.multiply(factor, bb.emit(op.reshape(given, kept)))]

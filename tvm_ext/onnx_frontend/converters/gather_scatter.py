"""Gather, Scatter and their kin by element and by slice, rows moved along an axis, OneHot.

TVM's converters read and write wherever the indices point to: one index beyond the data ends
the process, or overwrites what lies there. Here it takes the nearest element, as in Gather.
(ONNX Runtime raises an error for such an index.)
"""

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.errors import FormError
from tvm_ext.hardware.cuda.description import current_gpu
from tvm_ext.onnx_frontend.converters.arguments import (
    size_argument,
    sizes_of,
    takes_generated,
    takes_sizes,
    text,
)
from tvm_ext.onnx_frontend.converters.generated_indices import rows_at, slices_at, with_slices_at
from tvm_ext.onnx_frontend.converters.loops import emit_loops, in_any_order, nested, on_threads
from tvm_ext.onnx_frontend.converters.runtime_sizes import wide
from tvm_ext.onnx_frontend.sizes import GeneratedTensor
from tvm_ext.onnx_frontend.tvm_compat import (
    OnnxGather,
    OnnxGatherElements,
    OnnxGatherND,
    OnnxOpConverter,
    OnnxScatterElements,
    OnnxScatterND,
    onnx_constant,
)
from tvm_ext.relay_passes.expressions import static_shape
from tvm_ext.tir_schedules.operators.append_rows import ATTRIBUTE, appended_rows

# ScatterElements and ScatterND as loops, of symbolic sizes as well.
#
# Without a reduction the operators leave open which of several updates of one element is the last
# one ("indices should not have duplicate entries"), so updates need not wait for one another on a
# GPU. TVM's kernels for GPUs go over all updates in series; its operators compare the sizes of
# indices and updates, which symbolic ones cannot be.

# Of a kernel that replaces or adds: its axis, None for slices, and its reduction.
SCATTERED = "tvm_ext.scatter"
_Place = Callable[[Any, Sequence[Any], Sequence[Any]], list[Any]]


def scattered_elements(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    indices: relax.Expr,
    updates: relax.Expr,
    axis: int,
    reduction: str = "none",
) -> relax.Expr:
    """``out[i][index[i][j]][k] = updates[i][j][k]`` along ``axis``, else the data."""
    return _scattered(bb, data, indices, updates, axis % len(sizes_of(data)), reduction)


def scattered_slices(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    indices: relax.Expr,
    updates: relax.Expr,
    reduction: str = "none",
) -> relax.Expr:
    """``out[index[i]] = updates[i]``, a slice of the data where an index is short."""
    return _scattered(bb, data, indices, updates, None, reduction)


def read_where_scattered(
    bb: relax.BlockBuilder,
    source: relax.Expr,
    indices: relax.Expr,
    updates: relax.Expr,
    axis: int | None,
) -> relax.Expr:
    """For each of the updates what ``source`` has where the kernel of this axis writes it."""
    place = _place(indices, axis)

    def body(source: Any, indices: Any, written: Any) -> None:
        with on_threads(*written.shape) as at:
            written[tuple(at)] = source[tuple(place(indices, at, source.shape))]

    result = (sizes_of(updates), str(source.ty.dtype))
    return emit_loops(bb, "read_where_scattered", [source, indices], [result], body)[0]


def _place(indices: relax.Expr, axis: int | None) -> _Place:
    """Where an update is written, from the indices, its own place and the sizes of the data."""
    if axis is not None:

        def along_axis(read: Any, at: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
            return [*at[:axis], _inside(read[tuple(at)], sizes[axis]), *at[axis + 1 :]]

        return along_axis
    *counted, coordinates = sizes_of(indices)
    if not isinstance(coordinates, int):
        raise FormError("the number of coordinates of its indices is not known")

    def of_slices(read: Any, at: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
        first = at[: len(counted)]
        found = [_inside(read[(*first, i)], sizes[i]) for i in range(coordinates)]
        return [*found, *at[len(counted) :]]

    return of_slices


_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda old, new: old + new,
    "mul": lambda old, new: old * new,
    "max": tirx.max,
    "min": tirx.min,
}


def _scattered(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    indices: relax.Expr,
    updates: relax.Expr,
    axis: int | None,
    reduction: str,
) -> relax.Expr:
    place = _place(indices, axis)
    combine = _COMBINED.get(reduction)
    # On a CPU in series: the last of several updates stays, as in ONNX Runtime.
    loops = in_any_order if combine is None and current_gpu() is not None else nested

    def body(data: Any, indices: Any, updates: Any, written: Any) -> None:
        # Symbolic sizes have other variables in the kernel than in the program.
        with nested(*data.shape) as at:
            written[tuple(at)] = data[tuple(at)]
        with loops(*updates.shape) as at:
            there, update = tuple(place(indices, at, data.shape)), updates[tuple(at)]
            written[there] = update if combine is None else combine(written[there], update)

    result = (sizes_of(data), str(data.ty.dtype))
    form = json.dumps({"axis": axis, "reduction": reduction})
    attrs = {SCATTERED: form} if reduction in ("none", "add") else {}
    operands = [data, indices, updates]
    return emit_loops(bb, "scatter", operands, [result], body, primfunc_attrs=attrs)[0]


def _inside(index: Any, size: Any) -> tirx.Expr:
    """An index from the front; below zero they count from the end. The nearest one beyond it."""
    wide, last = index.astype("int64"), size - 1
    return tirx.max(tirx.min(tirx.if_then_else(wide < 0, wide + size, wide), last), T.int64(0))


_Sizes = Callable[[list[Any], int, dict], Any]


def _along_axis(shape: list[Any], _indices: int, attr: dict) -> Any:
    return shape[attr.get("axis", 0)]


def _of_coordinates(shape: list[Any], coordinates: int, attr: dict) -> Any:
    first = attr.get("batch_dims", 0)
    return shape[first : first + coordinates]


def _clamping(converter: type, sizes: _Sizes, alone: Callable[..., Any] | None = None) -> type:
    """TVM's ``converter`` with indices that are clamped to ``sizes`` beforehand.

    ``alone``: what takes its place, except on GPUs where updates of known sizes are combined.
    """

    class Clamping(converter):
        @classmethod
        def get_converter(cls, opset: int) -> Callable[..., Any]:
            convert = super().get_converter(opset)

            def inside(bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
                given = type(inputs)(inputs)
                given[1] = _clamped(bb, inputs, attr, params, sizes)
                if alone is None and given[1] is inputs[1]:
                    given[1] = _clamped_in_the_run(bb, inputs, attr, sizes)
                if alone is not None and _is_taken(given, attr):
                    return alone(bb, given, attr)
                return convert(bb, given, attr, params)

            return inside

    Clamping.__name__ = converter.__name__
    Clamping.__doc__ = f"TVM's {converter.__name__} with indices that stay inside of the data."
    return Clamping


def _clamped(
    bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any, sizes: _Sizes
) -> relax.Expr:
    indices = onnx_constant(inputs[1], params)
    shape, counted = static_shape(inputs[0]), static_shape(indices)
    if shape is None or counted is None:
        return inputs[1]
    high = np.array(sizes(shape, counted[-1] if counted else 0, attr))
    dtype = str(indices.ty.dtype)
    if isinstance(indices, tvm.ir.GenericConst):
        values = indices.value.numpy()
        return relax.const(np.clip(values, -high, high - 1).astype(dtype), dtype)
    low = relax.const((-high).astype(dtype), dtype)
    above = relax.const((high - 1).astype(dtype), dtype)
    return bb.normalize(relax.op.minimum(bb.normalize(relax.op.maximum(indices, low)), above))


def _clamped_in_the_run(bb: relax.BlockBuilder, inputs: Any, attr: dict, sizes: _Sizes) -> Any:
    """The indices inside of data of symbolic sizes."""
    data, indices = inputs[0], inputs[1]
    counted = sizes_of(indices)
    # Not known of GatherElements alone, which asks for the size of one axis.
    last = counted[-1] if counted and isinstance(counted[-1], int) else 0
    chosen = sizes(sizes_of(data), last, attr)
    listed = chosen if isinstance(chosen, list) else [chosen]

    def kernel(indices: te.Tensor, highs: list[Any]) -> te.Tensor:
        def inside(*place: tirx.Var) -> tirx.Expr:
            value = indices(*place)
            high = wide(highs[-1])
            for coordinate in range(len(highs) - 2, -1, -1):
                high = tirx.Select(place[-1] == coordinate, wide(highs[coordinate]), high)
            kept = tirx.min(tirx.max(value.astype("int64"), -high), high - 1)
            return kept.astype(indices.dtype)

        return te.compute(indices.shape, inside, name="inside")

    return bb.emit_te(kernel, indices, listed, primfunc_name_hint="indices_inside")


def _is_taken(inputs: Any, attr: dict) -> bool:
    """Whether sizes are symbolic, or the target is a CPU, or updates take the place of data.

    TVM's kernels for CPUs hand the elements of each update to threads, one update after the other.
    """
    if any(static_shape(value) is None for value in inputs[:3]):
        return True
    return text(attr, "reduction", "none") == "none" or current_gpu() is None


def _elements_alone(bb: relax.BlockBuilder, inputs: Any, attr: dict) -> relax.Expr:
    axis, reduction = attr.get("axis", 0), text(attr, "reduction", "none")
    return scattered_elements(bb, inputs[0], inputs[1], inputs[2], axis, reduction)


def _slices_alone(bb: relax.BlockBuilder, inputs: Any, attr: dict) -> relax.Expr:
    reduction = text(attr, "reduction", "none")
    return scattered_slices(bb, inputs[0], inputs[1], inputs[2], reduction)


def _reading_generated(converter: type, alone: Callable[..., relax.Expr | None]) -> type:
    """``converter`` with ``alone`` for indices that follow from places, where it can."""

    class Reading(converter):
        @classmethod
        def get_converter(cls, opset: int) -> Callable[..., Any]:
            convert = super().get_converter(opset)

            def read(bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
                indices = inputs[1]
                if not isinstance(indices, GeneratedTensor):
                    return convert(bb, inputs, attr, params)
                found = alone(bb, inputs, attr)
                if found is not None:
                    return found
                given = [indices.as_tensor(bb) if one is indices else one for one in inputs]
                return convert(bb, type(inputs)(given), attr, params)

            return read

    Reading.__name__ = converter.__name__.removeprefix("_")
    Reading.__doc__ = converter.__doc__
    return takes_generated(1)(Reading)


def _gathered(bb: relax.BlockBuilder, inputs: Any, attr: dict) -> relax.Expr | None:
    axis = int(attr.get("axis", 0)) % max(len(sizes_of(inputs[0])), 1)
    return rows_at(bb, inputs[0], inputs[1], axis)


def _gathered_slices(bb: relax.BlockBuilder, inputs: Any, attr: dict) -> relax.Expr | None:
    return None if attr.get("batch_dims", 0) else slices_at(bb, inputs[0], inputs[1])


def _replaced_slices(bb: relax.BlockBuilder, inputs: Any, attr: dict) -> relax.Expr | None:
    if text(attr, "reduction", "none") != "none":
        return None
    return with_slices_at(bb, inputs[0], inputs[1], inputs[2])


GatherElements = _clamping(OnnxGatherElements, _along_axis)
GatherND = _reading_generated(_clamping(OnnxGatherND, _of_coordinates), _gathered_slices)
ScatterElements = _clamping(OnnxScatterElements, _along_axis, _elements_alone)
ScatterND = _reading_generated(
    _clamping(OnnxScatterND, _of_coordinates, _slices_alone), _replaced_slices
)


# Gather that stays inside its data.
#
# TVM's converter reads wherever the indices point to: one index beyond the data ends the process
# with a segmentation fault. Here it reads the nearest element instead. (ONNX Runtime raises an
# error for such an index; checking at run time would need a pass over all indices.)


class _Gather(OnnxGather):
    """TVM's converter with the indices clamped to the data."""

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
        result = super()._impl_v13(bb, inputs, attr, params)
        take = tvm.ir.Op.get("relax.take")
        if not isinstance(result, relax.Call) or not take.same_as(result.op):
            return result
        data, indices = result.args
        return relax.op.take(data, indices, result.attrs.axis, mode="clip")


Gather = _reading_generated(_Gather, _gathered)


# ReverseSequence, TensorScatter, AppendRows: rows moved along one axis, by a number for each batch.


class ReverseSequence(OnnxOpConverter):
    """The first ``sequence_lens[b]`` elements of each batch in reverse, the rest as they are."""

    @classmethod
    def _impl_v10(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        time, batch = attr.get("time_axis", 0), attr.get("batch_axis", 1)
        if {time, batch} != {0, 1}:
            raise FormError(f"its axes are {time} and {batch}, expected 0 and 1")

        def kernel(data: te.Tensor, lengths: te.Tensor) -> te.Tensor:
            def read(*index: tirx.Var) -> tirx.Expr:
                place, length = wide(index[time]), wide(lengths[index[batch]])
                length = tirx.min(length, wide(data.shape[time]))
                turned = tirx.if_then_else(place < length, length - 1 - place, place)
                return data(*index[:time], turned, *index[time + 1 :])

            return te.compute(data.shape, read, name="reverse_sequence")

        return bb.emit_te(kernel, inputs[0], inputs[1], primfunc_name_hint="reverse_sequence")


class TensorScatter(OnnxOpConverter):
    """A cache with new rows written from ``write_indices[b]`` on, around its end if circular."""

    @classmethod
    def _impl_v24(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        cache, update = inputs[0], inputs[1]
        axis = attr.get("axis", -2) % len(sizes_of(cache))
        mode = text(attr, "mode", "linear")
        if axis == 0 or mode not in ("linear", "circular"):
            raise FormError(f"its axis is {axis} and its mode {mode}")
        starts = [inputs[2]] if inputs[2] is not None else []

        def kernel(cache: te.Tensor, update: te.Tensor, *starts: te.Tensor) -> te.Tensor:
            def read(*index: tirx.Var) -> tirx.Expr:
                start = wide(starts[0][index[0]]) if starts else wide(0)
                place = wide(index[axis]) - start
                if mode == "circular":
                    place = tirx.floormod(place, wide(cache.shape[axis]))
                new = tirx.all(place >= 0, place < update.shape[axis])
                written = update(*index[:axis], place, *index[axis + 1 :])
                return tirx.if_then_else(new, written, cache(*index))

            return te.compute(cache.shape, read, name="tensor_scatter")

        return bb.emit_te(kernel, cache, update, *starts, primfunc_name_hint="tensor_scatter")


class AppendRows(OnnxOpConverter):
    """Keys or values of earlier runs, and new ones behind those that each sequence has."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        axis = int(attr["axis"])
        return bb.emit_te(
            partial(appended_rows, axis=axis),
            *inputs,
            primfunc_name_hint="append_rows",
            primfunc_attrs={ATTRIBUTE: axis},
        )


# OneHot as a comparison with the positions.
#
# TVM's converter takes a depth of rank 0 only, where most exporters write one of shape [1], wants
# the two values as constants and forgets their type. Here the depth has either shape, and depth
# and values may be computed in the run.


# Up to here the positions are a constant of the program.
LISTED_DEPTH = 1 << 20


@takes_sizes(1)
class OneHot(OnnxOpConverter):
    """``where(positions == indices, on, off)``; indices below zero count from the end."""

    @classmethod
    def _impl_v9(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        depth = onnx_constant(inputs[1], params)
        if not isinstance(depth, tvm.ir.GenericConst) or depth.value.numpy().max() > LISTED_DEPTH:
            return _of_a_run(bb, inputs, attr, params)
        depth = int(depth.value.numpy().item())
        indices, values = inputs[0], onnx_constant(inputs[2], params)
        if not str(indices.ty.dtype).startswith("int"):
            indices = bb.normalize(relax.op.astype(indices, "int64"))
        dtype = str(indices.ty.dtype)
        negative = relax.op.less(indices, relax.const(0, dtype))
        wrapped = relax.op.add(indices, relax.const(depth, dtype))
        indices = bb.normalize(relax.op.where(negative, wrapped, indices))
        rank = indices.ty.ndim
        axis = attr.get("axis", -1) % (rank + 1)
        shape = [depth] + [1] * (rank - axis)
        positions = relax.const(np.arange(depth, dtype=dtype).reshape(shape), dtype)
        hot = relax.op.equal(relax.op.expand_dims(indices, axis), positions)
        return relax.op.where(bb.normalize(hot), _scalar(bb, values, 1), _scalar(bb, values, 0))


def _of_a_run(bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
    """With a depth that is computed in the run, in one kernel."""
    depth = size_argument(bb, inputs[1], params, "depth")
    indices = inputs[0]
    axis = attr.get("axis", -1) % (indices.ty.ndim + 1)

    def kernel(indices: te.Tensor, values: te.Tensor, depth: tirx.Var) -> te.Tensor:
        shape = [*indices.shape[:axis], depth, *indices.shape[axis:]]

        def element(*index: tirx.Var) -> tirx.Expr:
            place = indices(*index[:axis], *index[axis + 1 :]).astype("int64")
            place = tirx.Select(place < 0, place + depth, place)
            return tirx.Select(place == index[axis], values[1], values[0])

        return te.compute(shape, element, name="one_hot")

    return bb.emit_te(kernel, indices, inputs[2], depth, primfunc_name_hint="one_hot")


def _scalar(bb: relax.BlockBuilder, values: relax.Expr, index: int) -> relax.Expr:
    if isinstance(values, tvm.ir.GenericConst):
        array = values.value.numpy()
        return relax.const(array[index], str(array.dtype))
    return bb.normalize(relax.op.take(values, relax.const(index, "int64"), axis=0, mode="clip"))

"""NonZero and Compress: the places of elements that are not zero, whose number the run tells.

TVM asks NumPy for them, through a packed function of Python. Here two kernels do it on a CPU: one
counts, and one writes the places in order.
"""

import functools
import operator
from typing import Any

from tvm import relax, te, tirx, topi
from tvm.script.ir_builder import tirx as T

from tvm_ext.errors import FormError
from tvm_ext.hardware.cpu.description import current_cpu
from tvm_ext.onnx_frontend.converters.arguments import sizes_of
from tvm_ext.onnx_frontend.converters.loops import emit_loops, local_array, nested
from tvm_ext.onnx_frontend.converters.runtime_sizes import dimensions_of, wide
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter


def places_of_nonzero(bb: relax.BlockBuilder, data: relax.Expr) -> relax.Expr:
    """The indices of the elements of ``data`` that are not zero, in order: int64[rank, number].

    A scalar counts as one element of one axis.
    """
    data = _with_sizes(bb, data)
    if data.ty.ndim == 0:
        data = bb.emit(relax.op.reshape(data, [1]))
    if current_cpu() is None:
        # One thread of a GPU would write what the host finds sooner.
        found = tirx.Var("nonzero", "int64")
        kind = relax.TensorType([data.ty.ndim, found], "int64")
        return bb.match_cast(bb.emit(relax.op.nonzero(data)), kind)
    count = bb.emit_te(_count, data, primfunc_name_hint="count_nonzero")
    (number,) = dimensions_of(bb, count, ["nonzero"])
    sizes = sizes_of(data)

    def written(read: Any, places: Any) -> None:
        state = local_array(1, "int64")
        state[0] = T.int64(0)
        with nested(*sizes) as index, T.If(_differs(read[tuple(index)])), T.Then():
            for axis, place in enumerate(index):
                places[axis, state[0]] = wide(place)
            state[0] = state[0] + T.int64(1)

    outputs = [((data.ty.ndim, number), "int64")]
    return emit_loops(bb, "places_of_nonzero", [data], outputs, written)[0]


def _with_sizes(bb: relax.BlockBuilder, data: relax.Expr) -> relax.Expr:
    """``data`` with names for its sizes where only the rank is known."""
    if isinstance(data.ty.shape, relax.ShapeExpr):
        return data
    if data.ty.ndim < 0:
        raise FormError("the rank of its input is not known")
    sizes = [tirx.Var(f"size_{axis}", "int64") for axis in range(data.ty.ndim)]
    return bb.match_cast(data, relax.TensorType(sizes, str(data.ty.dtype)))


def _differs(element: Any) -> tirx.Expr:
    """Whether it is not zero, as no NaN is: TVM's comparison by "!=" is false of those."""
    return tirx.Cast("bool", element)


def _count(data: te.Tensor) -> te.Tensor:
    flags = te.compute(
        data.shape, lambda *index: tirx.Cast("int64", _differs(data(*index))), name="flags"
    )
    return topi.reshape(topi.sum(flags), [1])


class NonZero(OnnxOpConverter):
    """The places of elements that are not zero."""

    @classmethod
    def _impl_v9(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return places_of_nonzero(bb, inputs[0])


class Compress(OnnxOpConverter):
    """Selects by flags; those behind the end of the axis count for nothing, and select nothing."""

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, flags = inputs
        sizes, axis = sizes_of(data), attr.get("axis")
        most = functools.reduce(operator.mul, sizes, 1) if axis is None else sizes[axis]

        def kernel(flags: te.Tensor, most: Any) -> te.Tensor:
            def read(place: tirx.Var) -> tirx.Expr:
                return tirx.all(flags[place], wide(place) < most)

            return te.compute(flags.shape, read, name="flags")

        (count,) = sizes_of(flags)
        if not isinstance(count, int) or not isinstance(most, int) or count > most:
            flags = bb.emit_te(kernel, flags, most, primfunc_name_hint="flags")
        places = bb.emit(relax.op.squeeze(places_of_nonzero(bb, flags), [0]))
        if axis is None:
            data = bb.emit(relax.op.reshape(data, [-1]))
        return relax.op.take(data, places, axis or 0, mode="clip")

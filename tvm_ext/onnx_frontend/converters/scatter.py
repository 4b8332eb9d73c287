"""ScatterElements and ScatterND without a reduction, as loops whose iterations run in any order.

The operators leave open which of several updates of one element is the last one ("indices should
not have duplicate entries"), so updates need not wait for one another. TVM's kernels for GPUs go
over all updates in series.
"""

from collections.abc import Sequence
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import sizes_of
from tvm_ext.onnx_frontend.converters.loops import emit_loops, in_any_order, nested


def scattered_elements(
    bb: relax.BlockBuilder, data: relax.Expr, indices: relax.Expr, updates: relax.Expr, axis: int
) -> relax.Expr:
    """``out[i][index[i][j]][k] = updates[i][j][k]`` along ``axis``, else the data."""
    axis %= len(sizes_of(data))

    def place(read: Any, at: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
        return [*at[:axis], _inside(read[tuple(at)], sizes[axis]), *at[axis + 1 :]]

    return _scattered(bb, data, indices, updates, place)


def scattered_slices(
    bb: relax.BlockBuilder, data: relax.Expr, indices: relax.Expr, updates: relax.Expr
) -> relax.Expr:
    """``out[index[i]] = updates[i]``, a slice of the data where an index is short."""
    *counted, coordinates = sizes_of(indices)
    if not isinstance(coordinates, int):
        raise FormError("the number of coordinates of its indices is not known")

    def place(read: Any, at: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
        first = at[: len(counted)]
        found = [_inside(read[(*first, i)], sizes[i]) for i in range(coordinates)]
        return [*found, *at[len(counted) :]]

    return _scattered(bb, data, indices, updates, place)


def _scattered(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    indices: relax.Expr,
    updates: relax.Expr,
    place: Any,
) -> relax.Expr:
    def body(data: Any, indices: Any, updates: Any, written: Any) -> None:
        # Open sizes have other variables in the kernel than in the program.
        with nested(*data.shape) as at:
            written[tuple(at)] = data[tuple(at)]
        with in_any_order(*updates.shape) as at:
            written[tuple(place(indices, at, data.shape))] = updates[tuple(at)]

    result = (sizes_of(data), str(data.ty.dtype))
    return emit_loops(bb, "scatter", [data, indices, updates], [result], body)[0]


def _inside(index: Any, size: Any) -> tirx.Expr:
    """An index from the front; below zero they count from the end."""
    wide = index.astype("int64")
    return tirx.if_then_else(wide < T.int64(0), wide + size, wide)

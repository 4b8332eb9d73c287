"""ScatterElements and ScatterND as loops, of open sizes as well.

Without a reduction the operators leave open which of several updates of one element is the last one
("indices should not have duplicate entries"), so updates need not wait for one another on a GPU.
TVM's kernels for GPUs go over all updates in series; its operators compare the sizes of indices and
updates, which open ones cannot be.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T

from tvm_ext.errors import FormError
from tvm_ext.hardware.targets import current_gpu
from tvm_ext.onnx_frontend.converters.arguments import sizes_of
from tvm_ext.onnx_frontend.converters.loops import emit_loops, in_any_order, nested


def scattered_elements(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    indices: relax.Expr,
    updates: relax.Expr,
    axis: int,
    reduction: str = "none",
) -> relax.Expr:
    """``out[i][index[i][j]][k] = updates[i][j][k]`` along ``axis``, else the data."""
    axis %= len(sizes_of(data))

    def place(read: Any, at: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
        return [*at[:axis], _inside(read[tuple(at)], sizes[axis]), *at[axis + 1 :]]

    return _scattered(bb, data, indices, updates, place, reduction)


def scattered_slices(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    indices: relax.Expr,
    updates: relax.Expr,
    reduction: str = "none",
) -> relax.Expr:
    """``out[index[i]] = updates[i]``, a slice of the data where an index is short."""
    *counted, coordinates = sizes_of(indices)
    if not isinstance(coordinates, int):
        raise FormError("the number of coordinates of its indices is not known")

    def place(read: Any, at: Sequence[Any], sizes: Sequence[Any]) -> list[Any]:
        first = at[: len(counted)]
        found = [_inside(read[(*first, i)], sizes[i]) for i in range(coordinates)]
        return [*found, *at[len(counted) :]]

    return _scattered(bb, data, indices, updates, place, reduction)


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
    place: Any,
    reduction: str,
) -> relax.Expr:
    combine = _COMBINED.get(reduction)
    # On a CPU in series: the last of several updates stays, as in ONNX Runtime.
    loops = in_any_order if combine is None and current_gpu() is not None else nested

    def body(data: Any, indices: Any, updates: Any, written: Any) -> None:
        # Open sizes have other variables in the kernel than in the program.
        with nested(*data.shape) as at:
            written[tuple(at)] = data[tuple(at)]
        with loops(*updates.shape) as at:
            there, update = tuple(place(indices, at, data.shape)), updates[tuple(at)]
            written[there] = update if combine is None else combine(written[there], update)

    result = (sizes_of(data), str(data.ty.dtype))
    return emit_loops(bb, "scatter", [data, indices, updates], [result], body)[0]


def _inside(index: Any, size: Any) -> tirx.Expr:
    """An index from the front; below zero they count from the end. The nearest one beyond it."""
    wide, last = index.astype("int64"), size - 1
    return tirx.max(tirx.min(tirx.if_then_else(wide < 0, wide + size, wide), last), T.int64(0))

"""Gather, GatherND and ScatterND whose indices follow from the places where they stand.

``mask[:, :length]`` and ``mask[..., :length] = other`` come from exporters as indices of every
element, which Range, Expand and Concat make. Here the element of such an index is read in the
kernel that gathers, and a tensor that is written everywhere is what is written.
"""

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, te, tirx

from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of
from tvm_ext.onnx_frontend.sizes import GeneratedTensor
from tvm_ext.onnx_frontend.sizes import scalar_rules as rules
from tvm_ext.onnx_frontend.sizes.generated_rules import new_axes, same_size
from tvm_ext.onnx_frontend.sizes.generated_tensors import substituted
from tvm_ext.onnx_frontend.sizes.size_values import typed
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.graph_pass import INJECTIVE


def rows_at(
    bb: relax.BlockBuilder, data: relax.Expr, indices: GeneratedTensor, axis: int
) -> relax.Expr:
    """ONNX Gather along ``axis``; an index beyond the data reads the nearest element."""
    sizes = sizes_of(data)
    index = _inside(indices, indices.element, sizes[axis])
    shape = [*sizes[:axis], *indices.sizes, *sizes[axis + 1 :]]
    outer, inner = new_axes(sizes[:axis]), new_axes(sizes[axis + 1 :])
    places = [*outer, *indices.axes, *inner]
    return _read(bb, data, shape, places, [*outer, index, *inner])


def slices_at(
    bb: relax.BlockBuilder, data: relax.Expr, indices: GeneratedTensor
) -> relax.Expr | None:
    """ONNX GatherND; an index beyond the data reads the nearest element."""
    coordinates = _coordinates(indices)
    if coordinates is None:
        return None
    sizes = sizes_of(data)
    found = [_inside(indices, one, size) for one, size in zip(coordinates, sizes, strict=False)]
    inner = new_axes(sizes[len(found) :])
    shape = [*indices.sizes[:-1], *sizes[len(found) :]]
    return _read(bb, data, shape, [*indices.axes[:-1], *inner], [*found, *inner])


def with_slices_at(
    bb: relax.BlockBuilder, data: relax.Expr, indices: GeneratedTensor, updates: relax.Expr
) -> relax.Expr | None:
    """ONNX ScatterND where each slice is written at its own place, if it is so.

    Slices that are all there are make the result; of others, a choice for each element.
    """
    coordinates, sizes = _coordinates(indices), sizes_of(data)
    counted = indices.sizes[:-1]
    if coordinates is None or len(coordinates) != len(counted):
        return None
    analyzer = indices.analyzer()
    if not all(
        isinstance(one, tvm.ir.Expr) and analyzer.can_prove_equal(one, place)
        for one, place in zip(coordinates, indices.axes, strict=False)
    ):
        return None
    if all(same_size(*pair) for pair in zip(counted, sizes, strict=False)):
        return updates

    def kernel(data: te.Tensor, updates: te.Tensor) -> te.Tensor:
        written = updates.shape[: len(counted)]

        def element(*place: tirx.Var) -> tirx.Expr:
            pairs = zip(place, written, strict=False)
            is_written = tirx.all(*(one < size for one, size in pairs))
            return tirx.if_then_else(is_written, updates(*place), data(*place))

        return te.compute(data.shape, element, name="written")

    return bb.emit_te(kernel, data, updates, primfunc_name_hint="written")


def _coordinates(indices: GeneratedTensor) -> list[Any] | None:
    """The index along each axis, as expressions of the axes in front of the last."""
    count = indices.sizes[-1]
    if not isinstance(count, int):
        return None
    analyzer = indices.analyzer()
    places = [[*indices.axes[:-1], tirx.const(number, "int64")] for number in range(count)]
    return [
        analyzer.simplify(one) if isinstance(one, tvm.ir.Expr) else one
        for one in map(indices.at, places)
    ]


def _inside(indices: GeneratedTensor, index: Any, size: Size) -> tirx.Expr:
    """An index from the front, as an expression of int64, and the nearest one beyond the data."""
    analyzer = indices.analyzer()
    wide, count = typed(index, "int64"), typed(size, "int64")
    if not analyzer.can_prove(wide >= 0):
        wide = tirx.Select(wide < 0, wide + count, wide)
        wide = tirx.max(wide, tirx.const(0, "int64"))
    if not analyzer.can_prove(wide < count):
        wide = tirx.min(wide, count - 1)
    return wide


def _read(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    shape: Sequence[Size],
    axes: Sequence[tirx.Var],
    places: Sequence[tirx.Expr],
) -> relax.Expr:
    """A tensor of this shape that holds, at ``axes``, the element of ``data`` at ``places``."""
    data, places = _before_reshape(bb, data, places)
    known = rules.variables_of(*places, *shape)
    variables = [one for one in known if not any(one.same_as(axis) for axis in axes)]

    def kernel(data: te.Tensor, given: list[tirx.Var]) -> te.Tensor:
        symbols = dict(zip(variables, given, strict=True))

        def element(*index: tirx.Var) -> tirx.Expr:
            wide = [place.astype("int64") for place in index]
            at = {**symbols, **dict(zip(axes, wide, strict=True))}
            return data(*(substituted(place, at) for place in places))

        return te.compute([substituted(size, symbols) for size in shape], element, name="gather")

    attributes = {"op_pattern": INJECTIVE}
    return bb.emit_te(
        kernel, data, variables, primfunc_name_hint="gather", primfunc_attrs=attributes
    )


def _before_reshape(
    bb: relax.BlockBuilder, data: relax.Expr, places: Sequence[tirx.Expr]
) -> tuple[relax.Expr, Sequence[tirx.Expr]]:
    """What ``data`` is a reshape of, and where its elements are there.

    A kernel that computes the tensor is fused with one that reads it, and not with a reshape.
    """
    call = bb.lookup_binding(data) if isinstance(data, relax.Var) else None
    if call is None or operator_name(call) != "relax.reshape":
        return data, places
    sizes = sizes_of(call.args[0])
    flat = typed(0, "int64")
    for place, size in zip(places, sizes_of(data), strict=True):
        flat = flat * typed(size, "int64") + place
    found: list[tirx.Expr] = []
    for size in reversed(sizes[1:]):
        found.append(tirx.floormod(flat, typed(size, "int64")))
        flat = tirx.floordiv(flat, typed(size, "int64"))
    return call.args[0], [flat, *reversed(found)][: len(sizes)]

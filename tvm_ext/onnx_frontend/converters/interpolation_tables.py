"""Interpolation along one axis by tables that are constants: which neighbours, and their weights.

Formulas are those of ``interpolation``: here they depend on nothing of the run, so that the tables
are folded at compile time and a kernel only loads and multiplies.
"""

from typing import Any

import tvm
from tvm import relax, te, tirx

from tvm_ext.onnx_frontend.converters.interpolation import (
    Interpolation,
    first_neighbour,
    points,
    rounded,
    stored,
    taps_of,
    weights,
)


def are_known(data: relax.Expr, axis: int, size: Any, scale: relax.Expr) -> bool:
    """Whether neighbours and weights do not depend on anything of the run."""
    sizes = (data.ty.shape.values[axis], size)
    known = all(isinstance(value, int | tirx.IntImm) for value in sizes)
    return known and isinstance(scale, tvm.ir.GenericConst)


def resized_by_tables(
    bb: relax.BlockBuilder,
    data: relax.Expr,
    axis: int,
    size: int,
    scale: relax.Expr,
    how: Interpolation,
) -> relax.Expr:
    """See ``resized_along``, for a known scale and sizes and without a region of interest.

    Neighbours are int32[size, taps], weights float32[size, taps], or float64 for such data.
    """
    taps = taps_of(bb, scale, how)
    old = int(data.ty.shape.values[axis])
    computed = "float64" if str(data.ty.dtype) == "float64" else "float32"

    def places(scale: te.Tensor) -> te.Tensor:
        point = points(old, size, scale[0], None, how)

        def place(i: tirx.Var, tap: tirx.Var) -> tirx.Expr:
            if how.mode == "nearest":
                found = rounded(point[i], how.rounding)
            else:
                found = first_neighbour(point[i], taps) + tap
            last = tirx.const(old - 1, "int64")
            return tirx.max(tirx.min(found, last), tirx.const(0, "int64")).astype("int32")

        return te.compute((size, taps), place, name="places")

    def shares(scale: te.Tensor) -> te.Tensor:
        point = points(old, size, scale[0], None, how)
        share = weights(old, size, point, scale[0], taps, how)
        return te.compute((size, taps), lambda *i: share(*i).astype(computed), name="weights")

    def kernel(data: te.Tensor, place: te.Tensor, weight: list[te.Tensor]) -> te.Tensor:
        def term(index: tuple, tap: int) -> tirx.Expr:
            inside = place[index[axis], tap]
            value = data(*index[:axis], inside, *index[axis + 1 :])
            return value.astype(computed) * weight[0][index[axis], tap] if weight else value

        def total(*index: tirx.Var) -> tirx.Expr:
            value = term(index, 0)
            for tap in range(1, taps):
                value = value + term(index, tap)
            return stored(value, str(data.dtype)) if weight else value

        shape = [size if place == axis else extent for place, extent in enumerate(data.shape)]
        return te.compute(shape, total, name="resize")

    table = bb.emit_te(places, scale, primfunc_name_hint="places")
    nearest = how.mode == "nearest"
    parts = [] if nearest else [bb.emit_te(shares, scale, primfunc_name_hint="weights")]
    return bb.emit_te(kernel, data, table, parts, primfunc_name_hint="resize")

"""Sizes that are known only in the run: from values to symbolic dimensions.

Every operator whose output size depends on values goes the same road, in kernels alone, without a
packed function of Python: one kernel computes the sizes, ``tensor_to_shape`` reads them, a
``match_cast`` binds them to new symbolic dimensions, and the next kernel's output has these.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import Size, constant_array, sizes_of


def computed_dimensions(
    bb: relax.BlockBuilder,
    names: Sequence[str],
    formula: Callable[..., Sequence[Any]],
    *inputs: Any,
) -> list[tirx.Var]:
    """New symbolic dimensions, one for each of ``names``.

    ``formula`` gets ``inputs``, tensors as ``te.Tensor``, and returns an integer expression for
    each dimension; a negative one counts as zero.
    """
    if not names:
        return []

    def kernel(*arguments: Any) -> te.Tensor:
        return vector([tirx.max(wide(size), wide(0)) for size in formula(*arguments)])

    sizes = bb.emit_te(kernel, *inputs, primfunc_name_hint="sizes")
    return dimensions_of(bb, sizes, names)


def dimensions_of(
    bb: relax.BlockBuilder, sizes: relax.Expr, names: Sequence[str]
) -> list[tirx.Var]:
    """New symbolic dimensions with the values of ``sizes``, int64[len(names)], none negative."""
    sizes = bb.match_cast(sizes, relax.TensorType([len(names)], "int64"))
    shape = bb.emit(relax.op.tensor_to_shape(sizes))
    dimensions = [tirx.Var(name, "int64") for name in names]
    bb.match_cast(shape, relax.ShapeType(dimensions))
    return dimensions


def wide(value: Any) -> tirx.Expr:
    """An integer or an expression of integers as int64."""
    return tirx.const(value, "int64") if isinstance(value, int) else value.astype("int64")


def vector(values: Sequence[Any], name: str = "values") -> te.Tensor:
    """int64[len(values)] from scalar expressions."""

    def pick(place: tirx.Var) -> tirx.Expr:
        picked = wide(values[-1])
        for index in range(len(values) - 2, -1, -1):
            picked = tirx.Select(place == index, wide(values[index]), picked)
        return picked

    return te.compute((len(values),), pick, name=name)


def static_sizes(value: relax.Expr) -> list[int] | None:
    """The sizes of a tensor; None when one of them is symbolic."""
    sizes = sizes_of(value)
    return [int(s) for s in sizes] if all(isinstance(s, int) for s in sizes) else None


def constant_integers(value: Any, params: Any) -> list[Size] | None:
    """What an input of integers holds, as far as it is known; None when it is a run's tensor.

    A shape of the model gives its sizes, symbolic ones among them.
    """
    if isinstance(value, relax.ShapeExpr):
        return [int(s) if isinstance(s, tirx.IntImm) else s for s in value.values]
    if value is not None and tvm.ir.is_prim_expr(value):
        return [value]
    array = constant_array(value, params)
    return None if array is None else [int(number) for number in np.atleast_1d(array)]


def is_size(value: Any) -> bool:
    """Whether it is one size, computed while the model is compiled or from other sizes."""
    return isinstance(value, tvm.ir.Expr) and tvm.ir.is_prim_expr(value)


def sizes_as_tensor(bb: relax.BlockBuilder, value: Any) -> relax.Expr:
    """A shape as int64[n], or one size as int64[]; constant where all sizes are known."""
    sizes = list(value.values) if isinstance(value, relax.ShapeExpr) else [value]
    scalar = not isinstance(value, relax.ShapeExpr)
    if all(isinstance(size, tirx.IntImm) for size in sizes):
        array = np.array([int(size) for size in sizes], np.int64)
        return relax.const(array.reshape(()) if scalar else array, "int64")
    tensor = bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr(sizes)))
    return bb.emit(relax.op.reshape(tensor, ())) if scalar else tensor


def integer_tensor(bb: relax.BlockBuilder, value: Any) -> relax.Expr:
    """``value`` as int64[n]: a tensor of any integer type, a scalar, or a shape."""
    if isinstance(value.ty, relax.ShapeType):
        return bb.emit(relax.op.shape_to_tensor(value))
    if tvm.ir.is_prim_expr(value):
        return bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr([value])))
    if str(value.ty.dtype) != "int64":
        value = bb.emit(relax.op.astype(value, "int64"))
    if value.ty.ndim == 0:
        value = bb.emit(relax.op.reshape(value, [1]))
    return value


def vector_length(value: relax.Expr, what: str) -> int:
    """How many elements a tensor of one dimension has; raises FormError when that is symbolic."""
    sizes = static_sizes(value)
    if sizes is None or len(sizes) != 1:
        raise FormError(f"the number of its {what} is not known")
    return sizes[0]


def first_rows(
    bb: relax.BlockBuilder, rows: relax.Expr, size: tirx.Var, name: str, axis: int = 0
) -> relax.Expr:
    """The first ``size`` elements of ``rows`` along ``axis``."""

    def kernel(whole: te.Tensor, size: tirx.Var) -> te.Tensor:
        shape = [size if place == axis else extent for place, extent in enumerate(whole.shape)]
        return te.compute(shape, lambda *index: whole(*index), name=name)

    return bb.emit_te(kernel, rows, size, primfunc_name_hint=name)

"""Sizes that are known only in the run: from values to symbolic dimensions.

Every operator whose output size depends on values goes the same road, in kernels alone, without a
packed function of Python: one kernel computes the sizes, ``tensor_to_shape`` reads them, a
``match_cast`` binds them to new symbolic dimensions, and the next kernel's output has these.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import Size, constant_array, sizes_of
from tvm_ext.onnx_frontend.sizes.size_values import SizeValues, vector


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


def static_sizes(value: relax.Expr) -> list[int] | None:
    """The sizes of a tensor; None when one of them is symbolic."""
    sizes = sizes_of(value)
    return [int(s) for s in sizes] if all(isinstance(s, int) for s in sizes) else None


def constant_integers(value: Any, params: Any) -> list[Size] | None:
    """What an input of integers holds; None when an element is known in the run only.

    Expressions of symbolic sizes are among them.
    """
    if isinstance(value, SizeValues):
        return None if value.unknown else value.listed()
    array = constant_array(value, params)
    return None if array is None else [int(number) for number in np.atleast_1d(array)]


def sizes_in_the_run(bb: relax.BlockBuilder, value: Any, params: Any, name: str) -> list[Size]:
    """The sizes that an input of one axis holds; those that only the run knows get new dimensions.

    A negative one of these counts as zero.
    """
    known = constant_integers(value, params)
    if known is not None:
        return known
    tensor = integer_tensor(bb, value)
    count = vector_length(tensor, "sizes")
    found = value.listed() if isinstance(value, SizeValues) else [None] * count
    symbolic_places = [place for place, element in enumerate(found) if element is None]
    names = [f"{name}_{place}" for place in symbolic_places]
    new = computed_dimensions(bb, names, lambda t: [t[place] for place in symbolic_places], tensor)
    for place, dimension in zip(symbolic_places, new, strict=True):
        found[place] = dimension
    return found


def integer_tensor(bb: relax.BlockBuilder, value: Any) -> relax.Expr:
    """``value`` as int64[n]: a tensor of any integer type, a scalar, or sizes."""
    if isinstance(value, SizeValues):
        value = value.as_tensor(bb)
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

"""Tensors whose sizes the run checks before anything reads them."""

import functools
import operator
from collections.abc import Sequence
from typing import Any

from tvm import relax, te, tirx
from tvm.sym import Analyzer

from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of
from tvm_ext.onnx_frontend.converters.runtime_sizes import wide
from tvm_ext.onnx_frontend.sizes.size_values import vector


def of_sizes(bb: relax.BlockBuilder, data: relax.Expr, sizes: Sequence[Size]) -> relax.Expr:
    """``data`` with these sizes, which the run checks where they are not known to be its own."""
    if all(equal_sizes(old, new) for old, new in zip(sizes_of(data), sizes, strict=True)):
        return data
    if not isinstance(data, relax.Var):
        data = bb.emit(data)
    pairs = list(zip(sizes_of(data), sizes, strict=True))
    if any(isinstance(new, tirx.Var) and not equal_sizes(old, new) for old, new in pairs):
        data = _copied(bb, data, pairs)
        sizes = [
            old if isinstance(new, tirx.Var) else new
            for old, new in zip(sizes_of(data), sizes, strict=True)
        ]
    return bb.match_cast(data, relax.TensorType(list(sizes), str(data.ty.dtype)))


def _copied(
    bb: relax.BlockBuilder, data: relax.Expr, pairs: Sequence[tuple[Size, Size]]
) -> relax.Expr:
    """``data`` with the second of each pair as size where that is a variable, after a check.

    TVM takes a cast of one variable to another for a renaming, and checks nothing in the run.
    """
    renamed = [
        axis
        for axis, (old, new) in enumerate(pairs)
        if isinstance(new, tirx.Var) and not equal_sizes(old, new)
    ]

    def agreed(old: list[Any], new: list[Any]) -> te.Tensor:
        fits = tirx.all(*(wide(a) == wide(b) for a, b in zip(old, new, strict=True)))
        return vector([tirx.Select(fits, wide(1), wide(0))], name="agreed")

    flag = bb.emit_te(
        agreed,
        [pairs[axis][0] for axis in renamed],
        [pairs[axis][1] for axis in renamed],
        primfunc_name_hint="agreed",
    )
    shape = [new if axis in renamed else old for axis, (old, new) in enumerate(pairs)]
    return _checked_copy(bb, data, shape, flag)


def _checked_copy(
    bb: relax.BlockBuilder, data: relax.Expr, shape: Sequence[Size], flag: relax.Expr
) -> relax.Expr:
    """``data``, of at least one axis, with these sizes; the run fails if ``flag``, int64[1], is 0.

    The check defines a size that the copy reads, so that no pass takes it for unused.
    """

    def first_and_flag(flag: te.Tensor, first: Any) -> te.Tensor:
        return vector([wide(first), flag[0]], name="checked")

    first = shape[0] if isinstance(shape[0], int) else wide(shape[0])
    pair = bb.emit_te(first_and_flag, flag, first, primfunc_name_hint="checked")
    pair = bb.match_cast(pair, relax.TensorType([2], "int64"))
    size = tirx.Var("checked", "int64")
    found = bb.emit(relax.op.tensor_to_shape(pair))
    bb.match_cast(found, relax.ShapeType([size, tirx.const(1, "int64")]))

    def kernel(data: te.Tensor, size: tirx.Var, shape: list[Any]) -> te.Tensor:
        def read(first: tirx.Var, *rest: tirx.Var) -> tirx.Expr:
            return data(tirx.min(wide(first), size - 1), *rest)

        return te.compute(shape, read, name="copy")

    return bb.emit_te(kernel, data, size, list(shape), primfunc_name_hint="copy")


def with_as_many_elements(
    bb: relax.BlockBuilder, data: relax.Expr, wanted: Sequence[Size]
) -> relax.Expr:
    """``data`` after the run's check that it has as many elements as ``wanted``.

    Kernels would read beyond its end where the sizes of the inputs make it smaller.
    """
    sizes = sizes_of(data)
    have, need = (functools.reduce(operator.mul, listed, 1) for listed in (sizes, wanted))
    if (isinstance(have, int) and isinstance(need, int)) or Analyzer().can_prove_equal(have, need):
        return data
    if not sizes:
        return data

    def agreed(old: list[Any], new: list[Any]) -> te.Tensor:
        counts = [functools.reduce(operator.mul, map(wide, side), wide(1)) for side in (old, new)]
        return vector([tirx.Select(counts[0] == counts[1], wide(1), wide(0))], name="agreed")

    flag = bb.emit_te(agreed, sizes, wanted, primfunc_name_hint="agreed")
    return _checked_copy(bb, data, sizes, flag)


def equal_sizes(first: Size, second: Size) -> bool:
    """Whether two sizes are known to be the same in every run."""
    if isinstance(first, int) and isinstance(second, int):
        return first == second
    return bool(Analyzer().can_prove_equal(first, second))

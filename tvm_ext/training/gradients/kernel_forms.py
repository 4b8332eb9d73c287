"""Gradients of kernels that say what they compute by an attribute, and are no single statement."""

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tvm import relax, tirx
from tvm.relax import op

from tvm_ext.onnx_frontend.converters.col2im import COLUMNS, ColumnsForm, columns_of_image
from tvm_ext.onnx_frontend.converters.gather_scatter import (
    SCATTERED,
    read_where_scattered,
    scattered_elements,
    scattered_slices,
)
from tvm_ext.onnx_frontend.converters.reductions import CUMULATED, cumulated
from tvm_ext.onnx_frontend.converters.top_k import TOP
from tvm_ext.training.gradients.registration import dtype_of, sizes

_Operands: TypeAlias = Sequence[relax.Expr]
_Gradients: TypeAlias = Sequence[relax.Expr | None]
FormGradient: TypeAlias = (
    "Callable[[relax.BlockBuilder, relax.Expr, _Operands, relax.Expr, dict[str, Any]], _Gradients]"
)
"""From the builder, the result, the operands, the gradient of the result and the form."""


def gradient_of_form(func: tirx.PrimFunc) -> tuple[FormGradient, dict[str, Any]] | None:
    """The gradient by the operands of a kernel and the kernel's form; None without a form."""
    attributes = func.attrs or {}
    for name, gradient in _GRADIENTS.items():
        if name in attributes:
            return gradient, json.loads(str(attributes[name]))
    return None


def _cumulated(
    bb: relax.BlockBuilder,
    y: relax.Expr,
    operands: _Operands,
    given: relax.Expr,
    form: dict[str, Any],
) -> _Gradients:
    """Running sums from the other end."""
    turned = {"exclusive": form["exclusive"], "reverse": not form["reverse"]}
    return [cumulated(bb, given, int(form["axis"]), turned, product=False)]


def _top(
    bb: relax.BlockBuilder,
    y: relax.Expr,
    operands: _Operands,
    given: relax.Expr,
    form: dict[str, Any],
) -> _Gradients:
    """To the elements that were taken."""
    places, by_values = bb.emit(relax.TupleGetItem(y, 1)), bb.emit(relax.TupleGetItem(given, 0))
    x = operands[0]
    zeros = bb.emit(op.zeros(sizes(x), dtype_of(x)))
    return [op.scatter_elements(zeros, places, by_values, int(form["axis"]), "add")]


def _of_columns(
    bb: relax.BlockBuilder,
    y: relax.Expr,
    operands: _Operands,
    given: relax.Expr,
    form: dict[str, Any],
) -> _Gradients:
    """To each column that of the elements that it has been added to."""
    return [columns_of_image(bb, given, ColumnsForm(**form))]


def _scattered(
    bb: relax.BlockBuilder,
    y: relax.Expr,
    operands: _Operands,
    given: relax.Expr,
    form: dict[str, Any],
) -> _Gradients:
    """To each update what lies where it was written; to the data the rest, or all of sums.

    Of several updates that replace one element, each gets its gradient, as in PyTorch.
    """
    _, indices, updates = operands
    axis = form["axis"]
    by_updates = read_where_scattered(bb, given, indices, updates, axis)
    if form["reduction"] == "add":
        return [given, None, by_updates]
    zeros = bb.emit(op.zeros(sizes(updates), dtype_of(updates)))
    if axis is None:
        return [scattered_slices(bb, given, indices, zeros), None, by_updates]
    return [scattered_elements(bb, given, indices, zeros, axis), None, by_updates]


_GRADIENTS: dict[str, FormGradient] = {
    CUMULATED: _cumulated,
    COLUMNS: _of_columns,
    SCATTERED: _scattered,
    TOP: _top,
}

"""Gradients of kernels that say what they compute by an attribute, and are no single statement."""

import json
from collections.abc import Callable
from typing import Any, TypeAlias

from tvm import relax, tirx
from tvm.relax import op

from tvm_ext.onnx_frontend.converters.col2im import COLUMNS, ColumnsForm, columns_of_image
from tvm_ext.onnx_frontend.converters.reductions import CUMULATED, cumulated
from tvm_ext.onnx_frontend.converters.top_k import TOP
from tvm_ext.training.gradients.registration import dtype_of, sizes

FormGradient: TypeAlias = (
    "Callable[[relax.BlockBuilder, relax.Expr, relax.Expr, relax.Expr, dict[str, Any]], relax.Expr]"
)
"""From the builder, the result, the operand, the gradient of the result and the form."""


def gradient_of_form(func: tirx.PrimFunc) -> tuple[FormGradient, dict[str, Any]] | None:
    """The gradient by the only operand of a kernel and the kernel's form; None without a form."""
    attributes = func.attrs or {}
    for name, gradient in _GRADIENTS.items():
        if name in attributes:
            return gradient, json.loads(str(attributes[name]))
    return None


def _cumulated(
    bb: relax.BlockBuilder, y: relax.Expr, x: relax.Expr, given: relax.Expr, form: dict[str, Any]
) -> relax.Expr:
    """Running sums from the other end."""
    turned = {"exclusive": form["exclusive"], "reverse": not form["reverse"]}
    return cumulated(bb, given, int(form["axis"]), turned, product=False)


def _top(
    bb: relax.BlockBuilder, y: relax.Expr, x: relax.Expr, given: relax.Expr, form: dict[str, Any]
) -> relax.Expr:
    """To the elements that were taken."""
    places, by_values = bb.emit(relax.TupleGetItem(y, 1)), bb.emit(relax.TupleGetItem(given, 0))
    zeros = bb.emit(op.zeros(sizes(x), dtype_of(x)))
    return op.scatter_elements(zeros, places, by_values, int(form["axis"]), "add")


def _of_columns(
    bb: relax.BlockBuilder, y: relax.Expr, x: relax.Expr, given: relax.Expr, form: dict[str, Any]
) -> relax.Expr:
    """To each column that of the elements that it has been added to."""
    return columns_of_image(bb, given, ColumnsForm(**form))


_GRADIENTS: dict[str, FormGradient] = {
    CUMULATED: _cumulated,
    COLUMNS: _of_columns,
    TOP: _top,
}

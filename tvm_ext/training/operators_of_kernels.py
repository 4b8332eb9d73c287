"""Kernels of the ONNX import as the operators that they compute, which have gradients."""

import json
from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from tvm_ext.onnx_frontend.converters.pad_and_split import PADDING
from tvm_ext.relay_passes.expressions import operator_name
from tvm_ext.relay_passes.softmax_fusion import REDUCTION
from tvm_ext.relay_passes.spans import relax_functions, with_functions


def with_operators(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with operators in place of calls of kernels that say what they compute.

    These are maxima and minima, and pads with a number.
    """
    changed = {
        var: _Operators(mod).visit_expr(function) for var, function in relax_functions(mod).items()
    }
    return with_functions(mod, changed)


@mutator
class _Operators(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self._module = mod

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        made = super().visit_call_(call)
        if operator_name(made) != "relax.call_tir":
            return made
        attributes = self._module[call.args[0]].attrs or {}
        operands = list(made.args[1].fields)
        if REDUCTION in attributes:
            return self._normal(_reduction(operands, json.loads(str(attributes[REDUCTION]))))
        if PADDING in attributes:
            found = _padding(operands, json.loads(str(attributes[PADDING])))
            return made if found is None else self._normal(found)
        return made

    def _normal(self, expr: relax.Expr) -> relax.Expr:
        return self.builder_.normalize(expr)


def _reduction(operands: Sequence[relax.Expr], form: dict[str, Any]) -> relax.Expr:
    combine = getattr(relax.op, form["combine"])
    return combine(operands[0], list(form["axes"]), bool(form["keepdims"]))


def _padding(operands: Sequence[relax.Expr], form: dict[str, Any]) -> relax.Expr | None:
    """None where the number is not known, or elements are taken away."""
    fill = operands[1]
    if not isinstance(fill, tvm.ir.GenericConst) or min(*form["before"], *form["after"]) < 0:
        return None
    pairs = zip(form["before"], form["after"], strict=True)
    widths = [width for pair in pairs for width in pair]
    return relax.op.nn.pad(operands[0], widths, "constant", float(fill.value.numpy()))

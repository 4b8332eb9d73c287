"""Exponentials and what is built on them as polynomials that run in vector registers."""

import math
from collections.abc import Callable
from typing import Any

import tvm
from tvm import relax, te, tirx, topi

from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.graph_pass import graph_pass

# Between these TVM's polynomial for exp holds; below, results are no normal numbers any more.
EXP_LEAST, EXP_MOST = -87.33, 88.37


@graph_pass
class VectorMath:
    """Replaces calls of the C library, one an element, by TVM's polynomials, one a vector.

    Before: ``sigmoid(x)``, a call of ``expf`` for every element
    After:  one kernel that computes ``1 / (1 + fast_exp(-x))`` on whole vectors

    exp, tanh and erf are TVM's ``topi.fast_*``; sigmoid, silu, gelu (both forms) and softmax follow
    from them. Largest relative error measured where the result is a normal number: exp and sigmoid
    3e-7 with fused multiply-add and 5e-6 without, tanh 3e-7, erf 4e-7; silu and gelu 2e-7 of x.

    The polynomials cut their argument to the range they are for, NaN too; what is beyond it is put
    back here: NaN stays NaN, exp is 0 below the normal numbers and infinite above 88.37.

    Leaves alone: other types than float32; logarithms, powers, trigonometric functions.

    Run after: GemmFusion and LayoutPlanning, which know the operators by name. Run before:
    LegalizeOps.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself when it has none of these operators in float32."""
        return _VectorMath().run(mod)


_Compute = Callable[[te.Tensor], te.Tensor]


def _elementwise(x: te.Tensor, function: Callable[..., Any], *others: te.Tensor) -> te.Tensor:
    """``function(x, others...)`` element by element."""
    return te.compute(
        x.shape, lambda *i: function(x(*i), *(other(*i) for other in others)), name="vector_math"
    )


def _number(value: float) -> tirx.FloatImm:
    return tirx.const(value, "float32")


def _exp(x: te.Tensor) -> te.Tensor:
    def in_range(v: tirx.Expr, e: tirx.Expr) -> tirx.Expr:
        not_tiny = tirx.Select(v >= _number(EXP_LEAST), e, _number(0.0))
        # NaN compares false, and is NaN with anything added.
        return tirx.Select(v <= _number(EXP_MOST), not_tiny, v + _number(math.inf))

    return _elementwise(x, in_range, topi.fast_exp(x))


def _keeping_nan(fast: _Compute) -> _Compute:
    def compute(x: te.Tensor) -> te.Tensor:
        infinite = _number(math.inf)
        return _elementwise(x, lambda v, e: tirx.Select(v <= infinite, e, v), fast(x))

    return compute


def _softmax(x: te.Tensor, axis: int) -> te.Tensor:
    """``exp(x - max(x)) / sum(exp(x - max(x)))`` along ``axis``."""
    exponential = _exp(topi.subtract(x, topi.max(x, axis, keepdims=True)))
    return topi.divide(exponential, topi.sum(exponential, axis, keepdims=True))


def _sigmoid(x: te.Tensor) -> te.Tensor:
    exponential = _exp(_elementwise(x, lambda v: -v))
    return _elementwise(exponential, lambda e: _number(1.0) / (_number(1.0) + e))


def _silu(x: te.Tensor) -> te.Tensor:
    return _elementwise(x, lambda v, gate: v * gate, _sigmoid(x))


def _gelu(x: te.Tensor) -> te.Tensor:
    """``x / 2 * (1 + erf(x / sqrt(2)))``."""
    error = topi.fast_erf(_elementwise(x, lambda v: v * _number(math.sqrt(0.5))))
    return _elementwise(x, lambda v, e: v * _number(0.5) * (_number(1.0) + e), error)


def _gelu_tanh(x: te.Tensor) -> te.Tensor:
    """``x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))``."""
    factor = math.sqrt(2.0 / math.pi)
    inner = _elementwise(x, lambda v: v * (_number(factor) + _number(factor * 0.044715) * v * v))
    bent = topi.fast_tanh(inner)
    return _elementwise(x, lambda v, t: v * _number(0.5) * (_number(1.0) + t), bent)


_COMPUTES: dict[str, _Compute] = {
    "relax.exp": _exp,
    "relax.tanh": _keeping_nan(topi.fast_tanh),
    "relax.erf": _keeping_nan(topi.fast_erf),
    "relax.sigmoid": _sigmoid,
    "relax.nn.silu": _silu,
    "relax.nn.gelu": _gelu,
    "relax.nn.gelu_tanh": _gelu_tanh,
}


class _VectorMath(BindingRewriter):
    pass_name = "VectorMath"

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        if not isinstance(value, relax.Call) or not isinstance(value.op, tvm.ir.Op):
            return None
        name = str(value.op.name)
        if name not in _COMPUTES and name != "relax.nn.softmax":
            return None
        short = name.removeprefix("relax.").removeprefix("nn.")
        if not isinstance(var.ty, relax.TensorType) or str(var.ty.dtype) != "float32":
            self.refuse(f"{short} of another type than float32", var)
            return None
        if var.ty.shape is None:
            self.refuse(f"{short} of a tensor whose shape is not known", var)
            return None
        x = value.args[0]
        if name == "relax.nn.softmax":
            axis = int(value.attrs.axis)
            call = self.builder.call_te(_softmax, x, axis, primfunc_name_hint="vector_softmax")
        else:
            call = self.builder.call_te(_COMPUTES[name], x, primfunc_name_hint=f"vector_{short}")
        return Replacement(call, (), f"{short} as a vector polynomial")

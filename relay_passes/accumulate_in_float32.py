"""Gives products of 16-bit types their operands as they are, and asks for float32 sums."""

import numpy as np
import tvm
from tvm import relax

from tvm_ext.hardware.cuda.description import current_gpu
from tvm_ext.relay_passes.binding_rewriter import BindingRewriter, Replacement
from tvm_ext.relay_passes.expressions import (
    constant_value,
    convolution_like,
    numpy_dtype,
    operator_name,
)
from tvm_ext.relay_passes.graph_pass import graph_pass
from tvm_ext.relay_passes.layout_roles import CONVOLUTIONS

_NARROW = ("float16", "bfloat16")


@graph_pass
class AccumulateInFloat32:
    """Takes casts to float32 away from operands of products that tensor cores multiply as they are.

    Before: ``matmul(astype(a, float32), astype(b, float32))`` of float16 or bfloat16 ``a``, ``b``
    After:  ``matmul(a, b, out_dtype="float32")``; the same for convolutions

    A product of two such numbers is exact in float32, and sums stay in float32: nothing is rounded
    more than before. A constant of float32 whose numbers all are float16 (or bfloat16) counts as a
    cast one: weights that were cast when the model was read.

    Leaves alone: operands of two types; constants that would be rounded; targets without a rate
    for the type of the operands among their tensor cores' ("tensor_tflops").

    Run after: CanonicalizeBindings. Run before: ConvBnReluFold, GemmFusion, LayoutPlanning.
    """

    def transform_module(self, mod: tvm.IRModule, ctx: tvm.transform.PassContext) -> tvm.IRModule:
        """Returns ``mod`` itself where there is no such product."""
        machine = current_gpu()
        if machine is None:
            return mod
        return _Narrower(tuple(t for t in _NARROW if machine.has_tensor_rate(t))).run(mod)


class _Narrower(BindingRewriter):
    pass_name = "AccumulateInFloat32"

    def __init__(self, dtypes: tuple[str, ...]) -> None:
        self.dtypes = dtypes

    def replace(self, var: relax.Var, value: relax.Expr) -> Replacement | None:
        call = self.view.call(value, "relax.matmul", *CONVOLUTIONS)
        if call is None or call is not value or str(var.ty.dtype) != "float32":
            return None
        dtype = next((d for d in map(self._cast_from, call.args) if d), "")
        if dtype not in self.dtypes:
            return None
        operands = [self._as(arg, dtype) for arg in call.args]
        if any(operand is None for operand in operands):
            self.refuse(f"one operand is not {dtype} as the other is", var)
            return None
        name = str(call.op.name).rsplit(".", 1)[-1]
        return Replacement(
            _summed_in_float32(call, *operands), (), f"{name} of {dtype} as it is, without casts"
        )

    def _cast_from(self, operand: relax.Expr) -> str:
        """The narrow type from which an operand was cast; "" for another one."""
        cast = self.view.call(operand, "relax.astype")
        found = str(cast.args[0].ty.dtype) if cast is not None else ""
        return found if found in _NARROW and str(operand.ty.dtype) == "float32" else ""

    def _as(self, operand: relax.Expr, dtype: str) -> relax.Expr | None:
        if self._cast_from(operand) == dtype:
            cast = self.view.call(operand, "relax.astype")
            return cast.args[0]  # type: ignore[union-attr]
        wide = constant_value(self.view, operand)
        if wide is None:
            return None
        with np.errstate(over="ignore"):
            narrow = wide.astype(numpy_dtype(dtype))
        if not np.array_equal(narrow.astype(wide.dtype), wide, equal_nan=True):
            return None
        return relax.const(narrow, dtype)


def _summed_in_float32(call: relax.Call, first: relax.Expr, second: relax.Expr) -> relax.Expr:
    if operator_name(call) == "relax.matmul":
        return relax.op.matmul(first, second, out_dtype="float32")
    return convolution_like(call, first, second, out_dtype="float32")

"""Clip as two Relax operators.

TVM's converter calls TensorIR functions right away, which no graph pass can look into: layout
planning would convert back and forth around every ReLU6 and hard-swish.
"""

from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.hardware.tvm_compat import OnnxOpConverter


class Clip(OnnxOpConverter):
    """``minimum(high, maximum(low, x))``; a bound that is absent or NaN is no bound."""

    @classmethod
    def _impl_v6(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        dtype = str(x.ty.dtype)
        low, high = (
            relax.const(attr[key], dtype) if key in attr else None for key in ("min", "max")
        )
        return _clipped(bb, x, low, high)

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _clipped(bb, inputs[0], inputs[1], inputs[2])


def _clipped(
    bb: relax.BlockBuilder, x: relax.Expr, low: relax.Expr | None, high: relax.Expr | None
) -> relax.Expr:
    # A comparison with NaN picks the second operand: with x there, NaN goes through as it should.
    low = None if low is None else _usable_bound(bb, low, -np.inf)
    high = None if high is None else _usable_bound(bb, high, np.inf)
    if low is not None:
        x = bb.emit(relax.op.maximum(low, x))
    if high is not None:
        x = bb.emit(relax.op.minimum(high, x))
    return x


def _usable_bound(
    bb: relax.BlockBuilder, bound: relax.Expr, instead_of_nan: float
) -> relax.Expr | None:
    dtype = str(bound.ty.dtype)
    if not dtype.startswith(("float", "bfloat")):
        return bound
    if isinstance(bound, tvm.ir.GenericConst):
        return None if np.isnan(bound.value.numpy().astype("float32")).any() else bound
    endless = relax.const(instead_of_nan, dtype)
    return bb.emit(relax.op.where(relax.op.isnan(bound), endless, bound))

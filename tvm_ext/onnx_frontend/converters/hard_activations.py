"""HardSwish, Sign and ThresholdedRelu.

TVM's HardSwish divides by 6, which costs as much as ten multiplications and is not vectorised into
the multiply-adds before it; its Sign of NaN is 0; its ThresholdedRelu of -infinity is NaN.
"""

from typing import Any

from tvm import relax

from tvm_ext.hardware.tvm_compat import OnnxOpConverter

# ONNX operator HardSwish-14: y = x * max(0, min(1, alpha * x + beta)).
_ALPHA = 1.0 / 6.0
_BETA = 0.5


class HardSwish(OnnxOpConverter):
    """``x * max(0, min(1, x / 6 + 1 / 2))``."""

    @classmethod
    def _impl_v14(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        dtype = str(x.ty.dtype)
        scaled = bb.normalize(relax.op.multiply(x, relax.const(_ALPHA, dtype)))
        shifted = bb.normalize(relax.op.add(scaled, relax.const(_BETA, dtype)))
        gate = bb.normalize(relax.op.clip(shifted, 0.0, 1.0))
        return relax.op.multiply(x, gate)


class Sign(OnnxOpConverter):
    """-1, 0 or 1; NaN stays NaN."""

    @classmethod
    def _impl_v9(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        sign = bb.normalize(relax.op.sign(x))
        if not str(x.ty.dtype).startswith("float"):
            return sign
        return relax.op.where(bb.normalize(relax.op.isnan(x)), x, sign)


class ThresholdedRelu(OnnxOpConverter):
    """``x`` where it is above ``alpha``, else 0, for NaN too."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        dtype = str(x.ty.dtype)
        above = relax.op.greater(x, relax.const(attr.get("alpha", 1.0), dtype))
        return relax.op.where(bb.normalize(above), x, relax.const(0, dtype))

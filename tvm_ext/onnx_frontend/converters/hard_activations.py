"""HardSwish as the ONNX specification writes it, with a product in place of a quotient.

TVM's converter divides by 6, which costs as much as ten multiplications and is not vectorised into
the multiply-adds before it.
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

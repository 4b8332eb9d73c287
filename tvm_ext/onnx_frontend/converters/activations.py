"""Activations and hyperbolic functions: HardSwish, Softplus, Mish, Sign, ThresholdedRelu, Sinh.

TVM's HardSwish divides by 6, which costs as much as ten multiplications and is not vectorised
into the multiply-adds before it; its Sign of NaN is 0; its ThresholdedRelu of -infinity is NaN.
"""

from typing import Any

from tvm import relax

from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter

# ONNX operator HardSwish-14: y = x * max(0, min(1, alpha * x + beta)).
_ALPHA = 1.0 / 6.0
_BETA = 0.5


class HardSwish(OnnxOpConverter):
    """``x * max(0, min(1, x / 6 + 1 / 2))``."""

    @classmethod
    def _impl_v14(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        dtype = str(x.ty.dtype)
        if dtype in ("float16", "bfloat16"):
            # alpha is no number of these: times -3, and beta added, it would not be 0.
            moved = bb.normalize(relax.op.add(x, relax.const(_BETA / _ALPHA, dtype)))
            gate = bb.normalize(relax.op.clip(moved, 0.0, 1 / _ALPHA))
            scaled = bb.normalize(relax.op.multiply(gate, relax.const(_ALPHA, dtype)))
            return relax.op.multiply(x, scaled)
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


# Softplus, Mish, Sinh and Cosh as formulas that keep their accuracy.
#
# TVM's Softplus and Mish take ``log(1 + exp(x))``, of which float32 keeps three digits at x = -10
# (backend test test_mish); for Sinh and Cosh it calls functions that LLVM does not have.


class Softplus(OnnxOpConverter):
    """``max(x, 0) + log1p(exp(-|x|))``.

    ``log1p(t)`` is ``t * log(u) / (u - 1)`` with ``u`` the rounded ``1 + t``, in which the error of
    rounding cancels out (Kahan; see D. Goldberg, "What Every Computer Scientist Should Know About
    Floating-Point Arithmetic", theorem 4).
    """

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        one, zero = (relax.const(number, str(x.ty.dtype)) for number in (1, 0))
        t = bb.emit(relax.op.exp(relax.op.negative(relax.op.abs(x))))
        u = bb.emit(relax.op.add(t, one))
        rest = bb.emit(relax.op.subtract(u, one))
        is_tiny = relax.op.equal(rest, zero)
        ratio = relax.op.divide(relax.op.log(u), relax.op.where(is_tiny, one, rest))
        log1p = relax.op.where(is_tiny, t, relax.op.multiply(t, ratio))
        return relax.op.add(relax.op.maximum(x, zero), log1p)


class Mish(OnnxOpConverter):
    """``x * tanh(log(1 + e))``, with ``e = exp(x)`` this is ``x * n / (n + 2)``, ``n = e (e + 2)``.

    Beyond 20 the quotient is 1 in float64 too, before ``n`` overflows.
    """

    @classmethod
    def _impl_v18(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        given = inputs[0]
        dtype = str(given.ty.dtype)
        wide = "float32" if dtype in ("float16", "bfloat16") else dtype
        x = bb.emit(relax.op.astype(given, wide)) if wide != dtype else given
        two = relax.const(2, wide)
        e = bb.emit(relax.op.exp(relax.op.minimum(x, relax.const(20, wide))))
        n = bb.emit(relax.op.multiply(e, relax.op.add(e, two)))
        gate = relax.op.divide(n, relax.op.add(n, two))
        result = bb.emit(relax.op.multiply(x, gate))
        return relax.op.astype(result, dtype) if wide != dtype else result


def _hyperbolic(bb: relax.BlockBuilder, x: relax.Expr, sign: int) -> relax.Expr:
    """``(e + sign / e) / 2``, halved first: ``e = exp(|x|)`` may overflow where this does not."""
    dtype = str(x.ty.dtype)
    half = bb.emit(relax.op.exp(relax.op.subtract(relax.op.abs(x), relax.const(LN2, dtype))))
    quarter = relax.op.divide(relax.const(0.25 * sign, dtype), half)
    return bb.emit(relax.op.add(half, quarter))


# exp(x - log 2) is exp(x) / 2.
LN2 = 0.6931471805599453


class Cosh(OnnxOpConverter):
    """``(exp(x) + exp(-x)) / 2``."""

    @classmethod
    def _impl_v9(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        return _hyperbolic(bb, inputs[0], 1)


class Sinh(OnnxOpConverter):
    """``(exp(x) - exp(-x)) / 2``, and its Taylor series to x^11 below 1, where that cancels."""

    @classmethod
    def _impl_v9(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        dtype = str(x.ty.dtype)
        large = bb.emit(relax.op.multiply(relax.op.sign(x), _hyperbolic(bb, x, -1)))
        square = bb.emit(relax.op.multiply(x, x))
        series = relax.const(0, dtype)
        for divisor in (110, 72, 42, 20, 6):
            scaled = relax.op.multiply(square, relax.const(1 / divisor, dtype))
            factor = relax.op.add(relax.const(1, dtype), series)
            series = bb.emit(relax.op.multiply(scaled, factor))
        small = relax.op.add(x, relax.op.multiply(x, series))
        is_small = relax.op.less(relax.op.abs(x), relax.const(1, dtype))
        return relax.op.where(is_small, small, large)


SMOOTH_ACTIVATIONS = {"Cosh": Cosh, "Mish": Mish, "Sinh": Sinh, "Softplus": Softplus}

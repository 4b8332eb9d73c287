"""What classifiers and regressors of ai.onnx.ml do with their scores at the end."""

import math

import numpy as np
from tvm import relax

from tvm_ext.errors import FormError

# As ONNX Runtime and onnx.reference compute them.
_ALMOST_ZERO = 1e-7
_WINITZKI = 0.147


def post_transformed(bb: relax.BlockBuilder, scores: relax.Expr, how: str) -> relax.Expr:
    """``scores`` (``(rows, classes)``, floating point) after NONE, LOGISTIC, SOFTMAX and so on.

    Raises
    ------
    FormError
        There is no such transform.
    """
    if how == "NONE":
        return scores
    if how == "LOGISTIC":
        return bb.emit(relax.op.sigmoid(scores))
    if how == "SOFTMAX":
        return bb.emit(relax.op.nn.softmax(scores, axis=-1))
    if how == "SOFTMAX_ZERO":
        return _softmax_of_what_is_not_zero(bb, scores)
    if how == "PROBIT":
        return _probit(bb, scores)
    raise FormError(f"its post_transform '{how}' is unknown")


def _softmax_of_what_is_not_zero(bb: relax.BlockBuilder, scores: relax.Expr) -> relax.Expr:
    """Scores of zero stay (nearly) zero."""
    dtype = str(scores.ty.dtype)
    largest = bb.emit(relax.op.max(scores, axis=-1, keepdims=True))
    raised = bb.emit(relax.op.exp(bb.emit(relax.op.subtract(scores, largest))))
    scale = bb.emit(relax.op.exp(bb.emit(relax.op.negative(largest))))
    near = bb.emit(relax.op.abs(scores))
    zero = bb.emit(relax.op.less_equal(near, relax.const(_ALMOST_ZERO, dtype)))
    kept = bb.emit(relax.op.where(zero, bb.emit(relax.op.multiply(scores, scale)), raised))
    total = bb.emit(relax.op.sum(kept, axis=-1, keepdims=True))
    nothing = bb.emit(relax.op.equal(total, relax.const(0, dtype)))
    share = bb.emit(relax.op.divide(kept, total))
    return bb.emit(relax.op.where(nothing, relax.const(0.5, dtype), share))


def _probit(bb: relax.BlockBuilder, scores: relax.Expr) -> relax.Expr:
    """``sqrt(2) * erfinv(2 p - 1)`` with Winitzki's approximation of the inverse error function."""
    dtype = str(scores.ty.dtype)

    def constant(value: float) -> relax.Expr:
        return relax.const(np.asarray(value, dtype), dtype)

    x = bb.emit(relax.op.subtract(bb.emit(relax.op.multiply(scores, constant(2))), constant(1)))
    squared = bb.emit(relax.op.multiply(x, x))
    log = bb.emit(relax.op.log(bb.emit(relax.op.subtract(constant(1), squared))))
    half = bb.emit(relax.op.multiply(log, constant(0.5)))
    v = bb.emit(relax.op.add(half, constant(2 / (math.pi * _WINITZKI))))
    inner = bb.emit(relax.op.multiply(v, v))
    inner = bb.emit(relax.op.subtract(inner, bb.emit(relax.op.divide(log, constant(_WINITZKI)))))
    root = bb.emit(relax.op.subtract(bb.emit(relax.op.sqrt(inner)), v))
    size = bb.emit(relax.op.multiply(bb.emit(relax.op.sqrt(root)), constant(math.sqrt(2))))
    below = bb.emit(relax.op.less(x, constant(0)))
    return bb.emit(relax.op.where(below, bb.emit(relax.op.negative(size)), size))

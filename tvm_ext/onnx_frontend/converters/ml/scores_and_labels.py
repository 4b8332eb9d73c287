"""What classifiers and regressors make of their scores at the end: labels and post-transforms."""

import math

import numpy as np
from tvm import relax

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import sizes_of


def integer_labels(attr: dict, integers: str, strings: str = "classlabels_strings") -> np.ndarray:
    """The labels of a classifier as int64.

    Raises
    ------
    FormError
        They are strings, or there are none.
    """
    if attr.get(strings):
        raise FormError(
            "its class labels are strings, which no tensor holds here; expected integers: "
            "train or export it with integer labels"
        )
    labels = attr.get(integers)
    if not labels:
        raise FormError("it has no class labels")
    return np.array(labels, np.int64)


def chosen(bb: relax.BlockBuilder, scores: relax.Expr, labels: np.ndarray) -> relax.Expr:
    """The label of the largest of the scores ``(rows, classes)``, the first one of equals."""
    place = bb.emit(relax.op.argmax(scores, axis=-1))
    return bb.emit(relax.op.take(relax.const(labels, "int64"), place, axis=0, mode="clip"))


def one_of_two(
    bb: relax.BlockBuilder, score: relax.Expr, threshold: float, negative: int, positive: int
) -> relax.Expr:
    """``positive`` where the only score of a row, ``(rows, 1)``, is above the threshold."""
    row = bb.emit(relax.op.reshape(score, (sizes_of(score)[0],)))
    above = bb.emit(relax.op.greater(row, relax.const(threshold, str(row.ty.dtype))))
    return bb.emit(
        relax.op.where(above, relax.const(positive, "int64"), relax.const(negative, "int64"))
    )


def floats(bb: relax.BlockBuilder, x: relax.Expr) -> relax.Expr:
    """Rows of numbers ``(rows, columns)``: a vector as one row, integers as float32.

    Raises
    ------
    FormError
        The input has more than two axes.
    """
    sizes = sizes_of(x)
    if len(sizes) == 1:
        x = bb.emit(relax.op.reshape(x, (1, sizes[0])))
    elif len(sizes) != 2:
        raise FormError(f"its input has rank {len(sizes)}, expected rows and columns")
    dtype = str(x.ty.dtype)
    return x if dtype in ("float32", "float64") else bb.emit(relax.op.astype(x, "float32"))


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

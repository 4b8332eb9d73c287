"""LinearRegressor and LinearClassifier of ai.onnx.ml: one matmul each."""

from typing import Any

import numpy as np
from tvm import relax

from tvm_ext.errors import FormError
from tvm_ext.onnx_frontend.converters.arguments import sizes_of, text
from tvm_ext.onnx_frontend.converters.ml.scores_and_labels import (
    chosen,
    floats,
    integer_labels,
    one_of_two,
    post_transformed,
)
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter


class LinearRegressor(OnnxOpConverter):
    """``x W + b``, transformed."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = floats(bb, inputs[0])
        scores = _scores(bb, x, attr, int(attr.get("targets", 1)))
        return post_transformed(bb, scores, text(attr, "post_transform", "NONE"))


class LinearClassifier(OnnxOpConverter):
    """Labels, which must be integers, and transformed scores.

    One row of coefficients for two classes gives the scores of the second class. The first one
    gets what is left to 1, or with LOGISTIC the probability of the opposite, as in ONNX Runtime,
    which leaves the other transforms out: they are refused.
    """

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        labels = integer_labels(attr, "classlabels_ints")
        x = floats(bb, inputs[0])
        rows = _rows_of_coefficients(x, attr)
        post = text(attr, "post_transform", "NONE")
        scores = _scores(bb, x, attr, rows)
        if rows > 1:
            if rows != len(labels):
                raise FormError(f"it has {rows} rows of coefficients and {len(labels)} labels")
            return relax.Tuple([chosen(bb, scores, labels), post_transformed(bb, scores, post)])
        if len(labels) != 2:
            raise FormError(f"it has {len(labels)} labels for one score, expected two")
        label = one_of_two(bb, scores, 0.0, int(labels[0]), int(labels[1]))
        if post not in ("NONE", "LOGISTIC"):
            raise FormError(f"its post_transform {post} is of one score, expected NONE or LOGISTIC")
        scores = post_transformed(bb, scores, post)
        rest = bb.emit(relax.op.subtract(relax.const(1, str(x.ty.dtype)), scores))
        return relax.Tuple([label, bb.emit(relax.op.concat([rest, scores], axis=1))])


def _rows_of_coefficients(x: relax.Expr, attr: dict) -> int:
    """One or as many as labels; each has an intercept, or as many numbers as there are columns."""
    intercepts, columns = attr.get("intercepts"), sizes_of(x)[1]
    if intercepts:
        return len(intercepts)
    if not isinstance(columns, int):
        raise FormError("it has no intercepts, and the number of its columns is not known")
    return len(attr["coefficients"]) // columns


def _scores(bb: relax.BlockBuilder, x: relax.Expr, attr: dict, targets: int) -> relax.Expr:
    """``(rows, targets)`` of ``x``, ``(rows, columns)``."""
    dtype = str(x.ty.dtype)
    weights = np.array(attr["coefficients"], dtype)
    if targets < 1 or weights.size % targets:
        raise FormError(f"it has {weights.size} coefficients for {targets} targets")
    matrix = np.ascontiguousarray(weights.reshape(targets, -1).T)
    columns = sizes_of(x)[1]
    if isinstance(columns, int) and len(matrix) != columns:
        raise FormError(
            f"it has {len(matrix)} coefficients for each target, and its input has "
            f"{columns} columns"
        )
    if not isinstance(columns, int):
        x = bb.match_cast(x, relax.TensorType((sizes_of(x)[0], len(matrix)), dtype))
    scores = bb.emit(relax.op.matmul(x, relax.const(matrix, dtype)))
    intercepts = attr.get("intercepts")
    if not intercepts:
        return scores
    if len(intercepts) != targets:
        raise FormError(f"it has {len(intercepts)} intercepts for {targets} targets")
    return bb.emit(relax.op.add(scores, relax.const(np.array(intercepts, dtype), dtype)))

"""Class labels: integers chosen by the scores."""

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

"""Gradients of products of matrices."""

from collections.abc import Sequence
from math import prod

from tvm import relax

from tvm_ext.training.gradients.registration import fitted, gradient_of, sizes


@gradient_of("matmul")
def _matmul(
    bb: relax.BlockBuilder, y: relax.Var, call: relax.Call, given: relax.Var
) -> Sequence[relax.Expr]:
    """A matrix that all rows are multiplied with has one product over all rows for its gradient.

    TVM makes a product for each item of a batch, and adds up matrices of the weights' size.
    """
    a, b = call.args
    left, right = _matrix(bb, a, 0), _matrix(bb, b, 1)
    rows, columns = sizes(left)[-2], sizes(right)[-1]
    batch = sizes(y)[: len(sizes(y)) - (len(sizes(a)) > 1) - (len(sizes(b)) > 1)]
    own = _reshaped(bb, given, [*batch, rows, columns])
    by_left = bb.emit(relax.op.matmul(own, _transposed(bb, right)))
    summed = [_of_rows(bb, one) if len(sizes(right)) == 2 else one for one in (left, own)]
    by_right = bb.emit(relax.op.matmul(_transposed(bb, summed[0]), summed[1]))
    return [
        _reshaped(bb, fitted(bb, by_left, left), sizes(a)),
        _reshaped(bb, fitted(bb, by_right, right), sizes(b)),
    ]


def _matrix(bb: relax.BlockBuilder, value: relax.Expr, axis: int) -> relax.Expr:
    """The value; a vector as a row, or as a column."""
    shape = sizes(value)
    if len(shape) > 1:
        return value
    return _reshaped(bb, value, [1, *shape] if axis == 0 else [*shape, 1])


def _of_rows(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    """The matrix of all rows of a batch."""
    *outer, columns = sizes(value)
    return _reshaped(bb, value, [prod(outer), columns])


def _transposed(bb: relax.BlockBuilder, value: relax.Expr) -> relax.Expr:
    axes = list(range(len(sizes(value))))
    return bb.emit(relax.op.permute_dims(value, [*axes[:-2], axes[-1], axes[-2]]))


def _reshaped(bb: relax.BlockBuilder, value: relax.Expr, shape: list[int]) -> relax.Expr:
    value = bb.normalize(value)
    return value if shape == sizes(value) else bb.emit(relax.op.reshape(value, shape))

"""New rows of several sequences, each behind those that its sequence has, as one function."""

from tvm import te, tirx

ATTRIBUTE = "tvm_ext.append_rows"
"""Of a function that appends such rows: the axis."""


def appended_rows(past: te.Tensor, new: te.Tensor, held: te.Tensor, axis: int) -> te.Tensor:
    """``past`` up to row ``held[b]`` of sequence ``b``, then ``new``.

    It has as many rows as both. What follows the last one of a shorter sequence is zero, and no
    reader may depend on it.
    """
    rows = past.shape[axis]
    sizes = [*past.shape[:axis], rows + new.shape[axis], *past.shape[axis + 1 :]]

    def read(*index: tirx.Var) -> tirx.Expr:
        at = index[axis]
        own = at - held[index[0]].astype(at.ty.dtype)
        older = past(*index[:axis], at, *index[axis + 1 :])
        newer = new(*index[:axis], own, *index[axis + 1 :])
        is_new = tirx.all(own >= 0, own < new.shape[axis])
        rest = tirx.if_then_else(is_new, newer, tirx.const(0, past.dtype))
        return tirx.if_then_else(tirx.all(own < 0, at < rows), older, rest)

    return te.compute(sizes, read, name="append_rows", tag="injective")

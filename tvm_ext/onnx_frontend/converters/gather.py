"""Gather that stays inside its data.

TVM's converter reads wherever the indices point to: one index beyond the data ends the process
with a segmentation fault. Here it reads the nearest element instead. (ONNX Runtime raises an
error for such an index; checking at run time would need a pass over all indices.)
"""

from typing import Any

import tvm
from tvm import relax

from tvm_ext.hardware.tvm_compat import OnnxGather


class Gather(OnnxGather):
    """TVM's converter with the indices clamped to the data, and counted from its end in place."""

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
        data, indices, axis = inputs[0], inputs[1], attr.get("axis", 0)
        stored_or_sizes = (tvm.ir.GenericConst, relax.ShapeExpr)
        if not isinstance(data, relax.ShapeExpr) and not isinstance(indices, stored_or_sizes):
            return relax.op.take(data, _from_front(bb, data, indices, axis), axis, mode="clip")
        result = super()._impl_v13(bb, inputs, attr, params)
        take = tvm.ir.Op.get("relax.take")
        if not isinstance(result, relax.Call) or not take.same_as(result.op):
            return result
        data, indices = result.args
        return relax.op.take(data, indices, result.attrs.axis, mode="clip")


def _from_front(
    bb: relax.BlockBuilder, data: relax.Expr, indices: relax.Expr, axis: int
) -> relax.Expr:
    """``indices + (indices < 0 ? size : 0)``, without a choice.

    TVM's converter chooses between two forms of the index by a third. Where it is computed, as by
    the buckets of T5's distances, the three are one kernel, whose expression is three times as
    long and has conditions inside of conditions: TVM's simplifier then took minutes.
    """
    dtype = str(indices.ty.dtype)
    sizes = bb.normalize(relax.op.shape_to_tensor(bb.normalize(relax.op.shape_of(data))))
    size = bb.normalize(relax.op.take(sizes, relax.const(axis, "int64"), axis=0, mode="wrap"))
    if dtype != "int64":
        size = bb.normalize(relax.op.astype(size, dtype))
    sign_bit = relax.const(tvm.DataType(dtype).bits - 1, dtype)
    all_ones_or_zero = bb.normalize(relax.op.right_shift(indices, sign_bit))
    return bb.normalize(
        relax.op.add(indices, bb.normalize(relax.op.bitwise_and(all_ones_or_zero, size)))
    )

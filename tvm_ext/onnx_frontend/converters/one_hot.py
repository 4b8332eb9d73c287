"""OneHot as a comparison with the positions.

TVM's converter takes a depth of rank 0 only, where most exporters write one of shape [1], wants the
two values as constants and forgets their type. Here the depth has either shape, and the values may
be computed in the run.
"""

from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.errors import ModelError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter, onnx_constant


class OneHot(OnnxOpConverter):
    """``where(positions == indices, on, off)``; indices below zero count from the end."""

    @classmethod
    def _impl_v9(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        depth = _depth(onnx_constant(inputs[1], params))
        indices, values = inputs[0], onnx_constant(inputs[2], params)
        if not str(indices.ty.dtype).startswith("int"):
            indices = bb.normalize(relax.op.astype(indices, "int64"))
        dtype = str(indices.ty.dtype)
        negative = relax.op.less(indices, relax.const(0, dtype))
        wrapped = relax.op.add(indices, relax.const(depth, dtype))
        indices = bb.normalize(relax.op.where(negative, wrapped, indices))
        rank = indices.ty.ndim
        axis = attr.get("axis", -1) % (rank + 1)
        shape = [depth] + [1] * (rank - axis)
        positions = relax.const(np.arange(depth, dtype=dtype).reshape(shape), dtype)
        hot = relax.op.equal(relax.op.expand_dims(indices, axis), positions)
        return relax.op.where(bb.normalize(hot), _scalar(bb, values, 1), _scalar(bb, values, 0))


def _depth(depth: relax.Expr) -> int:
    if not isinstance(depth, tvm.ir.GenericConst):
        raise ModelError("its depth is computed in the run")
    return int(depth.value.numpy().item())


def _scalar(bb: relax.BlockBuilder, values: relax.Expr, index: int) -> relax.Expr:
    if isinstance(values, tvm.ir.GenericConst):
        array = values.value.numpy()
        return relax.const(array[index], str(array.dtype))
    return bb.normalize(relax.op.take(values, relax.const(index, "int64"), axis=0, mode="clip"))

"""OneHot as a comparison with the positions.

TVM's converter takes a depth of rank 0 only, where most exporters write one of shape [1], wants the
two values as constants and forgets their type. Here the depth has either shape, and depth and
values may be computed in the run.
"""

from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx

from tvm_ext.hardware.tvm_compat import OnnxOpConverter, onnx_constant
from tvm_ext.onnx_frontend.converters.arguments import size_argument
from tvm_ext.onnx_frontend.converters.traits import takes_sizes

# Up to here the positions are a constant of the program.
LISTED_DEPTH = 1 << 20


@takes_sizes(1)
class OneHot(OnnxOpConverter):
    """``where(positions == indices, on, off)``; indices below zero count from the end."""

    @classmethod
    def _impl_v9(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        depth = onnx_constant(inputs[1], params)
        if not isinstance(depth, tvm.ir.GenericConst) or depth.value.numpy().max() > LISTED_DEPTH:
            return _of_a_run(bb, inputs, attr, params)
        depth = int(depth.value.numpy().item())
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


def _of_a_run(bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
    """With a depth that is computed in the run, in one kernel."""
    depth = size_argument(bb, inputs[1], params, "depth")
    indices = inputs[0]
    axis = attr.get("axis", -1) % (indices.ty.ndim + 1)

    def kernel(indices: te.Tensor, values: te.Tensor, depth: tirx.Var) -> te.Tensor:
        shape = [*indices.shape[:axis], depth, *indices.shape[axis:]]

        def element(*index: tirx.Var) -> tirx.Expr:
            place = indices(*index[:axis], *index[axis + 1 :]).astype("int64")
            place = tirx.Select(place < 0, place + depth, place)
            return tirx.Select(place == index[axis], values[1], values[0])

        return te.compute(shape, element, name="one_hot")

    return bb.emit_te(kernel, indices, inputs[2], depth, primfunc_name_hint="one_hot")


def _scalar(bb: relax.BlockBuilder, values: relax.Expr, index: int) -> relax.Expr:
    if isinstance(values, tvm.ir.GenericConst):
        array = values.value.numpy()
        return relax.const(array[index], str(array.dtype))
    return bb.normalize(relax.op.take(values, relax.const(index, "int64"), axis=0, mode="clip"))

"""LayerNormalization over axes of symbolic sizes, with scale and bias that broadcast to them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvm_ext.onnx_frontend.converters.arguments import Size, sizes_of
from tvm_ext.onnx_frontend.converters.shape_constraints import broadcast_to, equal_sizes
from tvm_ext.onnx_frontend.tvm_compat import OnnxOpConverter
from tvm_ext.relay_passes.expressions import numpy_dtype


class LayerNormalization(OnnxOpConverter):
    """The normalised input; TVM's takes a scale of just the sizes that it normalises, all known."""

    @classmethod
    def _impl_v17(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        data, scale, bias = (*inputs, None)[:3]
        sizes = sizes_of(data)
        first = attr.get("axis", -1) % len(sizes)
        if bias is None:
            bias = relax.const(np.zeros(1, numpy_dtype(str(scale.ty.dtype))))
        scale, bias = (_whole(bb, each, sizes[first:]) for each in (scale, bias))
        axes = list(range(first, len(sizes)))
        normalised = relax.op.nn.layer_norm(data, scale, bias, axes, attr.get("epsilon", 1e-5))
        # A node whose mean or deviation is read is left to its function body (operator_support).
        nothing = relax.const(0, "float32")
        return relax.Tuple([normalised, nothing, nothing])


def _whole(bb: relax.BlockBuilder, data: relax.Expr, wanted: Sequence[Size]) -> relax.Expr:
    """``data`` broadcast to the sizes that are normalised; a constant stays one."""
    data = broadcast_to(bb, data, wanted)
    sizes = sizes_of(data)
    if len(sizes) == len(wanted) and all(map(equal_sizes, sizes, wanted)):
        return data
    if isinstance(data, tvm.ir.GenericConst) and all(isinstance(size, int) for size in wanted):
        return relax.const(np.broadcast_to(data.value.numpy(), wanted), str(data.ty.dtype))
    return bb.emit(relax.op.broadcast_to(data, relax.ShapeExpr(list(wanted))))

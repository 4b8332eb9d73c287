"""Dropout as it is in inference: its input.

TVM's converter makes a pair of which the second part is dropped again, whether or not there is a
mask to return, and knows no training mode.
"""

from typing import Any

import tvm
from tvm import relax

from tvm_ext.errors import FormError
from tvm_ext.hardware.tvm_compat import OnnxOpConverter, onnx_constant


class Dropout(OnnxOpConverter):
    """The input, and a mask that lets everything through where the model asks for one."""

    @classmethod
    def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        x = inputs[0]
        training = onnx_constant(inputs[2], params) if inputs[2] is not None else None
        if training is not None and not _is_false(training):
            raise FormError("it is in training mode; expected a model exported for inference")
        if attr["tvm_custom"]["num_outputs"] == 1:
            return x
        mask = relax.op.full(x.ty.shape, relax.const(True, "bool"), "bool")
        return relax.Tuple([x, bb.normalize(mask)])


def _is_false(value: relax.Expr) -> bool:
    return isinstance(value, tvm.ir.GenericConst) and not value.value.numpy().any()

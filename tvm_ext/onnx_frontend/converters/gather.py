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
    """TVM's converter with the indices clamped to the data."""

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
        result = super()._impl_v13(bb, inputs, attr, params)
        take = tvm.ir.Op.get("relax.take")
        if not isinstance(result, relax.Call) or not take.same_as(result.op):
            return result
        data, indices = result.args
        return relax.op.take(data, indices, result.attrs.axis, mode="clip")

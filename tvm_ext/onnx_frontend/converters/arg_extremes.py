"""ArgMax and ArgMin.

TVM's start from -1 and the lowest number: where all numbers are infinite or NaN, -1 or a place
behind the end comes out. ONNX Runtime's are places in the tensor.
"""

from typing import Any

from tvm import relax

from tvm_ext.hardware.tvm_compat import OnnxOpConverter, onnx_converter_map
from tvm_ext.onnx_frontend.converters.arguments import sizes_of


def _inside(name: str) -> Any:
    stock = onnx_converter_map()[name]

    class Inside(OnnxOpConverter):
        """TVM's converter, with places from the first to the last."""

        @classmethod
        def _impl_v1(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
            size = sizes_of(inputs[0])[attr.get("axis", 0)]
            found = bb.normalize(stock._impl_v12(bb, inputs, attr, params))
            dtype = str(found.ty.dtype)
            found = bb.normalize(relax.op.maximum(found, relax.const(0, dtype)))
            if not isinstance(size, int):
                return found
            return relax.op.minimum(found, relax.const(max(size - 1, 0), dtype))

    Inside.__name__ = name
    return Inside


ARG_EXTREMES: dict[str, Any] = {name: _inside(name) for name in ("ArgMax", "ArgMin")}

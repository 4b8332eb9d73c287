"""Cast from floating point to integers as the processor's own conversion.

TVM's converter follows it with a modulus, comparisons and selections in 64-bit integers, so that
numbers out of range wrap around. ONNX leaves the result for those undefined; a kernel with a few
such chains takes LLVM half a minute, and divides 64-bit integers in the run.
"""

from typing import Any

from tvm import relax

from tvm_ext.hardware.tvm_compat import OnnxCast, onnx_type_name

# Narrow integers go through one that the processor converts to, and wrap around from there.
_THROUGH = {
    "int8": "int32",
    "int16": "int32",
    "uint8": "int32",
    "uint16": "int32",
    "uint32": "int64",
}


class Cast(OnnxCast):
    """TVM's converter, except for tensors of floats that become integers."""

    @classmethod
    def _impl_v13(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> Any:
        x, wanted = inputs[0], str(onnx_type_name(attr["to"]))
        if not _holds_floats(x) or not wanted.startswith(("int", "uint")):
            return super()._impl_v13(bb, inputs, attr, params)
        if wanted in _THROUGH:
            x = bb.normalize(relax.op.astype(x, _THROUGH[wanted]))
        return relax.op.astype(x, wanted)


def _holds_floats(x: Any) -> bool:
    return isinstance(x, relax.Var) and (
        isinstance(x.ty, relax.TensorType) and str(x.ty.dtype).startswith(("float", "bfloat"))
    )

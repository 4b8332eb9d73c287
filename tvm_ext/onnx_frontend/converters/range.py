"""Range with constant bounds.

TVM's converter makes a list of it whatever its length, and takes a length beyond NumPy's integers
for none at all: from 0 to 2**63 - 1 came out empty.
"""

from typing import Any

from tvm import relax, te, tirx

from tvm_ext.hardware.tvm_compat import OnnxOpConverter, onnx_converter_map
from tvm_ext.onnx_frontend.converters.arguments import constant_array
from tvm_ext.onnx_frontend.value_sizes import range_steps

# Longer ones are computed in the run and are no constant of the program.
LISTED_STEPS = 1 << 20

_TvmRange = onnx_converter_map()["Range"]


class Range(OnnxOpConverter):
    """TVM's converter where bounds are computed in the run, or the list is short."""

    @classmethod
    def _impl_v11(cls, bb: relax.BlockBuilder, inputs: Any, attr: dict, params: Any) -> relax.Expr:
        arrays = [constant_array(value, params) for value in inputs]
        if any(array is None or array.size != 1 for array in arrays):
            return _TvmRange._impl_v12(bb, inputs, attr, params)
        start, limit, delta = (array.item() for array in arrays if array is not None)
        count = range_steps(start, limit, delta)
        if count <= LISTED_STEPS:
            return _TvmRange._impl_v12(bb, inputs, attr, params)
        dtype = str(arrays[0].dtype) if arrays[0] is not None else "int64"
        first, step = tirx.const(start, dtype), tirx.const(delta, dtype)
        return bb.emit_te(
            lambda: te.compute((count,), lambda i: first + i.astype(dtype) * step, name="range"),
            primfunc_name_hint="range",
        )

"""As ``tvm_ext/hardware/tvm_compat.py``, for TVM's ONNX importer.

Saved models run without it, and without ``onnx``, which it imports.
"""

from tvm.relax.frontend.onnx.onnx_frontend import Cast as OnnxCast
from tvm.relax.frontend.onnx.onnx_frontend import Gather as OnnxGather
from tvm.relax.frontend.onnx.onnx_frontend import GatherElements as OnnxGatherElements
from tvm.relax.frontend.onnx.onnx_frontend import GatherND as OnnxGatherND
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, OnnxOpConverter, onnx_input
from tvm.relax.frontend.onnx.onnx_frontend import ScatterElements as OnnxScatterElements
from tvm.relax.frontend.onnx.onnx_frontend import ScatterND as OnnxScatterND
from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map as onnx_converter_map
from tvm.relax.frontend.onnx.onnx_frontend import get_constant as onnx_constant
from tvm.relax.frontend.onnx.onnx_frontend import get_type as onnx_type_name

__all__ = [
    "ONNXGraphImporter",
    "OnnxCast",
    "OnnxGather",
    "OnnxGatherElements",
    "OnnxGatherND",
    "OnnxOpConverter",
    "OnnxScatterElements",
    "OnnxScatterND",
    "onnx_constant",
    "onnx_converter_map",
    "onnx_converter_names",
    "onnx_input",
    "onnx_type_name",
]


def onnx_converter_names() -> frozenset[str]:
    """Operator names that TVM's ONNX importer has a converter for (domains are not told apart)."""
    return frozenset(onnx_converter_map())

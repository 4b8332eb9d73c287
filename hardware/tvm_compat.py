"""The one place that imports TVM names which are private or have moved between releases.

A TVM release that moves a name breaks this file and its test, and nothing else. One name a line.
"""

from tvm.relax.frontend.onnx.onnx_frontend import Gather as OnnxGather
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, OnnxOpConverter
from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map as onnx_converter_map
from tvm.target import codegen as llvm_codegen

__all__ = [
    "ONNXGraphImporter",
    "OnnxGather",
    "OnnxOpConverter",
    "llvm_codegen",
    "onnx_converter_map",
    "onnx_converter_names",
]


def onnx_converter_names() -> frozenset[str]:
    """Operator names that TVM's ONNX importer has a converter for (domains are not told apart)."""
    return frozenset(onnx_converter_map())

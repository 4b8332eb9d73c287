"""Our converters, asked before TVM's: one file an operator family.

Each says in its docstring what TVM's converter lacks or gets wrong.
"""

from typing import Any

from tvm_ext.onnx_frontend.converters.clip import Clip
from tvm_ext.onnx_frontend.converters.gather import Gather
from tvm_ext.onnx_frontend.converters.variadic import Max, Mean, Min, Sum

CONVERTERS: dict[str, Any] = {
    "Clip": Clip,
    "Gather": Gather,
    "Max": Max,
    "Mean": Mean,
    "Min": Min,
    "Sum": Sum,
}

"""Our converters, asked before TVM's: one file an operator family.

Each says in its docstring what TVM's converter lacks or gets wrong.
"""

from typing import Any

from tvm_ext.onnx_frontend.converters.cast import Cast
from tvm_ext.onnx_frontend.converters.clip import Clip
from tvm_ext.onnx_frontend.converters.dropout import Dropout
from tvm_ext.onnx_frontend.converters.gather import Gather
from tvm_ext.onnx_frontend.converters.hard_activations import HardSwish
from tvm_ext.onnx_frontend.converters.indexed import (
    GatherElements,
    GatherND,
    ScatterElements,
    ScatterND,
)
from tvm_ext.onnx_frontend.converters.one_hot import OneHot
from tvm_ext.onnx_frontend.converters.variadic import Max, Mean, Min, Sum

CONVERTERS: dict[str, Any] = {
    "Cast": Cast,
    "Clip": Clip,
    "Dropout": Dropout,
    "Gather": Gather,
    "GatherElements": GatherElements,
    "GatherND": GatherND,
    "HardSwish": HardSwish,
    "Max": Max,
    "Mean": Mean,
    "Min": Min,
    "OneHot": OneHot,
    "ScatterElements": ScatterElements,
    "ScatterND": ScatterND,
    "Sum": Sum,
}

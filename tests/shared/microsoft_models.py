"""Models of one operator of com.microsoft, and what ONNX Runtime and we compute of them."""

import numpy as np
import onnx
from one_model import run_model
from onnx import helper, numpy_helper
from random_numbers import RANDOM
from small_models import value

from tvm_ext.check.reference import run_reference


def element_type(array: np.ndarray) -> int:
    return helper.np_dtype_to_tensor_dtype(np.asarray(array).dtype)


def bytes_of(*shape: int, dtype: str = "uint8") -> np.ndarray:
    info = np.iinfo(dtype)
    return RANDOM.integers(info.min, info.max + 1, shape).astype(dtype)


def weights_of(*shape: int) -> np.ndarray:
    return bytes_of(*shape, dtype="int8")


def microsoft_model(op: str, inputs: dict, outputs: dict, opset: int = 14, /, **attributes):
    """One node; arrays are stored, except those whose name begins with x."""
    fed = {name: array for name, array in inputs.items() if name.startswith("x")}
    made = helper.make_node(
        op, list(inputs), list(outputs), name="it", domain="com.microsoft", **attributes
    )
    stored = [
        numpy_helper.from_array(np.asarray(array), name)
        for name, array in inputs.items()
        if name not in fed and name.strip("_")
    ]
    for index, name in enumerate(made.input):
        made.input[index] = name.strip("_") and name
    graph = helper.make_graph(
        [made],
        "small",
        [value(name, list(array.shape), element_type(array)) for name, array in fed.items()],
        [value(name, None, dtype) for name, dtype in outputs.items() if name],
        stored,
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), fed


def compared(proto: onnx.ModelProto, inputs: dict) -> list[tuple[np.ndarray, np.ndarray]]:
    """What ONNX Runtime computes and what we do, output by output."""
    wanted = list(run_reference(proto, inputs).values())
    found = list(run_model(proto, inputs).values())
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
    return list(zip(found, wanted, strict=True))

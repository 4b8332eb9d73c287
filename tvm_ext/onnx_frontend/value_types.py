"""Refuses inputs and outputs of types that no run can take or give."""

import numpy as np
import onnx

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.input_shapes import model_inputs

# By name: older releases of ONNX lack some of them.
_PASSED = (
    *("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
    *("BFLOAT16", "DOUBLE", "FLOAT", "FLOAT16", "FLOAT8E8M0"),
    *("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"),
    *("INT2", "INT4", "UINT2", "UINT4", "FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2"),
    *("STRING", "UNDEFINED"),
)


def require_known_types(graph: onnx.GraphProto, label: str) -> None:
    """Checks the inputs and outputs of a model, and what sequences, maps and optionals hold.

    Raises
    ------
    ModelError
        One of them is a sparse tensor or opaque, or holds complex numbers.
    """
    sides = [("input", value) for value in model_inputs(graph)]
    sides += [("output", value) for value in graph.output]
    for side, value in sides:
        found = _unknown(value.type)
        if found:
            raise ModelError(
                f"{label}: {side} '{value.name}' {found}; expected tensors of floats, integers, "
                "booleans or strings, or sequences, maps and optionals of them: export the model "
                "with such inputs and outputs"
            )


def _unknown(type_: onnx.TypeProto) -> str:
    """What of a type is not passed; "" where all of it is."""
    kind = type_.WhichOneof("value")
    if kind is None:
        return ""
    if kind == "tensor_type":
        elements = onnx.TensorProto.DataType.Name(type_.tensor_type.elem_type)
        return "" if elements in _PASSED else f"holds {elements} elements"
    if kind in ("sequence_type", "optional_type"):
        return _unknown(getattr(type_, kind).elem_type)
    if kind == "map_type":
        return _unknown(type_.map_type.value_type)
    return f"is of kind {kind.removesuffix('_type')}"


def element_dtype(name: str) -> np.dtype:
    """NumPy's type for ONNX's name of an element type: "float" is float32."""
    return onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(name.upper()))

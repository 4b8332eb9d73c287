"""Refuses inputs and outputs of kinds that a compiled model cannot pass."""

import onnx

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.input_shapes import model_inputs

# By name: older releases of ONNX lack some of them.
_PASSED = (
    *("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
    *("BFLOAT16", "DOUBLE", "FLOAT", "FLOAT16", "FLOAT8E8M0"),
    *("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"),
    *("INT2", "INT4", "UINT2", "UINT4", "FLOAT4E2M1", "FLOAT6E2M3", "FLOAT6E3M2"),
)


def require_tensors_of_numbers(graph: onnx.GraphProto, label: str) -> None:
    """Checks the inputs and outputs of a model.

    Raises
    ------
    ModelError
        One of them is a sequence, an optional or a map, or holds strings or complex numbers.
    """
    sides = [("input", value) for value in model_inputs(graph)]
    sides += [("output", value) for value in graph.output]
    for side, value in sides:
        kind = value.type.WhichOneof("value")
        if kind == "tensor_type":
            elements = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
            if elements in (*_PASSED, "UNDEFINED"):
                continue
            found = f"holds {elements} elements"
        elif kind is None:
            continue
        else:
            found = f"is of kind {kind.removesuffix('_type')}"
        raise ModelError(
            f"{label}: {side} '{value.name}' {found}; expected a tensor of floats, integers or "
            "booleans: export the model with such inputs and outputs"
        )

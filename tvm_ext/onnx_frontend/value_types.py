"""Refuses inputs and outputs of kinds that a compiled model cannot pass."""

import onnx

from tvm_ext.errors import ModelError
from tvm_ext.onnx_frontend.input_shapes import model_inputs

_PASSED = frozenset(
    {
        onnx.TensorProto.BFLOAT16,
        onnx.TensorProto.BOOL,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.FLOAT,
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.FLOAT8E4M3FN,
        onnx.TensorProto.FLOAT8E5M2,
        onnx.TensorProto.INT8,
        onnx.TensorProto.INT16,
        onnx.TensorProto.INT32,
        onnx.TensorProto.INT64,
        onnx.TensorProto.UINT8,
        onnx.TensorProto.UINT16,
        onnx.TensorProto.UINT32,
        onnx.TensorProto.UINT64,
    }
)


def require_tensors_of_numbers(graph: onnx.GraphProto, label: str) -> None:
    """Checks the inputs and outputs of a model.

    Raises
    ------
    ModelError
        One of them is a sequence, an optional or a map, or holds strings, complex numbers or
        numbers that are packed below a byte.
    """
    sides = [("input", value) for value in model_inputs(graph)]
    sides += [("output", value) for value in graph.output]
    for side, value in sides:
        kind = value.type.WhichOneof("value")
        if kind == "tensor_type":
            elements = value.type.tensor_type.elem_type
            if elements in _PASSED or elements == onnx.TensorProto.UNDEFINED:
                continue
            found = f"holds {onnx.TensorProto.DataType.Name(elements)} elements"
        elif kind is None:
            continue
        else:
            found = f"is of kind {kind.removesuffix('_type')}"
        raise ModelError(
            f"{label}: {side} '{value.name}' {found}; expected a tensor of floats, integers or "
            "booleans of 8 to 64 bits: export the model with such inputs and outputs"
        )

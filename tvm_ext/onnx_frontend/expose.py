"""Looks inside a model: types of its values, their precision, and which can be outputs."""

import onnx

from tvm_ext.onnx_frontend.onnx_graph import names_read
from tvm_ext.onnx_frontend.signature import model_inputs
from tvm_ext.tensor_spec import narrowest_float

_INTEGERS = (onnx.TensorProto.INT64, onnx.TensorProto.INT32)


def with_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types of its values inferred; as it is when it is above 2 GB."""
    if model.ByteSize() >= onnx.checker.MAXIMUM_PROTOBUF:
        return model
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=True)
    except onnx.shape_inference.InferenceError:
        return model


def value_types(graph: onnx.GraphProto) -> dict[str, onnx.TypeProto]:
    """Types of the inputs, outputs and values of a graph, as far as they are written in it."""
    values = (*graph.input, *graph.value_info, *graph.output)
    return {value.name: value.type for value in values if value.type.HasField("tensor_type")}


def value_precision(graph: onnx.GraphProto) -> dict[str, str]:
    """The narrowest floating-point type that each value was computed through; "" for none.

    A value can be no more precise than what it was computed from: a float64 output that was cast
    from float32 is as good as float32.
    """
    found = {
        name: _numpy_name(type_.tensor_type.elem_type) for name, type_ in value_types(graph).items()
    }
    found |= {tensor.name: _numpy_name(tensor.data_type) for tensor in graph.initializer}
    for node in graph.node:
        read = [found.get(name, "") for name in names_read(node)]
        for name in filter(None, node.output):
            found[name] = narrowest_float(found.get(name, ""), *read)
    return {name: narrowest_float(dtype) for name, dtype in found.items()}


def exposable_values(graph: onnx.GraphProto) -> list[str]:
    """The intermediate values of the top-level graph that can be outputs as well, in its order.

    Left out are values whose type is not known, sequences, and integers of rank 0 and 1, most of
    which are shape arithmetic that the compiler resolves without ever computing it.
    """
    types = value_types(graph)
    present = {value.name for value in graph.output}
    nodes = (node for node in graph.node if node.op_type != "Constant")
    made = (name for node in nodes for name in filter(None, node.output))
    return [name for name in made if name not in present and _can_be_output(types.get(name))]


def runtime_values(graph: onnx.GraphProto, node: onnx.NodeProto) -> list[str]:
    """What a node reads that is computed in a run: inputs of the model and outputs of nodes."""
    computed = {value.name for value in model_inputs(graph)}
    computed |= {
        name for other in graph.node if other.op_type != "Constant" for name in other.output
    }
    return sorted(names_read(node).keys() & (computed - {""}))


def _can_be_output(type_: onnx.TypeProto | None) -> bool:
    if type_ is None or not type_.tensor_type.HasField("shape"):
        return False
    tensor = type_.tensor_type
    return tensor.elem_type not in _INTEGERS or len(tensor.shape.dim) > 1


def _numpy_name(element_type: int) -> str:
    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(element_type))
    except KeyError:
        return ""

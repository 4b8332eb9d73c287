"""Looks inside a prepared model: every value as an output, one node alone, and their precision."""

from collections.abc import Iterable, Mapping

import numpy as np
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


def expose_intermediates(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which every intermediate value of the top-level graph is an output as well.

    Left out are values whose type is not known, sequences, and integers of rank 0 and 1, most of
    which are shape arithmetic that the compiler resolves without ever computing it.
    """
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    types = value_types(model.graph)
    present = {value.name for value in model.graph.output}
    for node in model.graph.node:
        for name in filter(None, node.output):
            type_ = types.get(name)
            if name in present or node.op_type == "Constant" or not _can_be_output(type_):
                continue
            exposed.graph.output.add(name=name).type.CopyFrom(type_)
    return exposed


def node_alone(
    model: onnx.ModelProto, node: onnx.NodeProto, values: Mapping[str, np.ndarray]
) -> onnx.ModelProto:
    """A model of only this node; it is fed ``values``, what else it reads must be stored."""
    read = names_read(node)
    graph = onnx.GraphProto(name="node_alone")
    graph.node.add().CopyFrom(node)
    for name in sorted(read.keys() & set(values)):
        element_type = onnx.helper.np_dtype_to_tensor_dtype(values[name].dtype)
        info = onnx.helper.make_tensor_value_info(name, element_type, values[name].shape)
        graph.input.add().CopyFrom(info)
    graph.initializer.extend(
        tensor for tensor in model.graph.initializer if tensor.name in read.keys() - set(values)
    )
    types = value_types(model.graph)
    for name in filter(None, node.output):
        if name in types:
            graph.output.add(name=name).type.CopyFrom(types[name])
    alone = onnx.helper.make_model(graph, opset_imports=list(model.opset_import))
    alone.ir_version = model.ir_version
    return alone


def nodes_behind(graph: onnx.GraphProto, names: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes that the named values depend on, in the order of the (sorted) graph."""
    wanted = set(names)
    found = []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            wanted |= names_read(node).keys()
            found.append(node)
    return found[::-1]


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
